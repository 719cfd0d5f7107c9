from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.audit.store import DecisionStore
from gateway.cli.decisions import decisions
from gateway.execution import Execution
from gateway.types import Caller, Decision, FinishReason, Mode, RuleTrace, Signal, Signals
from tests.records import decided, decision_record, outcome_record

HOSTILE = "x\x1b[2J\r\n[red]\u2028\x9b31m"


def _fill(url: str, records: Sequence[DecisionRecord | OutcomeRecord]) -> None:
    async def run() -> None:
        store = await DecisionStore.open(url)
        for record in records:
            if isinstance(record, DecisionRecord):
                await store.append_decision(record)
            else:
                await store.append_outcome(record)
        await store.aclose()

    asyncio.run(run())


def _run(*arguments: str) -> Result:
    result = CliRunner().invoke(decisions, arguments)
    # A SystemExit is how click ends; anything else would have been a traceback.
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def _ids(result: Result) -> list[str]:
    return [json.loads(line)["decision"]["decision_id"] for line in result.stdout.splitlines()]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/decisions.db"
    medical = Decision(
        mode=Mode.STANDARD,
        rule="medical",
        policy="default",
        policy_hash="f" * 64,
        reason="Clinical text is decoded in the audited standard mode.",
        bans={"speculative": "medical", "hybrid": "medical"},
        trace=(RuleTrace("medical", "ban", True, "domain medical 0.88 >= 0.10"),),
    )
    signals = Signals(
        items=(Signal("domain", "medical", 0.88, "domain"),), scored_tokens=5, total_tokens=9
    )
    _fill(
        url,
        [
            decision_record(1),
            outcome_record(1),
            decision_record(2, decision=medical, signals=signals, caller=Caller(id="bob")),
            outcome_record(2, attestation="attestation_failed"),
            decision_record(3, created_at=2e9),
        ],
    )
    return url


def test_a_list_is_newest_first_and_shows_decided_beside_executed(url: str) -> None:
    result = _run("list", "--url", url)
    assert result.exit_code == 0
    heading, third, second, first = result.stdout.splitlines()
    assert "decided" in heading
    assert "executed" in heading
    assert "dec_000003" in third
    assert "open" in third
    assert second.split()[2:] == [
        "dec_000002",
        "bob",
        "medical",
        "0.88",
        "medical",
        "standard",
        "speculative",
        "12/16",
        "attestation_failed",
    ]
    assert first.split()[-4:] == ["speculative", "speculative", "12/16", "stop"]


def test_an_empty_log_lists_nothing_and_is_no_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    _fill(url, [])
    assert _run("list", "--url", url).exit_code == 0
    as_json = _run("list", "--json", "--url", url)
    assert (as_json.exit_code, as_json.stdout) == (0, "")


def test_a_list_as_json_is_one_whole_entry_a_line(url: str) -> None:
    result = _run("list", "--json", "--url", url)
    assert _ids(result) == ["dec_000003", "dec_000002", "dec_000001"]
    third, _, first = (msgspec.json.decode(line, type=Entry) for line in result.stdout.splitlines())
    assert third == Entry(decision_record(3, created_at=2e9), None)
    assert first == Entry(decision_record(1), outcome_record(1))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--limit", "1"), ["dec_000003"]),
        (("--mode", "standard"), ["dec_000002"]),
        (("--domain", "medical"), ["dec_000002"]),
        (("--rule", "medical"), ["dec_000002"]),
        (("--caller", "bob"), ["dec_000002"]),
        (("--model", "large"), []),
        (("--failed",), ["dec_000002"]),
        (("--since", "2020-01-31"), ["dec_000003"]),
        (("--since", "1970-01-01T00:16:42Z"), ["dec_000003", "dec_000002"]),
        (("--since", "1970-01-01T01:16:42+01:00"), ["dec_000003", "dec_000002"]),
        (("--since", "9d"), ["dec_000003"]),
        (("--since", "99999w"), ["dec_000003", "dec_000002", "dec_000001"]),
    ],
)
def test_a_list_can_be_narrowed(
    url: str, arguments: tuple[str, ...], expected: Sequence[str]
) -> None:
    assert _ids(_run("list", "--json", "--url", url, *arguments)) == expected


