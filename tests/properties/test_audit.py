from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Sequence

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.audit import document, facets
from gateway.audit.attestation import attest
from gateway.audit.filters import Filters
from gateway.audit.query import DecisionReader
from gateway.audit.store import DecisionStore
from gateway.errors import InvalidRequest
from gateway.execution import Execution
from gateway.types import (
    Caller,
    Decision,
    DraftSetting,
    FinishReason,
    Mode,
    RuleTrace,
    Sampling,
    Signal,
    Signals,
)
from tests.records import decision_record, outcome_record

TEXT = st.text(max_size=40)
ANY_TEXT = st.text(st.characters(), max_size=40)  # lone surrogates too
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SIGNALS = st.builds(
    Signals,
    items=st.lists(st.builds(Signal, TEXT, TEXT, FINITE, TEXT), max_size=3).map(tuple),
    scored_tokens=st.integers(0, 2**40),
    classifiers=st.dictionaries(TEXT, TEXT, max_size=3),
    error=st.none() | TEXT,
)
DECISIONS = st.builds(
    Decision,
    mode=st.sampled_from(Mode),
    rule=TEXT,
    policy=TEXT,
    policy_hash=TEXT,
    draft=st.none() | st.builds(DraftSetting, TEXT, st.integers(1, 64)),
    bans=st.dictionaries(st.sampled_from([mode.value for mode in Mode]), TEXT),
    trace=st.lists(st.builds(RuleTrace, TEXT, TEXT, st.booleans(), TEXT), max_size=3).map(tuple),
)
SAMPLING = st.builds(
    Sampling,
    temperature=FINITE,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(TEXT, max_size=3).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 200_000), FINITE, max_size=3),
)
EXECUTIONS = st.builds(
    Execution,
    mode=st.none() | st.sampled_from(Mode),
    num_draft_tokens=st.integers(0, 50),
    drafts_by_source=st.dictionaries(TEXT, st.tuples(st.integers(0), st.integers(0)), max_size=2),
    first_draft_position=st.none() | st.integers(0, 50),
    queue_seconds=FINITE,
)


def _cursor(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


@given(TEXT, SIGNALS, DECISIONS, SAMPLING)
def test_a_decision_record_is_read_back_as_it_was(
    text: str, signals: Signals, decision: Decision, sampling: Sampling
) -> None:
    record = decision_record(
        caller=Caller(id=text), signals=signals, decision=decision, sampling=sampling
    )
    assert record == document.decode_decision(document.encode(record))


@given(st.lists(st.sampled_from(FinishReason), max_size=4).map(tuple), EXECUTIONS, TEXT)
def test_an_outcome_record_is_read_back_as_it_was(
    reasons: tuple[FinishReason, ...], execution: Execution, error: str
) -> None:
    record = outcome_record(finish_reasons=reasons, execution=execution, error=error)
    assert record == document.decode_outcome(document.encode(record))


@given(ANY_TEXT)
def test_whatever_text_an_error_brings_its_outcome_can_be_written(error: str) -> None:
    text = document.encode(outcome_record(error=error))
    assert document.decode_outcome(text).error == error.encode("utf-8", "replace").decode()


@given(st.text(st.characters(), max_size=600))
@example("\0a\0\ud800")
def test_an_index_keeps_a_short_clean_copy_of_any_text(text: str) -> None:
    kept = facets.key(text)
    assert len(kept) <= facets.KEY_LENGTH
    assert "\0" not in kept
    assert kept == facets.key(kept)
    kept.encode("utf-8")


@given(DECISIONS, EXECUTIONS)
def test_attestation_never_passes_a_draft_token_that_was_not_decided(
    decision: Decision, execution: Execution
) -> None:
    drafted = execution.num_draft_tokens > 0
    if (decision.draft is None and drafted) or execution.mode not in (None, decision.mode):
        assert attest(decision_record(decision=decision), execution) == "attestation_failed"


@given(DECISIONS)
def test_attestation_passes_what_never_ran(decision: Decision) -> None:
    assert attest(decision_record(decision=decision), Execution()) == "ok"


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.sampled_from([0.0, -1.5, 1.0, 1e-300, 1e17, 2.0**0.5]), max_size=30),
    st.integers(1, 31),
)
def test_paging_meets_every_entry_once_in_one_order(times: Sequence[float], limit: int) -> None:
    async def page_through(url: str) -> list[tuple[float, str]]:
        store = await DecisionStore.open(url)
        for number, created_at in enumerate(times):
            await store.append_decision(decision_record(number, created_at=created_at))
        reader = await DecisionReader.open(url)
        met = []
        cursor = None
        while True:
            page = await reader.list(limit=limit, cursor=cursor)
            met += [(e.decision.created_at, e.decision.decision_id) for e in page.entries]
            cursor = page.next_cursor
            if cursor is None:
                break
        await reader.aclose()
        await store.aclose()
        return met

    with tempfile.TemporaryDirectory() as directory:
        met = asyncio.run(page_through(f"sqlite:///{directory}/x.db"))
    wanted = [(created_at, f"dec_{number:06d}") for number, created_at in enumerate(times)]
    assert sorted(wanted, reverse=True) == met


def test_any_text_given_as_a_cursor_is_read_or_refused() -> None:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        url = f"sqlite:///{directory}/x.db"
        store = runner.run(DecisionStore.open(url))
        reader = runner.run(DecisionReader.open(url))

        @settings(deadline=None, max_examples=50)
        @given(
            st.text(st.characters(), max_size=30)
            | st.recursive(
                st.none() | st.integers(-(2**70), 2**70) | FINITE,
                lambda inner: st.lists(inner, max_size=3),
            ).map(_cursor)
        )
        def check(cursor: str) -> None:
            try:
                page = runner.run(reader.list(Filters(), cursor=cursor))
            except InvalidRequest as error:
                outcome: object = error.param
            else:
                outcome = page.entries
            assert outcome in ("cursor", ())

        check()
        runner.run(reader.aclose())
        runner.run(store.aclose())
