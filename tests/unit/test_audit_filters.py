from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, timedelta, timezone
from typing import Any

import msgspec
import pytest

from gateway.audit.filters import FLAGS, MAX_TEXT, Filters, Likely, parse
from gateway.audit.query import DecisionReader
from gateway.audit.record import DecisionRecord, Feedback, OutcomeRecord, Timings
from gateway.audit.retention import Limits
from gateway.audit.statistics import DIMENSIONS, Group, Quantiles
from gateway.audit.store import DecisionStore
from gateway.errors import InvalidRequest
from gateway.execution import Execution
from gateway.types import Caller, FinishReason, Mode, Signal, Signals, Usage
from tests.databases import LogDatabase, take_back
from tests.records import decided, decision_record, outcome_record


@pytest.fixture
async def store(log_database: LogDatabase) -> AsyncIterator[DecisionStore]:
    store = await DecisionStore.open(log_database.url)
    yield store
    await store.aclose()


@pytest.fixture
async def reader(store: DecisionStore, log_database: LogDatabase) -> AsyncIterator[DecisionReader]:
    reader = await DecisionReader.open(log_database.url)
    yield reader
    await reader.aclose()


async def _ids(reader: DecisionReader, **filters: Any) -> set[int]:
    page = await reader.list(Filters(**filters))
    return {int(entry.decision.decision_id.removeprefix("dec_")) for entry in page.entries}


def _execution(**changes: Any) -> Execution:
    return msgspec.structs.replace(outcome_record().execution, **changes)


def _request(**changes: Any) -> Any:
    return msgspec.structs.replace(decision_record().request, **changes)


def _signals(*scores: tuple[str, float], **changes: Any) -> Signals:
    items = tuple(Signal("domain", name, score, "domain") for name, score in scores)
    return Signals(items=items, **changes)


def _log() -> Iterator[DecisionRecord | OutcomeRecord | Feedback]:
    """One request for each thing that can be looked for, told apart by its number."""
    yield decision_record(0, request=_request(stream=False))
    yield decision_record(1, caller=Caller(id="bob", team="law"))
    yield decision_record(2, signals=_signals(("medical", 0.4), ("code", 0.5)))
    yield decided(3, mode=Mode.STANDARD, policy_hash="ab" * 32)
    yield decision_record(4, backend="big", request=_request(model="large", digest="c0ffee" * 8))
    yield decided(5, rule="100%_Support", deny="No.")
    yield decision_record(6, signals=_signals(scored_tokens=1, total_tokens=2))
    yield decision_record(7, request_id="req_x7")
    yield outcome_record(1, attestation="attestation_failed")
    yield outcome_record(2, execution=_execution(mode=Mode.STANDARD, tightened_by="probe"))
    yield outcome_record(3, execution=_execution(verifier_class="lossy", mode=Mode.HYBRID))
    yield outcome_record(4, finish_reasons=(FinishReason.LENGTH, FinishReason.STOP))
    yield outcome_record(5, error="policy_denied: No.", finish_reasons=())
    yield outcome_record(6, interrupted=True, error="interrupted", finish_reasons=())
    yield outcome_record(7, finish_reasons=(FinishReason.TOOL_CALLS,))
    yield Feedback(
        decision_id="dec_000007", given_at=1.0, by="ann", domains=("code",), note="A Dose\nof it"
    )


async def _append(store: DecisionStore, record: DecisionRecord | OutcomeRecord | Feedback) -> None:
    if isinstance(record, DecisionRecord):
        await store.append_decision(record)
    elif isinstance(record, OutcomeRecord):
        await store.append_outcome(record)
    else:
        await store.append_feedback(record)


async def _write(store: DecisionStore) -> None:
    for record in _log():
        await _append(store, record)


EXPECTED: list[tuple[dict[str, Any], set[int]]] = [
    ({"caller": "bob"}, {1}),
    ({"team": "law"}, {1}),
    ({"domain": "medical"}, set()),
    ({"domain": Likely("medical", 0.4)}, {2}),
    ({"domain": Likely("medical", 0.41)}, set()),
    ({"domain": Likely("code", 0.0)}, {0, 1, 2, 3, 4, 5, 7}),
    ({"mode": Mode.STANDARD}, {3}),
    ({"executed": Mode.STANDARD}, {2}),
    ({"executed": Mode.HYBRID, "mode": Mode.STANDARD}, {3}),
    ({"policy": "abab"}, {3}),
    ({"policy": "ab%"}, set()),
    ({"model": "large"}, {4}),
    ({"backend": "big"}, {4}),
    ({"rule": "100%_Support"}, {5}),
    ({"verifier": "lossy"}, {3}),
    ({"finish": FinishReason.STOP}, {1, 2, 3, 4}),
    ({"finish": FinishReason.LENGTH}, {4}),
    ({"flags": ("attestation_failed",)}, {1}),
    ({"flags": ("tightened",)}, {2}),
    ({"flags": ("interrupted",)}, {6}),
    ({"flags": ("error",)}, {5, 6}),
    ({"flags": ("lossy",)}, {3}),
    ({"flags": ("truncated",)}, {6}),
    ({"flags": ("denied",)}, {5}),
    ({"flags": ("feedback",)}, {7}),
    ({"flags": ("streamed",)}, {1, 2, 3, 4, 5, 6, 7}),
    ({"flags": ("open",)}, {0}),
    ({"flags": ("error", "denied")}, {5}),
    ({"text": "dec_000004"}, {4}),
    ({"text": "req_x"}, {7}),
    ({"text": "coffee"}, set()),
    ({"text": "c0ffeec0"}, {4}),
    ({"text": "BO"}, {1}),
    ({"text": "%_sup"}, {5}),
    ({"text": "dose"}, {7}),
    ({"text": "domains"}, set()),
    ({"text": "%"}, {5}),
    ({"text": "\0' OR 1=1 --"}, set()),
]


