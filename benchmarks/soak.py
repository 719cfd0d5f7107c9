"""Many short requests through one engine: does anything grow, leak or wear off?

Modes, sources, verifiers, grammars, temperatures, lengths and cancellations are drawn at random,
several requests at once; one source is the model's own first layers. Each quarter of the run asks
the same requests, in another order and with other cancellations, so that the quarters can be
compared. Exits with 1 when memory has grown, a slot is lost, or drafts are accepted less often at
the end than at the beginning.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from decoders import (
    CostModel,
    Engine,
    ModelDraftSource,
    SamplingParams,
    SuffixDraftSource,
    load,
    load_draft,
    load_profile,
)
from decoders.drafts.base import DraftRequest, DraftSource
from decoders.gates import EntropyGate, StandardFirst
from decoders.grammar import CompiledGrammar, Grammar, GrammarCompiler, GrammarKind
from decoders.models.base import Tokenizer
from decoders.modes import Hybrid, Mode, Speculative, Standard
from decoders.params import FinishReason
from decoders.request import Request, Ticket
from decoders.verifiers.base import Verifier
from decoders.verifiers.conservative import ConservativeVerifier
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from decoders.verifiers.typical import TypicalVerifier

QUARTERS = 4
MAX_GROWTH = 0.02
MIN_ACCEPTANCE = 0.9
"""Of the last quarter, as a share of the first's."""
CANCELLED = 0.15
CONSTRAINED = 0.2
GRAMMAR = Grammar(GrammarKind.REGEX, "[0-9]{2,6}( [0-9]{2,6})*")
_WORDS = (
    "red green blue north south east west one two three four spring summer autumn winter".split()
)
_VERIFIERS: Sequence[Callable[[], Verifier]] = (
    CoupledVerifier,
    RejectionVerifier,
    lambda: TypicalVerifier(max_distortion=0.5),
    lambda: ConservativeVerifier(max_distortion=0.5),
)


@dataclass(frozen=True)
class Report:
    """What one soak has found."""

    requests: int
    cancelled: int
    output_tokens: int
    seconds: float
    rss_mb_after_warm_up: float
    rss_mb_at_end: float
    lost_slots: int
    acceptance: list[float] = field(default_factory=list)
    """Accepted / proposed draft tokens, one number a quarter; -1 where nothing was proposed."""
    lost_draft_slots: int = 0
    """Of the draft models."""

    @property
    def growth(self) -> float:
        """By which share of itself the memory has grown since the warm-up."""
        return self.rss_mb_at_end / self.rss_mb_after_warm_up - 1

    def problems(self) -> list[str]:
        """What must not be, in words."""
        found = []
        if self.growth > MAX_GROWTH:
            found.append(f"memory has grown by {self.growth:.1%}")
        if self.lost_slots:
            found.append(f"{self.lost_slots} slots are lost")
        if self.lost_draft_slots:
            found.append(f"{self.lost_draft_slots} slots of a draft model are lost")
        if self.acceptance[-1] < MIN_ACCEPTANCE * self.acceptance[0]:
            first, last = self.acceptance[0], self.acceptance[-1]
            found.append(f"the acceptance has fallen from {first:.3f} to {last:.3f}")
        return found


