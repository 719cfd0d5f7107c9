"""`Demotions`: which kinds of traffic are decoded in standard mode because evidence speaks against theirs.

Immutable: a request is decided by those that it met, and the same ones decide the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from gateway.cell import OTHER, decided_cell
from gateway.routing.tighten import standard
from gateway.types import EXACT_VERIFIERS, ChatRequest, Decision, Mode, RuleTrace, Signals

KIND = "evidence"
"""Of the trace of a demotion."""


class Demotions:
    """Cells by id, and why they are demoted."""

    def __init__(
        self, whys: Mapping[str, str] | None = None, *, known: Collection[str] = frozenset()
    ) -> None:
        """``known`` are the cells that have a place of their own: where all others together are
        demoted, these are not."""
        self._whys = dict(whys or {})
        self._known = frozenset(known)

    @classmethod
    def recorded(cls, trace: Iterable[RuleTrace]) -> Demotions:
        """Those that a decision on record met."""
        return cls({line.rule: line.detail for line in trace if line.kind == KIND})

    def apply(
        self, chosen: Decision, signals: Signals, request: ChatRequest
    ) -> tuple[Decision, RuleTrace | None]:
        """The decision, in standard mode where its cell is demoted, and the trace of that."""
        if not self._whys or chosen.mode is Mode.STANDARD or chosen.deny is not None:
            return chosen, None
        cell_id = decided_cell(signals, request.model, chosen).id
        if cell_id not in self._whys and (OTHER.id not in self._whys or cell_id in self._known):
            return chosen, None
        found = cell_id if cell_id in self._whys else OTHER.id
        why = self._whys[found]
        slower = standard(chosen, f"{chosen.mode.value} is demoted: {why}")
        slower = msgspec.structs.replace(slower, verifier=EXACT_VERIFIERS[0])
        return slower, RuleTrace(found, KIND, True, why)


NO_DEMOTIONS = Demotions()
