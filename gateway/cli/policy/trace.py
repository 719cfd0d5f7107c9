"""How a terminal shows what became of each rule."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gateway.routing.explain import ConditionTrace
from gateway.types import RuleTrace


def trace_table(trace: Sequence[RuleTrace]) -> Table:
    """One line a rule."""
    table = Table(box=None, padding=(0, 2))
    for heading in ("rule", "kind", "matched", "why"):
        table.add_column(heading, overflow="fold")
    for rule in trace:
        style = "bold" if rule.matched else "dim"
        matched = "yes" if rule.matched else "no"
        cells = (rule.rule, rule.kind, matched, rule.detail)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def trace_tree(trace: Sequence[RuleTrace], conditions: Sequence[ConditionTrace | None]) -> Tree:
    """Every rule, and below it every condition with the value that it saw."""
    tree = Tree(Text("rules", style="bold"))
    for i, rule in enumerate(trace):
        branch = tree.add(_line(rule.matched, f"{rule.kind} {rule.rule}: {rule.detail}"))
        inside = conditions[i] if i < len(conditions) else None
        if inside is not None and inside.inside:  # of a single condition, the rule's line says all
            _grow(branch, inside)
    return tree


def _grow(branch: Tree, condition: ConditionTrace) -> None:
    text = condition.detail or condition.condition
    below = branch.add(_line(condition.holds, text))
    for part in condition.inside:
        _grow(below, part)


def _line(holds: bool, text: str) -> Text:
    return Text(f"{'✓' if holds else '·'} {text}", style="bold" if holds else "dim")
