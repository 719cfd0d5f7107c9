"""Nothing is kept of a row that has ended: a short soak on a small random model."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.soak import GRAMMAR, Report, count_lost_draft_slots, count_lost_slots, soak
from decoders.cost import CostModel
from decoders.drafts.base import DraftRequest
from decoders.drafts.model import ModelDraftSource
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.grammar import GrammarCompiler
from decoders.loader import LoadedModel, load
from decoders.profile import Profile
from decoders.request import Ticket

CHEAP = Profile({(1, 1): 1.0, (1, 9): 1.1, (8, 8): 1.1, (8, 72): 1.5})
"""A machine on which drafts always pay, so that there are many."""


@pytest.fixture
def loaded(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), dtype="float32", device="cpu", num_slots=8, max_length=128)


@pytest.fixture
def engine(loaded: LoadedModel) -> Engine:
    return Engine(loaded.model, loaded.tokenizer, cost=CostModel(CHEAP))


@pytest.fixture
def draft_source(tiny_model: Path) -> ModelDraftSource:
    cut = load(
        str(tiny_model), dtype="float32", device="cpu", num_slots=8, max_length=128, num_layers=1
    )
    return ModelDraftSource(cut.model)


def test_nothing_is_kept_of_rows_that_have_ended(
    loaded: LoadedModel, engine: Engine, draft_source: ModelDraftSource
) -> None:
    source = SuffixDraftSource(corpus_tokens=200)
    vocabulary = loaded.tokenizer.vocabulary(loaded.model.vocab_size)
    grammar = GrammarCompiler(vocabulary, loaded.tokenizer.eos_ids).compile(GRAMMAR)
    sources: set[str] = set()
    num_constrained = 0
    kept: list[weakref.ref[Any]] = []

    def ended(ticket: Ticket) -> None:
        kept.extend((weakref.ref(ticket), weakref.ref(ticket.sequence), weakref.ref(ticket.noise)))
        assert ticket.error is None
        sources.update(ticket.stats.by_source)
        nonlocal num_constrained
        num_constrained += ticket.request.constraint is not None

    report = soak(
        engine,
        [source, draft_source],
        grammar,
        num_requests=120,
        num_warm_up=30,
        at_once=12,
        ended=ended,
    )
    gc.collect()

    assert len(kept) == 3 * 150
    assert [alive for alive in kept if alive() is not None] == []
    assert (report.lost_slots, engine.num_running, engine.num_waiting) == (0, 0, 0)
    assert report.lost_draft_slots == 0
    assert sources == {"suffix", "model"}
    assert 0 < num_constrained < 75
    assert 0 < report.cancelled < report.requests == 120
    assert source._rows == {}
    assert source._corpora is not None
    corpora = source._corpora._by_scope
    assert 0 < len(corpora) <= 3
    assert all(corpus.num_tokens <= 200 for corpus in corpora.values())
    assert all(rate >= 0 for rate in report.acceptance)


def test_a_lost_slot_is_seen(engine: Engine) -> None:
    assert count_lost_slots(engine) == 0

    engine._slots._slots[2].ticket = SimpleNamespace(follows=True)  # type: ignore[assignment]

    assert count_lost_slots(engine) == 1


def test_a_lost_slot_of_a_draft_model_is_seen(draft_source: ModelDraftSource) -> None:
    assert count_lost_draft_slots(draft_source, 8) == 0

    draft_source.propose([DraftRequest(5, (0,), 1)])

    assert count_lost_draft_slots(draft_source, 8) == 1


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
    assert found(lost_draft_slots=2) == ["2 slots of a draft model are lost"]
    assert found(acceptance=[0.5, 0.5, 0.5, 0.44]) == [
        "the acceptance has fallen from 0.500 to 0.440"
    ]
