"""How a comparison is shown: its tables, and its chart."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.evidence.reading import Difference
from gateway.experiments.arms import AGAIN
from gateway.experiments.chart import Line, Mark, draw
from gateway.experiments.compare import Comparison, Summary
from gateway.experiments.grid import Grid, figure, with_bounds
from gateway.experiments.statistics.agreement import Agreement
from gateway.experiments.statistics.clusters import Interval
from gateway.experiments.statistics.permutation import TwoSample


def grids(summary: Summary) -> tuple[Grid, ...]:
    """The tables, in the order in which they are read."""
    found = [_sameness(summary), _laws(summary), _texts(summary)]
    if any(one.factuality for one in summary.comparisons):
        found.append(_facts(summary))
    return tuple(found)


def chart(summary: Summary) -> str:
    """Token agreement with standard mode, with shared and with other seeds."""
    lines = [
        Line(
            f"{one.arm}, T={one.temperature:g}",
            tuple(
                Mark(series, found.tokens)
                for series, found in enumerate((one.shared, one.independent))
                if found is not None
            ),
        )
        for one in summary.comparisons
    ]
    return draw(
        "Token agreement with standard mode",
        "share of positions with the same token",
        ("the same seeds", "other seeds"),
        lines,
        reference=1.0,
    )


def _sameness(summary: Summary) -> Grid:
    rows = tuple(
        (
            f"{one.temperature:g}",
            one.arm + (" (lossy)" if one.lossy else ""),
            f"{one.answers}",
            *_agreement(one.shared),
            *_agreement(one.independent),
            one.verdict,
        )
        for one in summary.comparisons
    )
    return Grid(
        title="Beside standard mode",
        headings=(
            *("temperature", "arm", "answers", "same answer", "same tokens"),
            *("same answer, other seeds", "same tokens, other seeds", "verdict"),
        ),
        rows=rows,
        notes=tuple(_notes(summary)),
    )


def _notes(summary: Summary) -> Iterator[str]:
    if summary.answers < summary.planned:
        yield (
            f"Interrupted: {summary.answers} of {summary.planned} answers are there. The same command "
            "with the same --out goes on."
        )
    if any(one.arm == AGAIN and one.temperature > 0 for one in summary.comparisons):
        yield (
            f"With other seeds two answers differ whoever wrote them: {AGAIN!r} is standard mode beside "
            "itself. An arm that agrees no less than that has lost nothing."
        )
    for one in summary.comparisons:
        if one.divergence is not None:
            at = one.divergence
            ahead = "where standard mode ended or had no choice"
            if at.margin is not None:
                ahead = f"where standard mode's token was {at.margin:.3g} nats ahead"
            yield (
                f"{one.arm}, T={one.temperature:g}: parts from standard mode at token {at.position} of "
                f"{at.prompt!r}, {ahead}."
            )


def _laws(summary: Summary) -> Grid:
    rows = tuple(
        (
            f"{one.temperature:g}",
            one.arm,
            figure(one.log10_e, "+.2f"),
            _p(one.mmd),
            _p(one.separation),
            figure(one.entropy),
            _mean(one.surprisal) if one.temperature else "–",
            _ratio(one.tail),
            _ratio(one.draft_blind),
            _ratio(one.hedge_tokens),
        )
        for one in summary.comparisons
    )
    return Grid(
        title="Do the tokens follow the model's law?",
        headings=(
            *("temperature", "arm", "log10 e", "MMD p", "classifier p", "entropy"),
            *("surprisal − entropy", "tail", "draft-blind", "hedges"),
        ),
        rows=rows,
        notes=(
            "log10 e bets against the law, token by token; p compares with answers of standard mode to "
            "other seeds. Tail, draft-blind and hedges are tokens seen / expected: 1 is right.",
        ),
    )


def _texts(summary: Summary) -> Grid:
    rows = tuple(
        (
            f"{one.temperature:g}",
            one.arm,
            f"{one.quality.tokens:.1f}",
            _interval(one.quality.tokens_difference, "+.1f"),
            f"{one.quality.hedges:.2f}",
            _interval(one.quality.hedges_difference, "+.2f"),
            _equivalence(one),
            f"{one.quality.repetition:.3f}",
            f"{one.quality.loops.hits}",
            figure(one.acceptance_rate, ".0%"),
            figure(one.mean_acceptance_length, ".2f"),
        )
        for one in summary.comparisons
    )
    return Grid(
        title="What the texts are like",
        headings=(
            *("temperature", "arm", "tokens", "difference (95 %)", "hedges in 100 words"),
            *("difference (95 %)", "equivalent", "repetition", "loops", "accepted"),
            "tokens a pass",
        ),
        rows=rows,
        notes=(
            "Differences are from standard mode with the same seeds, prompt by prompt. Equivalent: "
            f"within ±{summary.options.margin:g} phrases, by two one-sided tests at 5 %.",
        ),
    )


def _facts(summary: Summary) -> Grid:
    rows = tuple(
        (
            f"{one.temperature:g}",
            one.arm,
            f"{facts.exact.hits} of {facts.exact.rows}",
            with_bounds(facts.contains.share, facts.contains.low, facts.contains.high),
            f"{facts.f1:.3f}",
            _interval(facts.f1_gap, "+.3f"),
        )
        for one in summary.comparisons
        if (facts := one.factuality) is not None
    )
    return Grid(
        title="Against the gold answers",
        headings=("temperature", "arm", "exact", "contains (95 %)", "F1", "F1 gap (95 %)"),
        rows=rows,
    )


def _agreement(found: Agreement | None) -> tuple[str, str]:
    if found is None or not found.exact.rows:
        return "–", "–"
    return f"{found.exact.share:.1%}", f"{found.tokens:.1%}"


def _p(found: TwoSample | None) -> str:
    return "–" if found is None else f"{found.p:.3f}"


def _mean(found: Difference) -> str:
    return with_bounds(found.mean, found.low, found.high, "+.3f")


def _ratio(found: Difference) -> str:
    return with_bounds(found.ratio, found.ratio_low, found.ratio_high, ".2f")


def _interval(found: Interval | None, spec: str) -> str:
    return "–" if found is None else with_bounds(found.mean, found.low, found.high, spec)


def _equivalence(one: Comparison) -> str:
    found = one.quality.hedges_equivalence
    if found.p is None:
        return "too few prompts"
    return f"{'yes' if found.equivalent else 'not shown'} (p {found.p:.3f})"