def test_a_list_that_was_cut_says_so(url: str) -> None:
    assert "larger --limit" in _run("list", "--limit", "2", "--url", url).stderr
    assert _run("list", "--limit", "3", "--url", url).stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--limit", "0"),
        ("list", "--limit", "many"),
        ("list", "--mode", "fast"),
        ("list", "--since", "yesterday"),
        ("list", "--since", ""),
        ("list", "--since", "m"),
        ("list", "--since", "٣d"),
        ("list", "--since", "9" * 400 + "d"),
        ("list", "--since", "0001-01-01"),
        ("show",),
        ("show", "dec_"),
        ("list", "--what"),
    ],
)
def test_bad_input_ends_with_2_and_a_message(url: str, arguments: tuple[str, ...]) -> None:
    result = _run(*arguments, "--url", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def test_a_log_that_is_not_there_ends_with_2_and_is_not_made(tmp_path: Path) -> None:
    for command in (("list",), ("show", "dec_1")):
        result = _run(*command, "--url", f"sqlite:///{tmp_path}/decisions.db")
        assert result.exit_code == 2
        assert "there is no decision log at" in result.stderr
        assert "start the gateway once" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_url_ends_with_2(tmp_path: Path) -> None:
    result = _run("list", "--url", "decisions.db")
    assert result.exit_code == 2
    assert "not a database URL" in result.stderr


def test_the_url_is_the_configurations_when_none_is_given(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTGATE_DATABASE_URL", url)
    assert len(_ids(_run("list", "--json"))) == 3


def test_an_id_that_nothing_has_ends_with_1(url: str) -> None:
    result = _run("show", "dec_9", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no decision 'dec_9' is in the log" in result.stderr


def test_a_beginning_that_several_share_ends_with_2_and_names_them(url: str) -> None:
    result = _run("show", "dec_00000", "--url", url)
    assert result.exit_code == 2
    assert "dec_000001, dec_000002, dec_000003" in result.stderr


def test_an_id_that_is_the_beginning_of_another_is_still_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    _fill(url, [decision_record(decision_id="dec_a"), decision_record(decision_id="dec_ab")])
    assert _ids(_run("show", "dec_a", "--json", "--url", url)) == ["dec_a"]


def test_a_decision_is_shown_with_its_reasons_and_what_became_of_it(url: str) -> None:
    text = _run("show", "dec_000002", "--url", url).stdout
    for part in (
        "standard, verifier coupled",
        "speculative, verifier coupled (exact)",
        "attestation_failed",
        "mode speculative, not standard; draft tokens, though none was to be proposed",
        "default ffffffffffff ",
        "12 of 16 draft tokens accepted (75%)",
        "mean acceptance length 2.50 with the bonus token",
        "suffix 12/16",
        "first token 50.0 ms, total 400.0 ms",
        "rule medical: Clinical text",
        "✓ ban medical: domain medical 0.88 >= 0.10",
        "hybrid is banned by medical",
        "domain medical",
        "██████████████████··",
        "5 of 9 tokens scored",
    ):
        assert part in text, part


def test_a_lossy_verifier_is_shown_with_its_budget_and_what_it_spent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    execution = Execution(
        mode=Mode.SPECULATIVE, verifier="typical", verifier_class="lossy", distortion=0.12345
    )
    _fill(
        url,
        [
            decided(1, mode=Mode.SPECULATIVE, verifier="typical", max_distortion=0.2),
            outcome_record(1, execution=execution),
        ],
    )
    text = _run("show", "dec_000001", "--url", url).stdout

    assert "verifier typical, lossy, distortion at most 0.2" in text
    assert "speculative, verifier typical (lossy, distortion 0.123)" in text


def test_a_request_that_still_runs_or_was_interrupted_is_shown_as_that(url: str) -> None:
    assert "open: still running" in _run("show", "dec_000003", "--url", url).stdout
    _fill(url, [])
    shown = _run("show", "dec_000003", "--url", url).stdout
    assert "interrupted: the gateway stopped" in shown
    assert "nothing" in shown
    assert "interrupted" in _run("list", "--limit", "1", "--url", url).stdout


def test_every_kind_of_decision_can_be_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    request = msgspec.structs.replace(
        decision_record().request, has_tools=True, requested_mode="standard", n=2
    )
    hybrid = decided(1, mode=Mode.HYBRID, standard_first=10, content_tokens=Mode.STANDARD)
    denied = decided(2, deny="Not in this house.", forced_by="header", draft=None, trace=())
    reasons = (FinishReason.STOP, FinishReason.CANCELLED)
    _fill(
        url,
        [
            msgspec.structs.replace(hybrid, request=request, signals=Signals(error="domain: late")),
            outcome_record(1, finish_reasons=reasons, execution=Execution(num_draft_tokens=1)),
            denied,
            outcome_record(2, execution=Execution(), error="policy_denied: Not in this house."),
        ],
    )
    first = _run("show", "dec_000001", "--url", url).stdout
    for part in ("first 10 standard", "with tools", "wants standard", "stop, cancelled", "late"):
        assert part in first, part
    second = _run("show", "dec_000002", "--url", url).stdout
    for part in ("denied: Not in this house.", "forced by header", "no draft token proposed"):
        assert part in second, part


def test_nothing_a_client_sent_can_command_the_terminal_or_pass_for_markup(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    request = msgspec.structs.replace(decision_record().request, model=HOSTILE)
    signals = Signals(items=(Signal("domain", HOSTILE, 0.5, HOSTILE),), error=HOSTILE)
    record = decision_record(
        request_id=HOSTILE, caller=Caller(HOSTILE, HOSTILE), request=request, signals=signals
    )
    _fill(url, [record, outcome_record(error=HOSTILE)])
    for command in (("list",), ("list", "--json"), ("show", "dec_"), ("show", "dec_", "--json")):
        output = _run(*command, "--url", url).stdout
        assert all(c.isprintable() or c == "\n" for c in output)
        assert "[red]" in output
    assert len(_run("list", "--json", "--url", url).stdout.splitlines()) == 1


def test_feedback_is_kept_shown_and_superseded(url: str) -> None:
    first = _run("feedback", "dec_000001", "--domain", "code", "--by", "ann", "--url", url)
    note = ("--note", "a dose\x1b[31m in it")
    second = _run("feedback", "dec_000001", "--domain", "medical", *note, "--url", url)

    assert (first.exit_code, first.stdout) == (0, "dec_000001: code\n")
    assert second.exit_code == 0
    entry = msgspec.json.decode(
        _run("show", "dec_000001", "--json", "--url", url).stdout, type=Entry
    )
    assert [(one.domains, one.note) for one in entry.feedback] == [
        (("code",), ""),
        (("medical",), "a dose\x1b[31m in it"),
    ]
    assert entry.feedback[0].by == "ann"
    assert entry.feedback[1].by
    shown = _run("show", "dec_000001", "--url", url).stdout
    assert "a dose\\x1b[31m in it" in shown
    assert "\x1b" not in shown


def test_feedback_may_be_that_it_was_none_of_the_ten(url: str) -> None:
    assert _run("feedback", "dec_000002", "--none", "--url", url).exit_code == 0
    assert "none of the ten" in _run("show", "dec_000002", "--url", url).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("dec_000001",), 2, "--none"),
        (("dec_000001", "--none", "--domain", "code"), 2, "--none"),
        (("dec_000001", "--domain", "medcal"), 2, "medcal"),
        (("dec_000009", "--none"), 1, "no decision 'dec_000009'"),
        (("dec_", "--none"), 2, "the beginning of several"),
        (("dec_000001", "--none", "--note", "x" * 5000), 2, "4096 characters at most"),
    ],
)
def test_wrong_feedback_is_refused(
    url: str, arguments: tuple[str, ...], status: int, words: str
) -> None:
    result = _run("feedback", *arguments, "--url", url)

    assert result.exit_code == status
    assert words in result.stderr


def test_feedback_makes_no_log(tmp_path: Path) -> None:
    result = _run("feedback", "dec_1", "--none", "--url", f"sqlite:///{tmp_path}/none.db")

    assert result.exit_code == 2
    assert "there is no decision log at" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--domain", "medical:0.5"), 1),
        (("--executed", "speculative"), 2),
        (("--flag", "truncated"), 1),
        (("--flag", "open", "--flag", "truncated"), 0),
        (("--until", "1970-01-01T00:16:42Z"), 1),
        (("--team", "nobody"), 0),
        (("--backend", "local", "--policy", "ffff"), 3),
        (("--verifier", "exact", "--finish", "stop"), 2),
    ],
)
def test_a_list_takes_every_filter(url: str, options: tuple[str, ...], expected: int) -> None:
    found = _ids(_run("list", "--json", "--url", url, *options))
    counted = json.loads(_run("stats", "--all", "--json", "--url", url, *options).stdout)
    assert len(found) == expected
    assert sum(group["requests"] for group in counted["groups"]) == expected


