from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.errors import ConfigError
from gateway.log import Log, build_log, quieten_libraries


@pytest.fixture
def _host_settings() -> Iterator[None]:
    """Whatever a test does to the settings of the process is undone."""
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "httpcore", "alembic")
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def fail(log: Log) -> None:
    prompt = "chest " + "pain"
    try:
        raise RuntimeError(f"length {len(prompt)}")
    except RuntimeError:
        log.exception("broken")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    fail(build_log(json=as_json))

    output = capsys.readouterr().out
    assert "RuntimeError: length 10" in output
    assert "chest pain" not in output


def swallow(*_: Any) -> Any:
    raise structlog.DropEvent


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.usefixtures("_host_settings")
def test_what_the_host_sets_for_structlog_changes_nothing(
    capsys: pytest.CaptureFixture[str], early: bool
) -> None:
    log = build_log() if early else None
    structlog.configure(
        processors=[swallow],
        wrapper_class=structlog.make_filtering_bound_logger("critical"),
        context_class=lambda *_: {"host": "context"},  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(host="contextvar", secret="s")
    log = log or build_log()

    log.info("one")
    structlog.reset_defaults()
    fail(log)

    output = capsys.readouterr()
    first, second = map(json.loads, output.out.splitlines())
    assert set(first) == {"event", "level", "timestamp"}
    assert second["level"] == "error"
    assert "RuntimeError: length 10" in second["exception"]
    assert "chest pain" not in output.out
    assert output.err == ""


@pytest.mark.usefixtures("_host_settings")
def test_building_a_log_leaves_the_settings_of_the_process_alone() -> None:
    root = logging.getLogger()
    before = (structlog.get_config(), root.level, tuple(root.handlers))

    build_log("debug", json=False).info("one")

    assert not structlog.is_configured()
    assert before == (structlog.get_config(), root.level, tuple(root.handlers))


def test_each_log_has_its_own_level(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("error", "info"):
        build_log(level).warning("said", by=level)

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["by"] == "info"


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="one of debug, info, warning, error, critical"):
        build_log("loud")


def test_an_output_that_is_gone_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    log = build_log()
    monkeypatch.setattr(sys, "stdout", Gone())
    fail(log)


def test_an_output_that_is_closed_fails_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    log = build_log()
    with (tmp_path / "out").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    fail(log)


@pytest.mark.usefixtures("_host_settings")
def test_the_libraries_below_speak_from_warnings_up() -> None:
    quieten_libraries()

    for name in ("uvicorn.access", "httpx"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)
