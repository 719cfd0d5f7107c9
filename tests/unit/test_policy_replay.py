"""``draftgate policy replay``: what a policy would have decided for the requests in the log."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord, OutcomeRecord
from gateway.audit.store import DecisionStore
from gateway.cell import decided_cell
from gateway.cli import main
from gateway.execution import Execution
from gateway.replay import NO_TEXT, TOKENS_OR_TEXT, replay
from gateway.routing.decide import decide
from gateway.routing.demotion import Demotions
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.testing import given_signals
from gateway.types import Caller, ChatRequest, Decision, Mode, Signals, Usage
from tests.records import decision_record, outcome_record

OLD = """\
version: 1
name: p
rules:
  - {id: medical, when: {domain: {is: medical, min_probability: 0.1}}, ban: [speculative, hybrid]}
  - {id: code, when: {domain: {is: code, min_probability: 0.6}}, decide: {mode: speculative}}
"""
TEXT_BAN = "  - {id: words, when: {keyword: [dose]}, ban: [speculative, hybrid]}\n"


def parse(text: str = OLD) -> Policy:
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


def logged(number: int, signals: Signals | dict[str, float], **changes: Any) -> DecisionRecord:
    """A record with what the old policy decides."""
    given = given_signals(signals) if isinstance(signals, dict) else signals
    record = decision_record(number, signals=given, **changes)
    wish = record.request.requested_mode
    request = ChatRequest(model="small", requested_mode=Mode(wish) if wish else None)
    decision: Decision = decide(
        parse(), given, request, record.caller, prompt_tokens=12, now=_moment(record)
    )
    return msgspec.structs.replace(record, decision=decision)


def _moment(record: DecisionRecord) -> datetime:
    return datetime.fromtimestamp(record.created_at, UTC)


def entries(*records: DecisionRecord) -> list[Entry]:
    return [Entry(record, None) for record in records]


def test_requests_that_change_are_counted_by_domain_and_caller() -> None:
    report = replay(
        parse(OLD.replace("0.1}", "0.25}")),
        entries(
            logged(1, {"code": 0.9, "medical": 0.2}),
            logged(2, {"code": 0.7, "medical": 0.1}, caller=Caller("bob")),
            logged(3, {"medical": 0.6, "code": 0.6}),
            logged(4, {"code": 0.9}),
        ),
    )

    assert (report.requests, report.unchanged) == (4, 2)
    assert [each.decision_id for each in report.changed] == ["dec_000001", "dec_000002"]
    assert [str(effect) for effect in report.changed[0].effects] == ["standard → speculative"]
    assert (report.changed[0].old_rule, report.changed[0].new_rule) == ("medical", "code")
    assert report.changed[0].looser
    assert report.by_domain == {"code": 2}
    assert report.by_caller == {"ada": 1, "bob": 1}
    assert report.unknown == ()


def test_the_answers_of_best_of_count_as_they_did_when_they_were_decoded() -> None:
    rule = "  - {id: many, when: {n: {min: 5}}, decide: {mode: speculative}}\n"
    record = logged(1, {"legal": 0.9})
    request = msgspec.structs.replace(record.request, best_of=5)
    report = replay(parse(OLD + rule), entries(msgspec.structs.replace(record, request=request)))

    assert [each.new_rule for each in report.changed] == ["many"]


def test_what_text_would_settle_is_not_guessed() -> None:
    report = replay(
        parse(OLD + TEXT_BAN),
        entries(logged(1, {"code": 0.9}), logged(2, {"medical": 0.9}), logged(3, {"legal": 0.9})),
    )

    # Only of the first request would the word have made a difference.
    assert [(each.decision_id, each.unknown) for each in report.unknown] == [
        ("dec_000001", NO_TEXT)
    ]
    assert report.changed == ()
    assert report.unchanged == 2


def test_what_headers_would_settle_is_not_guessed() -> None:
    rule = "  - {id: pilot, when: {header: {name: X-A, is: b}}, decide: {mode: speculative}}\n"
    report = replay(parse(OLD + rule), entries(logged(1, {"code": 0.9}), logged(2, {"legal": 0.9})))

    assert [each.decision_id for each in report.unknown] == ["dec_000002"]
    assert report.unchanged == 1


def test_a_change_that_is_sure_whatever_the_text_was_is_one() -> None:
    stop = "  - {id: stop, when: {domain: {is: code}}, ban: [speculative]}\n"
    report = replay(parse(OLD + TEXT_BAN + stop), entries(logged(1, {"code": 0.9})))

    assert [str(effect) for effect in report.changed[0].effects] == ["speculative → standard"]
    assert report.unknown == ()


def test_the_policy_that_decided_changes_nothing_even_with_conditions_on_text() -> None:
    text = OLD + TEXT_BAN
    record = logged(1, {"code": 0.9})
    decision = msgspec.structs.replace(record.decision, policy_hash=parse(text).hash)
    report = replay(parse(text), entries(msgspec.structs.replace(record, decision=decision)))

    assert (report.unchanged, report.unknown) == (1, ())


def test_a_prompt_that_may_have_been_token_ids_is_not_guessed() -> None:
    signals = msgspec.structs.replace(given_signals({"code": 0.9}), scored_tokens=0, total_tokens=0)
    record = logged(1, signals)
    request = msgspec.structs.replace(record.request, endpoint="completions")
    report = replay(
        parse(OLD + "# new\n"), entries(msgspec.structs.replace(record, request=request))
    )

    assert report.unknown[0].unknown == TOKENS_OR_TEXT


@pytest.mark.parametrize(
    "signals",
    [
        msgspec.structs.replace(given_signals({"code": 0.9}), error="domain: TimeoutError"),
        msgspec.structs.replace(given_signals({"code": 0.9}), total_tokens=9),
        Signals(),
    ],
)
def test_signals_that_could_not_be_trusted_stay_so(signals: Signals) -> None:
    report = replay(parse(OLD + TEXT_BAN), entries(logged(1, signals)))

    assert (report.unchanged, report.unknown) == (1, ())


def test_the_wish_of_the_caller_and_the_time_of_the_request_count() -> None:
    record = logged(1, {"code": 0.9})
    request = msgspec.structs.replace(record.request, requested_mode="standard")
    asked = logged(2, {"code": 0.9}, request=request)
    free = OLD.replace("{mode: speculative}}", "{mode: speculative}, expires: 1970-01-02}")
    report = replay(parse(free), entries(record, asked, logged(3, {"code": 0.9}, created_at=1e6)))

    assert [each.decision_id for each in report.changed] == ["dec_000003"]


def test_what_evidence_had_demoted_stays_demoted() -> None:
    record = logged(1, {"code": 0.9})
    cell = decided_cell(record.signals, "small", record.decision)
    demotions = Demotions({cell.id: "since then, for this"})
    decision, line = demotions.apply(record.decision, record.signals, ChatRequest(model="small"))
    assert line is not None
    decision = msgspec.structs.replace(decision, trace=(*decision.trace, line))
    rule = "  - {id: legal, when: {domain: {is: legal}}, ban: [speculative]}\n"
    report = replay(parse(OLD + rule), entries(msgspec.structs.replace(record, decision=decision)))

    assert (decision.mode, report.unchanged) == (Mode.STANDARD, 1)


def outcome(number: int, mode: Mode, tokens: int, seconds: float) -> OutcomeRecord:
    execution = Execution(mode=mode, usage=Usage(5, tokens), decode_seconds=seconds)
    return outcome_record(number, execution=execution)


def test_the_change_of_speed_is_estimated_from_medians_or_unknown() -> None:
    banned = [
        Entry(logged(i, {"code": 0.9, "medical": 0.2}), outcome(i, Mode.STANDARD, 101, 10.0))
        for i in range(5)
    ]
    fast = [
        Entry(logged(10 + i, {"code": 0.9}), outcome(10 + i, Mode.SPECULATIVE, 101, 5.0))
        for i in range(5)
    ]
    new = parse(OLD.replace("0.1}", "0.25}"))
    known = replay(new, [*banned, *fast]).speed
    few = replay(new, [*banned, *fast[:4]]).speed

    assert (known.requests, known.unknown) == (5, 0)
    assert known.tokens_per_second == {"standard code": 10.0, "speculative code": 20.0}
    assert known.old_seconds == pytest.approx(50.5)
    assert known.new_seconds == pytest.approx(25.25)
    assert (few.requests, few.unknown) == (0, 5)


@pytest.fixture
def log(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/decisions.db"
    _fill(
        url,
        [
            logged(1, {"code": 0.9, "medical": 0.2}),
            logged(2, {"code": 0.9}),
            logged(3, {"code": 0.8, "medical": 0.15}, created_at=2e9),
        ],
    )
    return url


def _fill(url: str, records: Sequence[DecisionRecord]) -> None:
    async def run() -> None:
        store = await DecisionStore.open(url)
        for record in records:
            await store.append_decision(record)
        await store.aclose()

    asyncio.run(run())


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(OLD.replace("0.1}", "0.25}"))
    return path


def draftgate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", "replay", *map(str, arguments)])


def test_replay_reads_the_log_and_says_what_would_change(log: str, policy_file: Path) -> None:
    result = draftgate(policy_file, "--from", log)

    assert result.exit_code == 0, result.output
    assert "dec_000003  looser  standard → speculative (was medical, now code)" in result.stdout
    assert "3 requests: 2 would change, 1 would not, 0 cannot be told." in result.stdout
    assert "By domain: code 2." in result.stdout
    assert "By caller: ada 2." in result.stdout
    assert "Speed: unknown" in result.stdout
    assert draftgate(policy_file, "--from", log, "--fail-on-looser").exit_code == 1


def test_replay_takes_the_newest_and_can_be_limited(log: str, policy_file: Path) -> None:
    one = json.loads(draftgate(policy_file, "--from", log, "--limit", 1, "--json").stdout)
    late = json.loads(
        draftgate(policy_file, "--from", log, "--since", "2030-01-01", "--json").stdout
    )

    assert one == late
    assert [each["decision_id"] for each in one["changed"]] == ["dec_000003"]
    assert one["changed"][0]["effects"][0]["looser"] is True


def test_replay_finds_the_configured_log(
    log: str, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTGATE_DATABASE_URL", log)

    assert "3 requests" in draftgate(policy_file, "--from", "decisions").stdout


def test_without_a_log_or_a_policy_replay_is_bad_input(tmp_path: Path, policy_file: Path) -> None:
    no_log = draftgate(policy_file, "--from", f"sqlite:///{tmp_path}/none.db")
    no_policy = draftgate(tmp_path / "none.yaml")

    assert (no_log.exit_code, no_policy.exit_code) == (2, 2)
    assert "none.yaml: no such file" in no_policy.stderr
