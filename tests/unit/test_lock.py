"""`requirements.lock` is what `pyproject.toml` asks for, each with its digest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(
    r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^\s+]+)(?:\+cpu)? \\\n    --hash=sha256:[0-9a-f]{64}$",
    re.MULTILINE,
)


def test_the_lock_has_every_pinned_dependency_in_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = dict(
        re.sub(r"\[.*?\]", "", line).split("==")
        for line in (*project["dependencies"], *(line for extra in extras for line in extra))
    )
    locked = {m["name"]: m["version"] for m in ENTRY.finditer(lock())}

    assert {name: locked.get(name) for name in wanted} == wanted


def test_nothing_in_the_lock_lacks_a_digest() -> None:
    entries = [line for line in lock().splitlines() if "==" in line and not line.startswith("#")]

    assert len(entries) > 50
    assert len(entries) == len(list(ENTRY.finditer(lock())))


def lock() -> str:
    return (ROOT / "requirements.lock").read_text()
