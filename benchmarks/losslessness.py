"""Holds the emitted tokens of a real model against its law, verifier by verifier.

Each exact verifier decodes until it has emitted so many tokens; a lossy one until its e-process
raises the alarm. Every wave of requests is written down when it has ended, and the next run goes on
after it.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.keeping import keep
from benchmarks.prompts import PromptError, read
from decoders.drafts.base import DraftSource
from decoders.drafts.model import ModelDraftSource
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.hedges import hedge_ids
from decoders.loader import LoadedModel, load
from decoders.meter import LawMeter
from decoders.models.base import ModelError
from decoders.modes import Speculative
from decoders.pairing import load_draft
from decoders.params import SamplingParams
from decoders.request import Request, Ticket
from decoders.verifiers.base import Verifier
from decoders.verifiers.conservative import ConservativeVerifier
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from gateway.backends.local.measured import tally_of
from gateway.evidence.confidence import interval
from gateway.evidence.eprocess import EProcess
from gateway.tally import Moments, Tally

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "losslessness.json"
ROWS = 8
TEMPERATURES = (0.8, 1.0)


class Unbounded(ConservativeVerifier):
    """The rule of the conservative verifier to the end of the answer, whatever it has cost."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.max_distortion = math.inf


def budgeted() -> ConservativeVerifier:
    """With the largest budget that a policy can allow."""
    return ConservativeVerifier(1.0)


@dataclass(frozen=True)
class Arm:
    """A verifier with a draft source."""

    name: str
    verifier: Callable[[], Verifier]
    source: str


ARMS = (
    Arm("coupled, suffix drafts", CoupledVerifier, "suffix"),
    Arm("rejection, suffix drafts", RejectionVerifier, "suffix"),
    Arm("conservative without a budget, model drafts", Unbounded, "model"),
    Arm("rejection, model drafts", RejectionVerifier, "model"),
    Arm("conservative, suffix drafts", budgeted, "suffix"),
    Arm("coupled, model drafts", CoupledVerifier, "model"),
)


class Settings(msgspec.Struct, frozen=True):
    """What one file of results is about; another run must agree to go on with it."""

    model: str
    fingerprint: str
    draft_layers: int
    num_speculative_tokens: int
    max_tokens: int
    alpha: float


class Found(msgspec.Struct, kw_only=True):
    """What is known of one arm so far."""

    arm: str
    exact: bool
    requests: int = 0
    seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0
    tally: Tally = Tally()
    evidence: EProcess = EProcess()
    highest_log_e: float = 0.0
    """At the end of any request."""
    tokens_to_alarm: int | None = None


class Results(msgspec.Struct):
    """The file."""

    settings: Settings
    arms: dict[str, Found]


def main() -> None:
    """Run it from the command line."""
    options = _options()
    console = Console(stderr=True)
    try:
        prompts = [prompt.turns[0] for prompt in read(options.prompts)]
        loaded = load(options.model, dtype="float32", device=options.device, num_slots=ROWS)
        results = _results(options, loaded)
    except (PromptError, ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    arms = [arm for arm in ARMS if not options.arms or arm.name in options.arms]
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=options.json
    ) as progress:
        try:
            for arm in arms:
                bench = _Bench(arm, loaded, prompts, results.settings)
                bar = progress.add_task(arm.name, total=options.tokens)
                found = results.arms.setdefault(
                    arm.name, Found(arm=arm.name, exact=arm.verifier().exact)
                )
                while _wants_more(found, options.tokens):
                    bench.wave(found)
                    keep(options.out, results, "\n".join(table(results)))
                    progress.update(bar, completed=found.tally.num_tokens)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on from here")
    keep(options.out, results, "\n".join(table(results)))
    report = options.out.read_text() if options.json else "\n".join(table(results))
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--tokens", type=int, default=20_000, help="for each verifier")
    parser.add_argument("--draft-layers", type=int, default=24, help="of the model, as draft model")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--alpha", type=float, default=1e-6, help="alarm at an e-value of 1/alpha")
    names = ", ".join(f"{arm.name!r}" for arm in ARMS)
    parser.add_argument("--arms", action="append", choices=[arm.name for arm in ARMS],
                        metavar="ARM", help=f"only these, given once for each: {names}")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--restart", action="store_true", help="forget what was measured before")
    return parser.parse_args()


def _results(options: argparse.Namespace, loaded: LoadedModel) -> Results:
    """What was measured before, or nothing yet. Raises ValueError where that was something else."""
    settings = Settings(
        model=options.model,
        fingerprint=loaded.weights,
        draft_layers=options.draft_layers,
        num_speculative_tokens=options.num_speculative_tokens,
        max_tokens=options.max_tokens,
        alpha=options.alpha,
    )
    if options.restart or not options.out.exists():
        return Results(settings, {})
    results = msgspec.json.decode(options.out.read_bytes(), type=Results)
    if results.settings != settings:
        raise ValueError(
            f"{options.out} was measured with other settings ({results.settings}); "
            "give the same, another --out, or --restart"
        )
    return results


