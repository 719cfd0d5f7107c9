"""``draftgate evidence``: reads beside whoever writes, and clears once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.audit.record import EvidenceEvent
from gateway.audit.store import DecisionStore
from gateway.cell import Cell
from gateway.cli.evidence import evidence
from gateway.tally import Moments, Tally
from tests.records import decision_record, outcome_record

CODE = Cell("code", "speculative", "coupled", "small", "suffix")
HOSTILE = Cell("code", "speculative", "coupled", "x\x1b[2J[red]\u2028", "suffix")
ALARM = EvidenceEvent(
    happened_at=1000.0, kind="alarm", cell=CODE, demotes=True, cause="change", decision_id="dec_1"
)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = f"sqlite:///{tmp_path}/decisions.db"

    async def fill() -> None:
        store = await DecisionStore.open(url)
        await store.append_decision(decision_record(1))
        tally = Tally(num_tokens=20, tail=Moments(1.0, 2.0, 1.5), log_factors={"leak": 2.3})
        outcome = outcome_record(1)
        execution = msgspec.structs.replace(outcome.execution, tally=tally)
        await store.append_outcome(msgspec.structs.replace(outcome, execution=execution))
        await store.append_event(ALARM)
        await store.append_event(msgspec.structs.replace(ALARM, cell=HOSTILE, demotes=False))
        await store.aclose()

    asyncio.run(fill())
    return url


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(evidence, arguments)
    # A SystemExit is how click ends; anything else would have been a traceback.
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_list_has_every_cell_and_a_hostile_name_does_nothing(url: str) -> None:
    table = _run("list", "--url", url).stdout
    assert CODE.id in table
    assert HOSTILE.id in table
    assert "demoted" in table
    assert "\x1b" not in table
    found = json.loads(_run("list", "--json", "--url", url).stdout)
    by_id = {each["id"]: each for each in found}
    assert by_id[CODE.id]["requests"] == 1
    assert by_id[CODE.id]["log10_e"] == pytest.approx(1.0, abs=0.01)
    assert (by_id[CODE.id]["state"], by_id[HOSTILE.id]["state"]) == ("demoted", "alarm")


def test_one_cell_is_shown_by_the_beginning_of_its_id(url: str) -> None:
    shown = _run("show", CODE.id[:6], "--url", url).stdout
    assert "tail tokens" in shown
    assert "0.500" in shown
    assert "have ceased to follow" in shown
    assert json.loads(_run("show", CODE.id, "--json", "--url", url).stdout)["tail"]["ratio"] == 0.5
    unknown = _run("show", "zz", "--url", url)
    assert unknown.exit_code == 1
    assert "evidence list" in unknown.output


def test_an_alarm_is_cleared_once_with_a_reason(url: str) -> None:
    assert _run("clear", CODE.id, "--url", url).exit_code == 2
    assert _run("clear", CODE.id, "--reason", " ", "--url", url).exit_code == 2
    done = _run("clear", CODE.id[:8], "--reason", "rebuilt", "--by", "ada", "--url", url)
    assert done.exit_code == 0, done.output
    again = _run("clear", CODE.id, "--reason", "rebuilt", "--url", url)
    assert again.exit_code == 1
    assert "not in alarm" in again.output

    history = json.loads(_run("history", CODE.id, "--json", "--url", url).stdout)
    assert [(each["event"]["kind"], each["event"]["by"]) for each in history] == [
        ("clearing", "ada"),
        ("alarm", ""),
    ]
    assert "rebuilt" in _run("history", "--url", url).stdout
    found = json.loads(_run("show", CODE.id, "--json", "--url", url).stdout)
    assert (found["state"], found["log10_e"], found["requests"]) == ("ok", 0.0, 1)


def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    result = _run("list", "--url", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 2
    assert "no decision log" in result.output
