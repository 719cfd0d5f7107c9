"""How a fleet of twin arms does under traffic: latency, refusals, and how many speculative servers pay.

A simulation: what a server can do comes from measured curves (`curves.py`), what many of them do
under a trace of arrivals is worked out event by event (`queueing.py`). docs/scaling.md says what of
it was measured and what is extrapolated.

    python -m benchmarks.fleet [--curves mine.json] [--replicas 20] [--json]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks import curves
from benchmarks.curves import SPECULATIVE, STANDARD, Curve, CurveError
from benchmarks.keeping import keep
from benchmarks.queueing import Arm, Kind, Traffic, simulate

_FOLDER = Path(__file__).parent / "results"
MEASURED = _FOLDER / "prompts-cpu-float32.json"
RESULTS = _FOLDER / "fleet.json"
WARM_UP = 0.25
"""Share of a trace that begins with an empty fleet and does not count."""
_STEPS = 2_000

SHAPES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "poisson": np.ones_like,
    # A tenth of every tenth of the trace has five times the rate of the rest.
    "bursts": lambda day: np.where(day * 10 % 1 < 0.1, 5.0, 1.0),
    "diurnal": lambda day: 1 - 0.8 * np.cos(2 * np.pi * day),
}
"""Name → how the rate goes, from 0 to 1 along the trace; only proportions matter."""


@dataclass(frozen=True)
class Load:
    """What is asked of a fleet."""

    rate: float
    """Requests a second, on average."""
    seconds: float
    shape: str = "poisson"
    tokens: float = 48.0
    """Mean length of an answer; lengths are exponential, of one token at least."""
    mix: tuple[float, ...] = (0.2, 0.1, 0.5, 0.2)
    """Shares of banned, standard, speculative and hybrid requests."""


def traffic(load: Load, random: np.random.Generator) -> Traffic:
    """One trace: Poisson arrivals whose rate follows the shape."""
    day = (np.arange(_STEPS) + 0.5) / _STEPS
    passed = np.concatenate([[0.0], np.cumsum(SHAPES[load.shape](day))])
    size = max(1, random.poisson(load.rate * load.seconds))
    places = np.interp(random.random(size), passed / passed[-1], np.linspace(0, 1, _STEPS + 1))
    lengths = 1 + random.exponential(max(load.tokens - 1, 0), size)
    kinds = random.choice(len(Kind), size, p=load.mix).astype(np.int8)
    return Traffic(np.sort(places) * load.seconds, lengths, kinds)


@dataclass(frozen=True)
class Fleet:
    """Curves, and what every server of either arm has."""

    curves: Mapping[str, Curve]
    slots: int
    queue: int

    def arms(self, standard: int, speculative: int) -> tuple[Arm, Arm]:
        """With so many servers each."""
        return (
            Arm(self.curves[STANDARD], standard, self.slots, self.queue),
            Arm(self.curves[SPECULATIVE], speculative, self.slots, self.queue),
        )


def row(
    fleet: Fleet,
    split: tuple[int, int],
    load: Load,
    seed: int,
    progress: Callable[[int], object],
) -> dict[str, Any]:
    """One simulation in figures; equal seeds and loads have equal traffic, whatever the split."""
    sent = traffic(load, np.random.default_rng(seed))
    course = simulate(*fleet.arms(*split), sent, progress)
    counted = sent.arrivals >= WARM_UP * load.seconds
    bound = counted & (sent.kinds <= Kind.STANDARD)
    wanted = counted & (sent.kinds == Kind.SPECULATIVE)
    return {
        "rate": round(load.rate, 2),
        "shape": load.shape,
        "standard": split[0],
        "speculative": split[1],
        "requests": int(counted.sum()),
        "first": _percentiles(course.first[counted]),
        "total": _percentiles(course.total[counted]),
        "bound_total": _percentiles(course.total[bound]),
        "refused": _share(np.isnan(course.total[counted])),
        "fell_over": _share(course.began_on[wanted] == 0) if split[1] else 0.0,
        "utilisation": {arm: round(share, 4) for arm, share in course.utilisation.items()},
        "in_system": round(course.in_system, 2),
    }


def _percentiles(seconds: np.ndarray) -> dict[str, float | None]:
    seconds = seconds[~np.isnan(seconds)]
    if not len(seconds):
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    figures = {"mean": seconds.mean(), "p50": p50, "p95": p95, "p99": p99}
    return {name: round(float(figure), 4) for name, figure in figures.items()}


def _share(which: np.ndarray) -> float:
    return round(float(which.mean()), 5) if len(which) else 0.0


def best(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The split with the shortest mean time, of those that refuse no more than all standard does."""
    (alone,) = (row for row in rows if row["speculative"] == 0)
    fit = [row for row in rows if row["refused"] <= alone["refused"] + 0.001]
    return min(fit, key=lambda row: row["total"]["mean"] or math.inf)