async def test_each_filter_finds_just_what_it_names(
    store: DecisionStore, reader: DecisionReader
) -> None:
    await _write(store)
    found = [(filters, await _ids(reader, **filters)) for filters, _ in EXPECTED]
    assert found == EXPECTED
    assert {flag for filters, _ in EXPECTED for flag in filters.get("flags", ())} == set(FLAGS)


async def test_an_older_log_is_indexed_when_it_is_brought_up_to_date(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await _write(store)
    await store.aclose()
    wanted = log_database.run("SELECT * FROM facets ORDER BY seq")
    take_back(log_database, "0004")
    # A record that cannot be read must be found all the same, for somebody to hear of it.
    broken = "UPDATE decisions SET document = '{' WHERE decision_id = 'dec_000001'"
    log_database.run(broken)

    again = await DecisionStore.open(log_database.url)
    await again.aclose()

    found = log_database.run("SELECT * FROM facets ORDER BY seq")
    assert [row[1] for row in found] == [row[1] for row in wanted]
    # The first one was still open, and is closed by the start.
    assert found[2:] == wanted[2:]
    assert log_database.run("SELECT interrupted FROM facets WHERE decision_id = 'dec_000000'") in (
        [(True,)],
        [(1,)],
    )
    assert log_database.run("SELECT caller FROM facets WHERE decision_id = 'dec_000001'") == [
        ("bob",)
    ]


async def test_the_cursors_meet_every_entry_of_a_filter_once_while_new_ones_arrive(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number in range(20):
        await store.append_decision(decision_record(number, created_at=float(number // 7)))
        await store.append_decision(decided(100 + number, rule="other"))
    met: list[str] = []
    cursor = None
    for new in range(200, 230):
        page = await reader.list(Filters(rule="code"), limit=3, cursor=cursor)
        met += [entry.decision.decision_id for entry in page.entries]
        await store.append_decision(decision_record(new))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert met == [f"dec_{number:06d}" for number in reversed(range(20))]


async def test_statistics_count_what_the_filters_leave(
    store: DecisionStore, reader: DecisionReader
) -> None:
    await _write(store)
    found = await reader.stats(Filters(flags=("streamed",)), by=("executed",))
    assert found.by == ("executed",)
    assert {group.by["executed"]: group.requests for group in found.groups} == {
        "speculative": 5,
        "standard": 1,
        "hybrid": 1,
    }
    largest = found.groups[0]
    assert largest == Group(
        by={"executed": "speculative"},
        requests=5,
        open=0,
        prompt_tokens=60,
        completion_tokens=100,
        draft_tokens=80,
        accepted_tokens=60,
        acceptance_rate=0.75,
        decode_tokens=95,
        decode_seconds=pytest.approx(5 * 0.35),
        attestation_failed=1,
        tightened=0,
        denied=1,
        errors=1,
        first_token=Quantiles(0.05, 0.05),
        total=Quantiles(0.4, 0.4),
        gateway=Quantiles(0.003, 0.003),
    )


async def test_quantiles_are_those_of_each_group_by_nearest_rank(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number in range(40):
        rule = "fast" if number % 2 else "slow"
        seconds = (number // 2 + 1) * (1.0 if number % 2 else 10.0)
        await store.append_decision(decided(number, rule=rule))
        timings = Timings(total=seconds, first_token=None if number == 1 else seconds)
        await store.append_outcome(outcome_record(number, timings=timings))
    found = await reader.stats(by=("rule",))
    assert {g.by["rule"]: (g.total, g.first_token) for g in found.groups} == {
        "fast": (Quantiles(10.0, 19.0), Quantiles(11.0, 20.0)),
        "slow": (Quantiles(100.0, 190.0), Quantiles(100.0, 190.0)),
    }


async def test_without_quantiles_all_else_is_the_same(
    store: DecisionStore, reader: DecisionReader
) -> None:
    await _write(store)
    full, plain = await reader.stats(), await reader.stats(quantiles=False)
    none = {"first_token": Quantiles(), "total": Quantiles(), "gateway": Quantiles()}
    assert plain.groups == tuple(msgspec.structs.replace(group, **none) for group in full.groups)
    assert all(group.total.p50 for group in full.groups if group.open < group.requests)


async def test_only_tokens_after_the_first_text_are_in_the_decoding_time(
    store: DecisionStore, reader: DecisionReader
) -> None:
    for number, (tokens, first) in enumerate(((0, None), (1, 0.1), (5, 0.1), (3, None))):
        await store.append_decision(decision_record(number))
        outcome = outcome_record(
            number,
            execution=_execution(usage=Usage(1, tokens)),
            timings=Timings(total=0.5, first_token=first),
        )
        await store.append_outcome(outcome)
    (group,) = (await reader.stats(by=())).groups
    assert (group.completion_tokens, group.decode_tokens) == (9, 4)


async def test_statistics_of_nothing_and_of_requests_that_still_run(
    store: DecisionStore, reader: DecisionReader
) -> None:
    assert (await reader.stats()).groups == ()
    assert (await reader.stats(by=())).groups == ()
    await store.append_decision(decision_record(created_at=86400 * 3 + 7200.5))
    (group,) = (await reader.stats(by=())).groups
    assert (group.requests, group.open, group.completion_tokens) == (1, 1, 0)
    assert (group.total, group.acceptance_rate) == (Quantiles(), None)
    (group,) = (await reader.stats(by=tuple(DIMENSIONS))).groups
    assert (group.by["day"], group.by["hour"]) == (86400 * 3, 86400 * 3 + 7200)
    assert (group.by["verifier"], group.by["domain"]) == (None, "code")


async def test_an_unknown_dimension_is_named(reader: DecisionReader) -> None:
    with pytest.raises(InvalidRequest, match="Cannot group by 'colour'; known: domain, mode"):
        await reader.stats(by=("domain", "colour"))


async def test_what_retention_drops_is_no_longer_found(
    store: DecisionStore, log_database: LogDatabase
) -> None:
    await _write(store)
    await store.append_decision(decision_record(8))
    for number in (0, 8):
        await store.append_outcome(outcome_record(number))
    assert await store.prune(Limits(seconds=-1.0)) > 0
    assert log_database.run("SELECT decision_id FROM decisions") == []
    assert log_database.run("SELECT decision_id FROM facets") == []


def test_people_write_filters_down_in_words() -> None:
    pairs = [
        ("since", "2026-01-31"),
        ("until", "2026-01-31T12:00:00+01:00"),
        ("domain", "medical:0.25"),
        ("mode", "hybrid"),
        ("executed", "standard"),
        ("policy", "ABCDEF01"),
        ("verifier", "exact"),
        ("finish", "tool_calls"),
        ("flag", "error,denied"),
        ("flag", "error"),
    ]
    assert parse(pairs) == Filters(
        since=1769817600.0,
        until=1769857200.0,
        domain=Likely("medical", 0.25),
        mode=Mode.HYBRID,
        executed=Mode.STANDARD,
        policy="abcdef01",
        verifier="exact",
        finish=FinishReason.TOOL_CALLS,
        flags=("error", "denied"),
    )
    assert parse([]) == Filters()
    east = parse([("since", "2026-01-31")], zone=timezone(timedelta(hours=1)))
    assert east.since == 1769817600.0 - 3600


def test_an_age_is_counted_back_from_now() -> None:
    since = parse([("since", "2h")], zone=UTC).since
    assert since is not None
    assert 7195 < time.time() - since < 7260


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("since", "yesterday", "neither an age like 90m"),
        ("since", "9" * 400 + "d", "neither an age"),
        ("until", "", "neither an age"),
        ("since", "٣d", "neither an age"),
        ("caller", "", "needs a value"),
        ("rule", "r" * (MAX_TEXT + 1), "at most 256 characters"),
        ("domain", "medical:", "like medical:0.3"),
        ("domain", "medical:1.5", "like medical:0.3"),
        ("domain", "medical:nan", "like medical:0.3"),
        ("domain", 'me"dical:0.5', "like medical:0.3"),
        ("mode", "fast", "it may be standard, speculative, hybrid"),
        ("policy", "abc", "at least four digits"),
        ("policy", "abcx", "at least four digits"),
        ("verifier", "none", "it may be exact, lossy"),
        ("finish", "ended", "it may be stop, length"),
        ("flag", "failed", "it may be attestation_failed, tightened"),
        ("colour", "red", "Unknown filter 'colour'; known: since, until"),
    ],
)
def test_a_wrong_filter_is_named_with_what_it_may_be(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse([(name, value)])
    assert caught.value.param == name


def test_a_filter_given_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'mode' is given twice"):
        parse([("mode", "hybrid"), ("mode", "standard")])


async def test_usage_of_any_size_adds_up(store: DecisionStore, reader: DecisionReader) -> None:
    usage = _execution(usage=Usage(2**40, 2**40))
    for number in range(3):
        await store.append_decision(decision_record(number))
        await store.append_outcome(outcome_record(number, execution=usage))
    (group,) = (await reader.stats(by=())).groups
    assert group.completion_tokens == 3 * 2**40
