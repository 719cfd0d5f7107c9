"""How often the e-process is wrong about sound decoders, and how soon it sees known faults.

Toy models of 128 tokens run through the real verifiers and the real meter. A run is one long answer;
the e-value is looked at after every token, so that a false alarm at any time counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks.keeping import keep
from decoders.draft import Dense, Draft
from decoders.evidence import ALTERNATIVES
from decoders.meter import TAIL, LawMeter
from decoders.noise import GumbelNoise, Noise, Purpose
from decoders.verifiers.base import DraftedRow, Verdict, Verifier
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier

RESULTS = Path(__file__).parent / "results" / "evidence-power.json"
VOCAB = 128
STATES = 8
FACTORS = slice(2, 2 + len(ALTERNATIVES))


class Decoder(Protocol):
    """One way to decode, sound or not: everything that `follow` needs of it."""

    @property
    def name(self) -> str:
        """In the table."""
        ...

    def draft(self, state: int, noise: Noise, position: int) -> Draft:
        """One token in ``state``, or none."""
        ...

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verdicts, of a verifier or of what is wrong with it."""
        ...


def laws(seed: int, sharpness: float) -> Tensor:
    """[state, token]: a law for each state; a few in a hundred tokens are of the tail."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(STATES, VOCAB, generator=generator, dtype=torch.float64) * sharpness
    return scores.softmax(-1)


TARGET = laws(1, 2.0)
DRAFT = laws(2, 2.0) * 0.5 + TARGET * 0.5


@dataclass(frozen=True)
class Sound:
    """An exact verifier with one kind of draft."""

    name: str
    verifier: Verifier
    kind: str
    """``none``, ``point`` (the draft's likeliest token) or ``law``."""

    def draft(self, state: int, noise: Noise, position: int) -> Draft:
        """As its kind says; a law is drawn from with the noise of the choice."""
        if self.kind == "none":
            return Draft()
        law = DRAFT[state]
        if self.kind == "point":
            return Draft((int(law.argmax()),), from_context=True)
        (token_id,) = noise.choose(law.log().unsqueeze(0), position)
        return Draft((token_id,), law=Dense(law.unsqueeze(0)))

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verifier's."""
        return self.verifier.verify(scores, rows)


EXACT = (
    Sound("coupled, no drafts", CoupledVerifier(), "none"),
    Sound("coupled, known drafts", CoupledVerifier(), "point"),
    Sound("coupled, drawn drafts", CoupledVerifier(), "law"),
    Sound("rejection, known drafts", RejectionVerifier(), "point"),
    Sound("rejection, drawn drafts", RejectionVerifier(), "law"),
)


class WrongLaw(Sound):
    """States a law for its drafts that is warmer than the one they are drawn from."""

    def draft(self, state: int, noise: Noise, position: int) -> Draft:
        """Drawn from the law to the power of two."""
        (token_id,) = noise.choose(2 * DRAFT[state].log().unsqueeze(0), position)
        return Draft((token_id,), law=Dense(DRAFT[state].unsqueeze(0)))


@dataclass(frozen=True)
class _Shared:
    """Noise whose replacements of rejected tokens are drawn with the draft's."""

    own: Noise

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> Sequence[int]:
        """Purpose RESIDUAL is CHOICE."""
        shared = Purpose.CHOICE if purpose == Purpose.RESIDUAL else purpose
        return self.own.choose(scores, position, shared)

    def accept(self, probability: float, position: int) -> bool:
        """The noise's own."""
        return self.own.accept(probability, position)

    def law(self, scores: Tensor) -> Tensor:
        """The noise's own."""
        return self.own.law(scores)


class SharedNoise(Sound):
    """Replaces rejected draft tokens with the noise that drew them."""

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verifier's, with that noise."""
        return self.verifier.verify(scores, [replace(r, noise=_Shared(r.noise)) for r in rows])


@dataclass(frozen=True)
class Trusting(Sound):
    """Lets a draft token stand unverified, now and then."""

    share: float = 0.3

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verifier's, but for a share of the rows."""
        verdicts = self.verifier.verify(scores, rows)
        return [
            Verdict(row.draft.token_ids, 1)
            if row.noise.choose(coin(self.share), row.position, 99)[0]
            else verdict
            for row, verdict in zip(rows, verdicts, strict=True)
        ]


def coin(share: float) -> Tensor:
    """Scores of 1 with probability ``share``, else 0."""
    return torch.tensor([[1 - share, share]], dtype=torch.float64).log()


class Sharpened(Sound):
    """Chooses at a temperature of 0.8 that nobody asked for."""

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verifier's, of sharper scores."""
        return self.verifier.verify(scores / 0.8, rows)


class Truncated(Sound):
    """Never emits a token of the tail."""

    def judge(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """The verifier's, without them."""
        return self.verifier.verify(scores.masked_fill(scores.exp() <= TAIL, -torch.inf), rows)


FAULTS = (
    WrongLaw("a draft law that is not the one drawn from", RejectionVerifier(), "law"),
    SharedNoise("recovery with the draft's noise", RejectionVerifier(), "law"),
    Trusting("3 in 10 drafts unverified", RejectionVerifier(), "law", 0.3),
    Trusting("1 in 10 drafts unverified", CoupledVerifier(), "point", 0.1),
    Sharpened("sharpened target", CoupledVerifier(), "point"),
    Truncated("truncated tail", CoupledVerifier(), "none"),
)


class Course(msgspec.Struct, frozen=True):
    """Of one decoder over many runs."""

    name: str
    runs: int
    tokens: int
    """Of each run, at least."""
    alarms: int
    median_tokens_to_alarm: float | None
    """Over all runs; None where half of them or more had none."""
    divergence: float
    """Of the emitted tokens from the target's law, nats a token, estimated from their counts."""


def follow(decoder: Decoder, *, runs: int, tokens: int, alpha: float, seed: int) -> Course:
    """Let ``runs`` answers go on for ``tokens`` tokens each and note when their e-values alarm."""
    meter, bar = LawMeter(), -math.log(alpha)
    noises = [GumbelNoise(seed * 1_000_003 + run) for run in range(runs)]
    states, lengths = [0] * runs, [0] * runs
    log_capitals = torch.zeros(runs, len(ALTERNATIVES), dtype=torch.float64)
    alarms: dict[int, int] = {}
    counts = torch.zeros(STATES, VOCAB, dtype=torch.float64)
    while active := [run for run in range(runs) if lengths[run] < tokens and run not in alarms]:
        rows = [
            DraftedRow(decoder.draft(states[i], noises[i], lengths[i]), noises[i], lengths[i])
            for i in active
        ]
        paths = [
            (states[i], *(token_id % STATES for token_id in row.draft.token_ids))
            for i, row in zip(active, rows, strict=True)
        ]
        scores = TARGET[[state for path in paths for state in path]].log()
        verdicts = decoder.judge(scores, rows)
        measured = meter.measure(RejectionVerifier(), scores, rows, verdicts)
        for i, verdict, columns in zip(active, verdicts, measured, strict=True):
            for token_id, column in zip(verdict.token_ids, columns, strict=True):
                counts[states[i], token_id] += 1
                states[i], lengths[i] = token_id % STATES, lengths[i] + 1
                log_capitals[i] += column[FACTORS]
                log_e = float(log_capitals[i].logsumexp(0)) - math.log(len(ALTERNATIVES))
                if log_e >= bar and i not in alarms:
                    alarms[i] = lengths[i]
    times = sorted([*alarms.values(), *[math.inf] * (runs - len(alarms))])
    median = statistics.median_low(times)
    return Course(
        name=decoder.name,
        runs=runs,
        tokens=tokens,
        alarms=len(alarms),
        median_tokens_to_alarm=median if median < math.inf else None,
        divergence=_divergence(counts),
    )


def _divergence(counts: Tensor) -> float:
    """Less what counting so few tokens adds by itself (Miller, 1955); of no fault it is about 0."""
    seen = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    plain = (counts * (seen.clamp(min=1e-300) / TARGET).log()).sum() / counts.sum()
    added = ((counts > 0).sum() - STATES) / (2 * counts.sum())
    return max(0.0, float(plain - added))


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="of each sound decoder")
    parser.add_argument("--tokens", type=int, default=100, help="of each of those runs")
    parser.add_argument("--fault-runs", type=int, default=50)
    parser.add_argument("--fault-tokens", type=int, default=3000, help="at most, of each")
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    todo: list[tuple[str, Sequence[Decoder], int, int]] = [
        ("sound", EXACT, options.runs, options.tokens),
        ("faults", FAULTS, options.fault_runs, options.fault_tokens),
    ]
    results: dict[str, Any] = {"alpha": options.alpha, "sound": [], "faults": []}
    jobs = [(kind, decoder, n, t) for kind, some, n, t in todo for decoder in some]
    console = Console(stderr=True)
    for seed, (kind, decoder, runs, tokens) in enumerate(
        track(jobs, "decoders", console=console, disable=options.json)
    ):
        course = follow(decoder, runs=runs, tokens=tokens, alpha=options.alpha, seed=seed)
        results[kind].append(course)
        keep(options.out, results, "\n".join(table(results)))
    print(options.out.read_text() if options.json else "\n".join(table(results)))


def _shortest(alpha: float, divergence: float) -> str:
    """Tokens that the best of all bets would take."""
    return f"{-math.log(alpha) / divergence:,.0f}" if divergence > 0 else ""


def table(results: dict[str, Any]) -> Iterator[str]:
    """The results in Markdown."""
    alpha = results["alpha"]
    yield f"Alarm at an e-value of 1/{alpha:g}, looked at after every token; toy models of {VOCAB} tokens."
    yield ""
    yield "| sound decoder | runs | tokens each | false alarms | allowed |"
    yield "|---|---:|---:|---:|---:|"
    for course in results["sound"]:
        yield (
            f"| {course.name} | {course.runs:,} | {course.tokens:,} "
            f"| {course.alarms / course.runs:.2%} | {alpha:.0%} |"
        )
    yield ""
    yield "| fault | runs with an alarm | median tokens to alarm | divergence, nats | ln(1/α) / divergence |"
    yield "|---|---:|---:|---:|---:|"
    for course in results["faults"]:
        median = course.median_tokens_to_alarm
        yield (
            f"| {course.name} | {course.alarms} of {course.runs} "
            f"| {'more than ' + format(course.tokens, ',') if median is None else f'{median:,.0f}'} "
            f"| {course.divergence:.4f} | {_shortest(alpha, course.divergence)} |"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
