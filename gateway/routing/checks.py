"""Problems that show only when rules are read side by side: dead rules, modes that never come.

Reads entries and their positions; compiles nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gateway.documents import At
from gateway.errors import Problem
from gateway.routing.names import Known, misnamed
from gateway.routing.schema import RESERVED_IDS, Decide, PolicyEntry, RuleEntry
from gateway.routing.sources import Sources
from gateway.types import Mode


def problems(sources: Sources, known: Known) -> list[Problem]:
    """Everything wrong between the rules of one policy, in the order of its files."""
    return sources.ordered(
        itertools.chain(
            misnamed(sources.documents, known),
            _never_chosen(sources),
            _unreachable(sources),
        )
    )


def _blocks(policy: PolicyEntry) -> Iterator[tuple[At, Decide]]:
    for name in RESERVED_IDS:
        yield (name,), getattr(policy, name)
    for i, rule in enumerate(policy.rules):
        if rule.decide is not None:
            yield ("rules", i, "decide"), rule.decide


def _never_chosen(sources: Sources) -> Iterator[Problem]:
    """Modes that are decided although a rule without ``when`` bans them for every request."""
    always = {
        mode: rule.id
        for rule in sources.entry.rules
        if rule.when is None
        for mode in rule.ban or ()
    }
    for at, decide in _blocks(sources.entry):
        if decide.mode in always:
            message = (
                f"{decide.mode.value} is never used: rule {always[decide.mode]!r} always bans it"
            )
            hint = "give the ban a `when`, or decide another mode"
            yield sources.problem(message, (*at, "mode"), hint=hint)


def _unreachable(sources: Sources) -> Iterator[Problem]:
    """Rules after one that always ends the search.

    A decide without ``when`` is passed over where its mode is banned, so later rules stay reachable
    with other modes; a ban is never unreachable, for bans are united whatever their order.
    """
    policy = sources.entry
    bannable = {mode for rule in policy.rules for mode in rule.ban or ()}
    taken: dict[Mode, str] = {}
    ended_by = ""
    for i, rule in enumerate(policy.rules):
        if rule.kind in ("ban", "limit"):
            continue
        blocker = ended_by or _blocker(rule, taken)
        if blocker:
            message = f"rule {rule.id!r} can never apply: {blocker!r} always comes first"
            hint = f"move it up, or give {blocker!r} a `when`"
            yield sources.problem(message, ("rules", i, "id"), hint=hint)
        elif rule.when is None:
            if rule.decide is None or rule.decide.mode not in bannable:
                ended_by = rule.id
            else:
                taken[rule.decide.mode] = rule.id


def _blocker(rule: RuleEntry, taken: dict[Mode, str]) -> str:
    return taken.get(rule.decide.mode, "") if rule.decide is not None else ""
