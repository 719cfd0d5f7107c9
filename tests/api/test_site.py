"""The documentation as a site: it builds, and what its pages tell to type works."""

from __future__ import annotations

import ast
import configparser
import contextlib
import io
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from mkdocs.commands.build import build
from mkdocs.config import load_config

from gateway import config, credentials
from gateway.cli import main
from tests.live import LiveServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page, those in lists too."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)\n\1```$", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(body) for _, body in found]


def typed(page: Path) -> Iterator[list[str]]:
    """The arguments of each `draftgate` that the page tells to type."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            match = re.match(r"\$ (?:\w+=\S+ )*(?:\S*/)?draftgate (.*)", line)
            if match:
                yield shlex.split(match[1], comments=True)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    settings = load_config(str(DOCS / "site" / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))

    build(settings)  # raises Abort where a link, an anchor or a page is missing

    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<h1" in page
    assert "```" not in page
    assert not re.findall(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)', page)
    steps = (tmp_path / "policies.html").read_text(encoding="utf-8")
    _, _, rest = steps.partition("Copy the shipped policy and its tests.")
    assert "<ol>" not in rest.partition("Check, test and look.")[0], "a step has ended its list"
    assert not (tmp_path / "site").exists()


def test_every_command_on_a_page_is_one_with_options_that_it_has() -> None:
    count = 0
    for page in PAGES:
        for arguments in typed(page):
            count += 1
            command: click.Command = main
            context = click.Context(main)
            while isinstance(command, click.Group) and arguments:
                found = command.get_command(context, arguments.pop(0))
                assert found is not None, f"{page.name}: draftgate has no such command"
                command, context = found, click.Context(found, parent=context)
            command.make_parser(context).parse_args(list(arguments))

    assert count > 40


def test_the_first_five_minutes_work(server: LiveServer) -> None:
    (code,) = blocks(DOCS / "index.md", "python")
    code = code.replace("http://127.0.0.1:8080", server.url)
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(ast.parse(code), "index.md", "exec"), {})

    assert "speculative code" in printed.getvalue()
    assert "The answer is short." in printed.getvalue()


def test_the_commands_of_an_audit_work_on_a_log(
    start: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    for question in ("Write a function.", "Hello."):
        body = {"model": "scripted", "messages": [{"role": "user", "content": question}]}
        assert server.post(body).status_code == 200
    monkeypatch.setenv("DRAFTGATE_DATABASE_URL", server.config.audit.url)
    monkeypatch.chdir(ROOT)

    for arguments in typed(DOCS / "audit-guide.md"):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, (arguments, result.output)


def test_the_unit_and_the_manifest_name_what_is_there() -> None:
    page = DOCS / "deployment.md"
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(blocks(page, "ini")[0])
    manifest: Any = yaml.safe_load(blocks(page, "yaml")[0])
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert unit["Service"]["ExecStart"].split()[1:] == ["serve"]
    default = config.ServerConfig()
    assert float(unit["Service"]["TimeoutStopSec"]) > default.shutdown_seconds
    assert pod["terminationGracePeriodSeconds"] > default.shutdown_seconds
    assert container["ports"][0]["containerPort"] == default.port
    probes = {container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {"/readyz", "/healthz"}
    names = set(re.findall(r"DRAFTGATE_[A-Z_]+", page.read_text(encoding="utf-8")))
    readers = (config, credentials)
    source = "".join(Path(reader.__file__).read_text(encoding="utf-8") for reader in readers)
    assert all(f'"{name}"' in source for name in names)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
