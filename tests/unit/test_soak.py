"""Nothing is kept of a row that has ended: a short soak on a small random model."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.soak import Report, count_lost_slots, soak
from decoders.cost import CostModel
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.loader import load
from decoders.profile import Profile
from decoders.request import Ticket

CHEAP = Profile({(1, 1): 1.0, (1, 9): 1.1, (8, 8): 1.1, (8, 72): 1.5})
"""A machine on which drafts always pay, so that there are many."""


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    loaded = load(str(tiny_model), dtype="float32", device="cpu", num_slots=8, max_length=128)
    return Engine(loaded.model, loaded.tokenizer, cost=CostModel(CHEAP))


def test_nothing_is_kept_of_rows_that_have_ended(engine: Engine) -> None:
    source = SuffixDraftSource(corpus_tokens=200)
    kept: list[weakref.ref[Any]] = []

    def ended(ticket: Ticket) -> None:
        kept.extend((weakref.ref(ticket), weakref.ref(ticket.sequence), weakref.ref(ticket.noise)))
        assert ticket.error is None

    report = soak(engine, source, num_requests=120, num_warm_up=30, at_once=12, ended=ended)
    gc.collect()

    assert len(kept) == 3 * 150
    assert [alive for alive in kept if alive() is not None] == []
    assert (report.lost_slots, engine.num_running, engine.num_waiting) == (0, 0, 0)
    assert 0 < report.cancelled < report.requests == 120
    assert source._rows == {}
    assert source._corpora is not None
    assert [corpus.num_tokens <= 200 for corpus in source._corpora._by_scope.values()] == [True] * 3
    assert all(rate >= 0 for rate in report.acceptance)


def test_a_lost_slot_is_seen(engine: Engine) -> None:
    assert count_lost_slots(engine) == 0

    engine._slots._slots[2].ticket = SimpleNamespace(follows=True)  # type: ignore[assignment]

    assert count_lost_slots(engine) == 1


def found(**other: Any) -> list[str]:
    healthy = {
        "requests": 4,
        "cancelled": 0,
        "output_tokens": 4,
        "seconds": 1.0,
        "rss_mb_after_warm_up": 100.0,
        "rss_mb_at_end": 101.9,
        "lost_slots": 0,
        "acceptance": [0.5, 0.1, 0.9, 0.46],
    }
    return Report(**{**healthy, **other}).problems()


def test_what_must_not_be_is_named() -> None:
    assert found() == []
    assert found(rss_mb_at_end=102.1) == ["memory has grown by 2.1%"]
    assert found(lost_slots=1) == ["1 slots are lost"]
    assert found(acceptance=[0.5, 0.5, 0.5, 0.44]) == [
        "the acceptance has fallen from 0.500 to 0.440"
    ]
