"""Where a decision log can be, and what is said of where it cannot."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.audit import presence
from gateway.audit.query import DecisionReader
from gateway.audit.store import DecisionStore
from gateway.errors import AuditUnavailable, ConfigError
from tests.records import decision_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.db"


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may write everywhere, so be nobody for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


async def _has(path: Path, decision_id: str) -> bool:
    reader = await DecisionReader.open(f"sqlite:///{path}")
    try:
        return await reader.get(decision_id) is not None
    finally:
        await reader.aclose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a database URL"),
        ("decisions.db", "not a database URL"),
        ("sqlite:///x.db?mode=memory", "takes no parameters"),
        ("sqlite://", "not durable"),
        ("sqlite:///:memory:", "not durable"),
        ("sqlite:///file:x?cache=shared", "takes no parameters"),
        ("sqlite://x.db", "cannot keep"),
        ("sqlite+pysqlcipher:///x.db", "cannot keep"),
        ("mysql://root:secret@db/log", "cannot keep"),
        ("sqlite:///a\0b.db", "no such place"),
    ],
)
async def test_a_wrong_url_is_a_configuration_error_that_shows_a_right_one(
    url: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        await DecisionStore.open(url)
    assert str(caught.value).startswith("audit.url: ")
    assert "sqlite:////" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_the_url_of_an_asynchronous_driver_names_the_same_file(path: Path) -> None:
    store = await DecisionStore.open(f"sqlite+aiosqlite:///{path}")
    await store.append_decision(decision_record())
    await store.aclose()
    assert await _has(path, "dec_000000")


async def test_a_path_with_spaces_and_signs_works_and_its_directories_are_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "état 100% #1" / "de ep" / "decisions.db"
    store = await DecisionStore.open(f"sqlite:///{path}")
    await store.append_decision(decision_record())
    await store.aclose()
    assert await _has(path, "dec_000000")
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_place_that_cannot_hold_a_log_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "other.db").write_bytes(b"not a database, but long enough to look into" * 50)
    for place in (tmp_path, tmp_path / "file" / "x.db", tmp_path / "other.db", Path("/proc/x.db")):
        with pytest.raises(ConfigError, match=r"^audit\.url: "):
            await DecisionStore.open(f"sqlite:///{place}")
    assert b"not a database" in (tmp_path / "other.db").read_bytes()


async def test_a_directory_that_may_not_be_written_is_a_configuration_error() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        with (
            _without_privileges(),
            pytest.raises(ConfigError, match=r"Permission denied.*may write"),
        ):
            await DecisionStore.open(f"sqlite:///{directory}/x.db")
        os.chmod(directory, 0o755)


async def test_a_log_that_another_program_keeps_locked_is_unavailable_not_misconfigured(
    path: Path,
) -> None:
    store = await DecisionStore.open(f"sqlite:///{path}")
    await store.aclose()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditUnavailable, match="locked"):
            await DecisionStore.open(f"sqlite:///{path}", busy_seconds=0.1)


async def test_a_log_that_another_gateway_is_still_opening_is_waited_for_and_then_unavailable(
    path: Path,
) -> None:
    with (
        presence.gate(presence.directory(path), 1.0),
        pytest.raises(AuditUnavailable, match="opening it for too long"),
    ):
        await DecisionStore.open(f"sqlite:///{path}", busy_seconds=0.1)
    assert path.name not in os.listdir(path.parent)
