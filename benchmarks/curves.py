"""How fast a server of an arm is, by how many answers it writes at once: measured, or given in a file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

STANDARD, SPECULATIVE = "standard", "speculative"
OURS = {STANDARD: "standard", SPECULATIVE: "speculative (suffix)"}
"""Arm of the fleet → arm of `benchmarks.decoding`."""


class CurveError(ValueError):
    """A file of curves that cannot be used."""


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server of an arm."""

    provenance: Annotated[str, msgspec.Meta(min_length=1)]
    """Where the figures come from: machine, model, date."""
    tokens_per_second: Mapping[Annotated[int, msgspec.Meta(ge=1)], float]
    """Answers at once → tokens a second of all of them together, the reading of prompts left out."""
    prompt_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """What a prompt takes to be read where nothing else runs."""

    def __post_init__(self) -> None:
        if 1 not in self.tokens_per_second:
            raise ValueError("tokens_per_second needs a figure for 1 answer at once")
        if min(self.tokens_per_second.values()) <= 0:
            raise ValueError("tokens_per_second has a figure that is not above 0")

    @property
    def prompt_work(self) -> float:
        """A prompt in tokens: as many as would be written in the time that it takes."""
        return self.prompt_seconds * self.tokens_per_second[1]

    @property
    def measured_up_to(self) -> int:
        """The most answers at once that there is a figure for; beyond it the rate stays."""
        return max(self.tokens_per_second)

    def rates(self, slots: int) -> list[float]:
        """Tokens a second of 0 to ``slots`` answers at once, straight between the figures."""
        figures = sorted(self.tokens_per_second.items())
        rates = [0.0, figures[0][1]]
        for (less, slow), (more, fast) in pairwise(figures):
            rates += [
                slow + (fast - slow) * (n - less) / (more - less) for n in range(less + 1, more + 1)
            ]
        return (rates + [rates[-1]] * slots)[: slots + 1]

    def capacity(self, slots: int, tokens: float) -> float:
        """Answers of so many tokens a second, with all slots busy."""
        return self.rates(slots)[-1] / (tokens + self.prompt_work)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arms: Mapping[str, Curve]


def read(path: Path) -> Mapping[str, Curve]:
    """The curves of a file: ``{"arms": {"standard": {…}, "speculative": {…}}}``.

    Raises CurveError with what is wrong and where.
    """
    try:
        arms = msgspec.json.decode(path.read_bytes(), type=_File).arms
    except (OSError, msgspec.DecodeError) as error:
        raise CurveError(f"{path}: {error}; docs/scaling.md shows the form") from None
    if set(arms) != {STANDARD, SPECULATIVE}:
        raise CurveError(f"{path}: arms has to have '{STANDARD}' and '{SPECULATIVE}', no others")
    return arms


def measured(path: Path) -> Mapping[str, Curve]:
    """The curves of our own engine, from what `benchmarks.decoding` has written.

    Raises CurveError where it has nothing about many answers at once.
    """
    try:
        results = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise CurveError(f"{path}: {error}; `make bench` writes it") from None
    prompt = _prompt_seconds(results["runs"])
    where = results["environment"]
    provenance = (
        f"{path.name}: {results['options']['model']}, {results['options']['dtype']}, "
        f"{where['processor']}, {where['threads']} threads, {where['date']}, commit {where['commit']}"
    )
    curves = {arm: _curve(results["throughput"], OURS[arm], prompt, provenance) for arm in OURS}
    if any(curve is None for curve in curves.values()):
        raise CurveError(
            f"{path}: nothing for 1 answer at once; run `make bench` with --concurrency"
        )
    return {arm: curve for arm, curve in curves.items() if curve is not None}


def _prompt_seconds(runs: Iterable[Mapping[str, Any]]) -> float:
    """The median over all answers in standard mode; prompts are read alike in every mode."""
    counted = [r for r in runs if r["arm"] == OURS[STANDARD] and not r["disturbed"]]
    return statistics.median(r["prefill_seconds"] for r in counted) if counted else 0.0


def _curve(
    rows: Iterable[Mapping[str, Any]], arm: str, prompt: float, provenance: str
) -> Curve | None:
    """From whole batches, in whose time the prompts were read as well. None without a batch of 1."""
    seen: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["rows"] == arm and row["temperature"] == 0 and not row["disturbed"]:
            seen.setdefault(row["concurrency"], []).append(row)
    if 1 not in seen:
        return None
    alone = statistics.median(
        row["tokens"] / (row["seconds"] - row["requests"] * prompt) for row in seen[1]
    )
    figures = {
        n: statistics.median(
            (row["tokens"] + row["requests"] * prompt * alone) / row["seconds"] for row in batches
        )
        for n, batches in sorted(seen.items())
    }
    return Curve(provenance, {n: round(rate, 2) for n, rate in figures.items()}, round(prompt, 4))