def test_a_cursor_goes_on_where_the_page_ended(url: str) -> None:
    first = _run("list", "--json", "--limit", "2", "--url", url)
    cursor = first.stderr.split("--cursor ")[1].strip()
    rest = _run("list", "--json", "--limit", "2", "--cursor", cursor, "--url", url)
    assert _ids(first) + _ids(rest) == ["dec_000003", "dec_000002", "dec_000001"]
    assert rest.stderr == ""


def test_a_search_finds_ids_by_their_beginning_and_names_by_any_part(url: str) -> None:
    assert _ids(_run("search", "dec_000002", "--json", "--url", url)) == ["dec_000002"]
    assert _ids(_run("search", "EDIC", "--json", "--url", url)) == ["dec_000002"]
    assert _ids(_run("search", "EDIC", "--mode", "hybrid", "--json", "--url", url)) == []
    assert "dec_000002" in _run("search", "medic", "--url", url).stdout
    assert _run("search", "", "--url", url).exit_code == 2


def test_statistics_are_a_table_with_a_row_for_each_group(url: str) -> None:
    result = _run("stats", "--by", "rule", "--url", url)
    assert result.exit_code == 0
    assert {line.split()[0] for line in result.stdout.splitlines()[1:]} == {"code", "medical"}
    days = _run("stats", "--by", "day", "--by", "policy", "--url", url).stdout
    assert "1970-01-01" in days
    assert "f" * 12 in days
    assert "f" * 13 not in days


def test_no_name_forges_a_row_of_the_statistics(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    _fill(url, [decided(1, rule=HOSTILE), decision_record(2, caller=Caller(HOSTILE, HOSTILE))])
    for arguments in (
        ("stats", "--by", "rule", "--by", "caller", "--by", "team"),
        ("search", "x"),
        ("stats", "--by", "rule", "--json"),
    ):
        output = _run(*arguments, "--url", url).stdout
        assert all(c.isprintable() or c == "\n" for c in output)
        assert "\n[red]" not in output


def test_an_empty_log_has_no_statistics(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    _fill(url, [])
    assert _run("stats", "--url", url).exit_code == 0
    found = json.loads(_run("stats", "--json", "--url", url).stdout)
    assert found == {"by": ["domain", "mode"], "groups": [], "truncated": False}