Plan = tuple[str, tuple[int, int], Load]


def plan(fleet: Fleet, options: argparse.Namespace) -> Iterator[Plan]:
    """Splits at every load, one of them under every shape, and a large fleet."""
    base = Load(1.0, options.seconds, tokens=options.tokens, mix=options.mix)
    one = fleet.curves[STANDARD].capacity(fleet.slots, options.tokens)
    for share in options.loads:
        load = replace(base, rate=share * one * options.replicas)
        for speculative in range(0, options.replicas, max(1, options.replicas // 10)):
            yield "splits", (options.replicas - speculative, speculative), load
    half = options.replicas // 2
    for shape in SHAPES:
        load = replace(base, rate=0.6 * one * options.replicas, shape=shape)
        yield "shapes", (options.replicas - half, half), load
    servers = math.ceil(options.many_rate / (0.6 * one))
    many = replace(base, rate=options.many_rate, seconds=options.many_seconds)
    for speculative in (0, servers // 2):
        yield "many", (servers - speculative, speculative), many


def run(fleet: Fleet, options: argparse.Namespace) -> dict[str, Any]:
    """Everything of the plan, in the form that is kept."""
    plans = list(plan(fleet, options))
    results: dict[str, Any] = {
        "format": 1,
        "curves": msgspec.to_builtins(fleet.curves),
        "options": {
            name: getattr(options, name)
            for name in ("slots", "queue", "replicas", "seconds", "tokens", "mix", "seed")
        },
        **{table: [] for table, *_ in plans},
    }
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=options.json) as bar:
        task = bar.add_task("requests", total=sum(load.rate * load.seconds for *_, load in plans))
        for table, split, load in plans:
            done = row(fleet, split, load, options.seed, lambda n: bar.advance(task, n))
            results[table].append(done)
    return msgspec.json.decode(msgspec.json.encode(results))


_HEAD = (
    "| requests/s | arrivals | standard + speculative servers | first token p50 / p95 / p99, s "
    "| answer p50 / p95 / p99, s | mean, s | of banned and standard p95, s | refused | fell over "
    "| slots busy |"
)
_RULE = "|---:|---|---|---|---|---:|---:|---:|---:|---|"


def tables(results: Mapping[str, Any]) -> Iterator[str]:
    """The results in Markdown."""
    options = results["options"]
    shares = " / ".join(f"{share:.0%}" for share in options["mix"])
    yield (
        f"Simulated: {options['slots']} slots and {options['queue']} waiting places a server, "
        f"answers of {options['tokens']:g} tokens on average, {shares} of the requests banned / "
        f"standard / speculative / hybrid, seed {options['seed']}."
    )
    yield ""
    yield "| arm | answers at once: tokens/s | prompt, s | from |"
    yield "|---|---|---:|---|"
    for arm, curve in results["curves"].items():
        rates = ", ".join(f"{n}: {rate:g}" for n, rate in curve["tokens_per_second"].items())
        yield f"| {arm} | {rates} | {curve['prompt_seconds']:g} | {curve['provenance']} |"
    yield from _pays(results["splits"])
    titles = {"splits": "Splits", "shapes": "Uneven arrivals", "many": "Many requests"}
    for name, title in titles.items():
        yield from ("", f"## {title}", "", _HEAD, _RULE)
        yield from map(_line, results[name])


def _pays(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("", "## How many speculative servers pay", "")
    yield "| requests/s | all standard, mean s | fewest seconds with | mean s | of all standard |"
    yield "|---:|---:|---|---:|---:|"
    for rate in dict.fromkeys(row["rate"] for row in rows):
        same = [row for row in rows if row["rate"] == rate]
        (alone,) = (row for row in same if row["speculative"] == 0)
        chosen = best(same)
        before, after = alone["total"]["mean"], chosen["total"]["mean"]
        ratio = f"{after / before:.2f}x" if before and after else "–"
        yield (
            f"| {rate:,.1f} | {_seconds(before)} | {chosen['standard']} + {chosen['speculative']} "
            f"| {_seconds(after)} | {ratio} |"
        )


def _line(row: Mapping[str, Any]) -> str:
    busy = " + ".join(f"{share:.0%}" for share in row["utilisation"].values())
    return (
        f"| {row['rate']:,.1f} | {row['shape']} | {row['standard']:,} + {row['speculative']:,} "
        f"| {_three(row['first'])} | {_three(row['total'])} | {_seconds(row['total']['mean'])} "
        f"| {_seconds(row['bound_total']['p95'])} | {row['refused']:.1%} | {row['fell_over']:.1%} "
        f"| {busy} |"
    )


def _three(figures: Mapping[str, float | None]) -> str:
    return " / ".join(_seconds(figures[name]) for name in ("p50", "p95", "p99"))


def _seconds(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.2f}"


def _mix(text: str) -> tuple[float, ...]:
    shares = tuple(map(float, text.split(",")))
    if len(shares) != len(Kind) or min(shares) < 0:
        raise argparse.ArgumentTypeError("give four shares: banned,standard,speculative,hybrid")
    if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
        raise argparse.ArgumentTypeError("the shares have to add up to 1")
    return tuple(share / sum(shares) for share in shares)


def _positive(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--curves", type=Path, help="JSON; without it our own engine's on CPU")
    parser.add_argument("--replicas", type=int, default=20, help="servers, of both arms together")
    parser.add_argument("--slots", type=int, default=8, help="answers at once, of a server")
    parser.add_argument("--queue", type=int, default=16, help="requests that may wait at one")
    parser.add_argument("--tokens", type=_positive, default=48.0, help="of an answer, on average")
    parser.add_argument("--mix", type=_mix, default=Load.mix, help="four shares, see docs")
    parser.add_argument(
        "--loads", type=lambda text: [_positive(x) for x in text.split(",")], default=[0.3, 0.6, 0.9],
        help="of what the servers could do if all were standard",
    )  # fmt: skip
    parser.add_argument("--seconds", type=_positive, default=300.0, help="of each trace")
    parser.add_argument("--many-rate", type=_positive, default=10_000.0, help="requests a second")
    parser.add_argument("--many-seconds", type=_positive, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    if options.replicas < 2:
        parser.error("--replicas has to be at least 2: one server is no fleet")
    if options.slots < 1 or options.queue < 0:
        parser.error("--slots has to be at least 1, --queue at least 0")
    try:
        options.curves = (
            curves.read(options.curves) if options.curves else curves.measured(MEASURED)
        )
    except CurveError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line; gives the exit status."""
    options = _arguments(arguments)
    results = run(Fleet(options.curves, options.slots, options.queue), options)
    report = "\n".join(tables(results))
    keep(options.out, results, report)
    print(options.out.read_text(encoding="utf-8") if options.json else report + "\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