def _wants_more(found: Found, num_tokens: int) -> bool:
    if not found.exact and found.tokens_to_alarm is not None:
        return False
    return found.tally.num_tokens < num_tokens


class _Bench:
    """One engine for one arm."""

    def __init__(
        self, arm: Arm, loaded: LoadedModel, prompts: Sequence[str], settings: Settings
    ) -> None:
        self._arm = arm
        self._prompts = prompts
        self._settings = settings
        self._tokenizer = loaded.tokenizer
        meter = LawMeter(hedge_ids(loaded.pieces))
        self._engine = Engine(loaded.model, loaded.tokenizer, meter=meter)
        self._source = self._make_source(loaded)

    def wave(self, found: Found) -> None:
        """Decode as many requests as there are rows, and add what they say, in their order."""
        started = time.perf_counter()
        numbers = range(found.requests, found.requests + ROWS)
        tickets = self._engine.submit([self._request(number) for number in numbers])
        while not all(ticket.done.is_set() for ticket in tickets):
            self._engine.step()
        for ticket in tickets:
            self._add(found, ticket)
        found.seconds += time.perf_counter() - started

    def _add(self, found: Found, ticket: Ticket) -> None:
        if ticket.error is not None:
            raise RuntimeError(ticket.error)
        tally = tally_of([ticket.stats.evidence], fresh=True) or Tally()
        found.requests += 1
        found.proposed += ticket.stats.num_draft_tokens
        found.accepted += ticket.stats.num_accepted_tokens
        found.tally += tally
        found.evidence = found.evidence.update(tally)
        found.highest_log_e = max(found.highest_log_e, found.evidence.log_e)
        alarm = found.evidence.log_e >= -math.log(self._settings.alpha)
        if found.tokens_to_alarm is None and (alarm or found.tally.num_impossible):
            found.tokens_to_alarm = found.tally.num_tokens

    def _request(self, number: int) -> Request:
        prompt = self._prompts[number % len(self._prompts)]
        return Request(
            self._tokenizer.encode_chat([{"role": "user", "content": prompt}]),
            SamplingParams(
                temperature=TEMPERATURES[number % len(TEMPERATURES)],
                max_tokens=self._settings.max_tokens,
                seed=zlib.crc32(f"{self._arm.name}/{number}".encode()),
            ),
            mode=Speculative(self._source, self._settings.num_speculative_tokens),
            verifier=self._arm.verifier(),
        )

    def _make_source(self, loaded: LoadedModel) -> DraftSource:
        if self._arm.source == "suffix":
            return SuffixDraftSource()
        draft = load_draft(
            self._settings.model,
            loaded,
            dtype=loaded.dtype,
            num_layers=self._settings.draft_layers,
        )
        return ModelDraftSource(draft.model)


def table(results: Results) -> Iterator[str]:
    """The results in Markdown."""
    settings = results.settings
    yield (
        f"{settings.model} (weights {settings.fingerprint[:12]}), temperatures "
        f"{' and '.join(map(str, TEMPERATURES))}, answers of at most {settings.max_tokens} tokens, "
        f"drafts of at most {settings.num_speculative_tokens}; the draft model is the model's first "
        f"{settings.draft_layers} layers. Alarm at an e-value of 1/{settings.alpha:g}."
    )
    yield ""
    yield "| verifier | tokens | impossible | highest log10 e | tokens to alarm | drafts accepted |"
    yield "|---|---:|---:|---:|---:|---:|"
    for found in results.arms.values():
        alarm = "none" if found.tokens_to_alarm is None else f"{found.tokens_to_alarm:,}"
        share = f"{found.accepted / found.proposed:.0%}" if found.proposed else ""
        yield (
            f"| {found.arm} | {found.tally.num_tokens:,} | {found.tally.num_impossible} "
            f"| {found.highest_log_e / math.log(10):.2f} | {alarm} | {share} |"
        )
    yield ""
    yield "Seen / to be expected, and in how many standard deviations they differ; per token for"
    yield "surprisal, with a 95 % confidence sequence of the mean difference in nats:"
    yield ""
    yield "| verifier | accepted | tail | draft-blind | hedging | surprisal |"
    yield "|---|---:|---:|---:|---:|---:|"
    for found in results.arms.values():
        tally = found.tally
        counted = (tally.accepted, tally.tail, tally.draft_blind, tally.hedging)
        cells = " | ".join(_ratio(moments) for moments in counted)
        low, high = interval(tally.surprisal, tally.num_tokens, 0.05)
        yield f"| {found.arm} | {cells} | {low:+.4f} to {high:+.4f} |"


def _ratio(moments: Moments) -> str:
    if moments.variance <= 0:
        return ""
    deviation = (moments.observed - moments.expected) / math.sqrt(moments.variance)
    return f"{moments.observed:,.0f} / {moments.expected:,.1f} ({deviation:+.1f})"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