class Deck:
    """Requests drawn at random, the same for the same seed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Sequence[DraftSource],
        grammar: CompiledGrammar,
        *,
        seed: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._sources = sources
        self._grammar = grammar
        self._chance = random.Random(seed)

    def draw(self, count: int) -> list[Request]:
        """The next ``count``. A lossy verifier keeps an account, so each can be decoded once."""
        return [self._draw(seed) for seed in range(count)]

    def _draw(self, seed: int) -> Request:
        chance = self._chance
        phrase = " ".join(chance.choices(_WORDS, k=chance.randint(2, 5)))
        # A grammar says itself where an answer may end.
        free = chance.random() >= CONSTRAINED
        params = SamplingParams(
            max_tokens=chance.randint(8, 16),
            temperature=chance.choice((0.0, 0.0, 0.7, 1.0)),
            top_p=chance.choice((1.0, 0.9)),
            stop=chance.choice(((), (".",))),
            logprobs=chance.choice((None, None, 1)),
            prompt_logprobs=chance.choice((None, None, None, 0)),
            ignore_eos=free and chance.random() < 0.2,
            min_tokens=chance.choice((0, 0, 0, 4)) if free else 0,
            seed=seed,
        )
        return Request(
            self._tokenizer.encode(f"{phrase}, {phrase}, {phrase},"),
            params,
            self._mode(),
            chance.choice(_VERIFIERS)(),
            constraint=None if free else self._grammar.constraint(),
            scope=chance.choice(("ann", "bob", "")),
            domain=chance.choice(("code", "general_chat")),
        )

    def _mode(self) -> Mode:
        count = self._chance.randint(1, 8)
        source = self._chance.choice(self._sources)
        gate = self._chance.choice((StandardFirst(3), EntropyGate(2.0)))
        return self._chance.choice(
            (
                Standard(),
                Speculative(source, count),
                Speculative(source, count),
                Hybrid(source, [gate], count),
            )
        )


def decode(
    engine: Engine,
    requests: Sequence[Request],
    ended: Callable[[Ticket], None],
    *,
    at_once: int,
    seed: int,
) -> None:
    """Decode all, ``at_once`` submitted at any time, and cancel some; ``ended`` hears of each.

    The engine must not run in a thread of its own.
    """
    chance = random.Random(seed)
    waiting = deque(requests)
    steps_left: dict[Ticket, int] = {}
    while waiting or steps_left:
        while waiting and len(steps_left) < at_once:
            (ticket,) = engine.submit([waiting.popleft()])
            cancelled = chance.random() < CANCELLED
            steps_left[ticket] = chance.randrange(8) if cancelled else -1
        for ticket, steps in steps_left.items():
            if steps == 0:
                ticket.cancel()
            steps_left[ticket] = steps - 1
        engine.step()
        for ticket in [ticket for ticket in steps_left if ticket.done.is_set()]:
            del steps_left[ticket]
            ended(ticket)


def count_lost_slots(engine: Engine) -> int:
    """How many slots of an idle engine are taken all the same, or cannot be taken any more."""
    count = engine.model.num_slots
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    prompt_ids = engine.tokenizer.encode("one two")
    left = engine.num_running
    tickets = engine.submit([Request(prompt_ids, params) for _ in range(count)])
    engine.step()
    taken = engine.num_running - left
    for ticket in tickets:
        ticket.cancel()
    engine.step()
    return count - taken


def count_lost_draft_slots(source: ModelDraftSource, count: int) -> int:
    """How many of the ``count`` slots of an idle draft model cannot be taken any more."""
    requests = [DraftRequest(-1 - i, (0,), 1) for i in range(count)]
    drafts = source.propose(requests)
    for request in requests:
        source.forget(request.sequence_id)
    return sum(not len(draft) for draft in drafts)


def soak(
    engine: Engine,
    sources: Sequence[DraftSource],
    grammar: CompiledGrammar,
    *,
    num_requests: int,
    num_warm_up: int,
    at_once: int,
    ended: Callable[[Ticket], None],
) -> Report:
    """Warm up, then run the quarters; ``ended`` hears of every request.

    Draft models have as many slots as the engine's.
    """
    warm_up = Deck(engine.tokenizer, sources, grammar, seed=0).draw(num_warm_up)
    decode(engine, warm_up, ended, at_once=at_once, seed=0)
    before, started = _rss_mb(), time.perf_counter()
    quarters = [_Quarter(ended) for _ in range(QUARTERS)]
    for number, quarter in enumerate(quarters):
        deck = Deck(engine.tokenizer, sources, grammar, seed=1)
        requests = deck.draw(num_requests // QUARTERS)
        random.Random(number).shuffle(requests)
        decode(engine, requests, quarter.count, at_once=at_once, seed=number + 1)
        del requests
    return Report(
        requests=num_requests // QUARTERS * QUARTERS,
        cancelled=sum(quarter.num_cancelled for quarter in quarters),
        output_tokens=sum(quarter.num_tokens for quarter in quarters),
        seconds=time.perf_counter() - started,
        rss_mb_after_warm_up=before,
        rss_mb_at_end=_rss_mb(),
        lost_slots=count_lost_slots(engine),
        acceptance=[quarter.acceptance for quarter in quarters],
        lost_draft_slots=sum(
            count_lost_draft_slots(source, engine.model.num_slots)
            for source in sources
            if isinstance(source, ModelDraftSource)
        ),
    )


class _Quarter:
    """The counts of one quarter."""

    def __init__(self, ended: Callable[[Ticket], None]) -> None:
        self._ended = ended
        self._proposed = self._accepted = 0
        self.num_tokens = self.num_cancelled = 0

    @property
    def acceptance(self) -> float:
        return self._accepted / self._proposed if self._proposed else -1.0

    def count(self, ticket: Ticket) -> None:
        self._proposed += ticket.stats.num_draft_tokens
        self._accepted += ticket.stats.num_accepted_tokens
        self.num_tokens += ticket.stats.num_output_tokens
        self.num_cancelled += ticket.sequence.finish_reason is FinishReason.CANCELLED
        self._ended(ticket)


def main() -> int:
    """Soak the engine, print what was found, and say by the exit status whether all is well."""
    options = _options()
    console = Console(stderr=True)
    loaded = load(options.model, dtype=options.dtype, num_slots=8, max_length=256)
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))
    draft = load_draft(options.model, loaded, dtype=options.dtype, num_layers=options.draft_layers)
    vocabulary = loaded.tokenizer.vocabulary(loaded.model.vocab_size)
    compiler = GrammarCompiler(vocabulary, loaded.tokenizer.eos_ids)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requests", total=options.warm_up + options.requests)
        report = soak(
            engine,
            [
                SuffixDraftSource(corpus_tokens=1000),
                ModelDraftSource(draft.model, load_profile(draft)),
            ],
            compiler.compile(GRAMMAR),
            num_requests=options.requests,
            num_warm_up=options.warm_up,
            at_once=options.at_once,
            ended=lambda ticket: progress.advance(task),
        )
    if options.json:
        print(json.dumps({**asdict(report), "growth": report.growth}))
    else:
        print(_table(report))
    for problem in report.problems():
        console.print(problem, style="bold red")
    return 1 if report.problems() else 0


def _rss_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _table(report: Report) -> str:
    rows = {
        "requests (cancelled)": f"{report.requests} ({report.cancelled})",
        "output tokens": f"{report.output_tokens}",
        "seconds": f"{report.seconds:.0f}",
        "memory after the warm-up, at the end": (
            f"{report.rss_mb_after_warm_up:.0f} MB, {report.rss_mb_at_end:.0f} MB "
            f"({report.growth:+.2%})"
        ),
        "slots lost, of the draft model": f"{report.lost_slots}, {report.lost_draft_slots}",
        "acceptance by quarter": ", ".join(f"{rate:.3f}" for rate in report.acceptance),
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft-layers", type=int, default=4, help="of the model, as a source")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=200, help="requests that are not counted")
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
