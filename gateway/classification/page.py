"""The model card as a page, written from an evaluation and a contract, and from nothing else.

The prose is ``card_template.md`` beside this module; the figures come from the two files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from gateway.classification.card import Evaluation
from gateway.classification.contract import Contract
from gateway.classification.evaluation import NONE, Group
from gateway.classification.intervals import Rate
from gateway.classification.rows import Corpus
from gateway.types import DOMAINS

_TEMPLATE = Path(__file__).parent / "card_template.md"
_MIN_ROWS = 20
"""Fewer rows are no weak spot, only few rows."""
_NUM_WEAKEST = 3


def write_card(evaluation: Evaluation, contract: Contract) -> str:
    """Markdown. The same figures give the same page."""
    report = evaluation.report
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        domain_names=", ".join(DOMAINS),
        guarded=" and ".join(report.guard.domains),
        classifier=evaluation.classifier,
        classifier_hash=evaluation.classifier_hash,
        how=_how(evaluation.held_out),
        num_rows=f"{report.rows:,}",
        num_sources=len(evaluation.data),
        policy=evaluation.policy,
        made_on=contract.made_on,
        contract_rows=f"{contract.rows:,}",
        training=_training(evaluation.training),
        domains=_table(
            "domain | rows | bar | recall | precision | false alarms | F1 | average precision | ECE",
            (
                f"{one.domain} | {one.rows:,} | {'≥ ' if one.banned else ''}{one.threshold:g}"
                f" | {_rate(one.recall)} | {_rate(one.precision)} | {_rate(one.false_alarms)}"
                f" | {one.f1:.3f} | {one.average_precision:.3f} | {one.calibration_error:.3f}"
                for one in report.domains
            ),
        ),
        macro_f1=f"{report.macro_f1:.3f}",
        top_is_right=_rate(report.top_is_right),
        guard_recall=_rate(report.guard.recall),
        guard_false_bans=_rate(report.guard.false_bans),
        languages=_groups("language", report.languages),
        slices=_groups("slice", report.slices),
        sources=_groups("source", report.sources),
        contract_how=_contract_how(contract),
        thresholds=_table(
            "domain | bar | recall | of | missed at most | false bans | worst source",
            (
                f"{one.domain} | {one.threshold:g} | {_rate(one.recall)} | {one.recall.rows:,}"
                f" | {one.miss_bound:.2%} | {_rate(one.false_bans)} | "
                + (
                    f"{_cell(one.worst_source)}: {_rate(one.worst_recall)}"
                    if one.worst_recall is not None
                    else "–"
                )
                for one in contract.domains
            ),
        ),
        confidence=f"{contract.confidence:.0%}",
        weakest=_weakest((*report.slices, *report.languages, *report.sources)),
    )


def _how(held_out: bool) -> str:
    if held_out:
        return "held out (each row scored by a model that had not seen its source)"
    return "by the shipped weights themselves, which flatters on rows that they were made from"


def _contract_how(contract: Contract) -> str:
    met = [one.domain for one in contract.domains if contract.meets(one)]
    missed = [one.domain for one in contract.domains if not contract.meets(one)]
    verb = "chosen" if contract.chosen else "given by the policy, and measured"
    said = f"The bars were {verb} on {contract.rows:,} rows, {_how(contract.held_out)}. "
    said += f"The target, a miss rate of {contract.miss_rate:.2%}, is "
    if not missed:
        return said + "met."
    return said + (f"met for {', '.join(met)} and " if met else "") + f"not met for {_and(missed)}."


def _training(corpora: Sequence[Corpus]) -> str:
    if not corpora:
        return "Not said."
    licences: Counter[str] = Counter()
    for corpus in corpora:
        # What stands in brackets is a note on one source.
        licences[corpus.license.partition(" (")[0]] += corpus.rows
    total = sum(licences.values())
    by_source = _table(
        "source | licence | rows",
        (f"{_cell(c.source)} | {_cell(c.license)} | {c.rows:,}" for c in corpora),
    )
    by_licence = _table(
        "licence | rows", (f"{_cell(name)} | {rows:,}" for name, rows in licences.most_common())
    )
    return (
        f"{total:,} rows of {len(corpora)} sources. Third-party rows are not in the repository.\n\n"
        f"{by_licence}\n\n{by_source}"
    )


def _groups(name: str, groups: Sequence[Group]) -> str:
    if not [one for one in groups if one.name != NONE]:
        return "Not said."
    return _table(
        f"{name} | rows | recall | of | false bans | of",
        (
            f"{_cell(one.name)} | {one.rows:,} | {_rate(one.recall)} | {one.recall.rows:,}"
            f" | {_rate(one.false_bans)} | {one.false_bans.rows:,}"
            for one in groups
        ),
    )


def _weakest(groups: Sequence[Group]) -> str:
    named = {one.name: one for one in groups if one.name != NONE}.values()
    missed = sorted(
        (one for one in named if one.recall.rows >= _MIN_ROWS), key=lambda one: one.recall.share
    )
    banned = sorted(
        (one for one in named if one.false_bans.rows >= _MIN_ROWS),
        key=lambda one: -one.false_bans.share,
    )
    lines = []
    if missed:
        said = "; ".join(f"{one.name} {_rate(one.recall)}" for one in missed[:_NUM_WEAKEST])
        lines.append(f"- Lowest recall: {said}.")
    if banned:
        said = "; ".join(f"{one.name} {_rate(one.false_bans)}" for one in banned[:_NUM_WEAKEST])
        lines.append(f"- Most false bans: {said}.")
    return "\n".join(lines)


def _table(headings: str, rows: Iterable[str]) -> str:
    count = headings.count("|")
    rule = "|---|" + "---:|" * count
    return "\n".join([f"| {headings} |", rule, *(f"| {row} |" for row in rows)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _rate(rate: Rate) -> str:
    if not rate.rows:
        return "–"
    return f"{_share(rate.share)} ({_share(rate.low)}–{_share(rate.high)})"


def _share(share: float) -> str:
    return f"{share:.3f}".removeprefix("0") if share < 0.9995 else "1.00"


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
