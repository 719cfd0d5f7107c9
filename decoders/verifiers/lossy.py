"""The account of a lossy verifier: what each token costs, and the end of it.

A rule may emit from another law than the target's. Its cost at a position is

    TV(emission, target) = 1/2 · Σ_x |emission(x) - target(x)|

computed exactly before the token is drawn. The total variation between the laws of whole answers is
at most the expected sum of these costs (replace the target's law by the rule's one position after
the other), so a row that turns to the exact rule before its sum passes ``max_distortion`` has an
answer within ``max_distortion`` of the target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from decoders.verifiers.base import DraftedRow, DraftedToken, Verdict, require_law, split, walk
from decoders.verifiers.rejection import exact_token


class Rule(Protocol):
    """How a lossy verifier picks the token at the position of a draft token. No state."""

    def emission(self, drafted: DraftedToken) -> Tensor | None:
        """The law of the token that `emit` gives, float64 [vocab]; None to leave it to the exact rule.

        ``drafted.token_id`` counts as not yet drawn: the law is over everything that is random given
        the tokens before.
        """
        ...

    def emit(self, drafted: DraftedToken) -> int:
        """The token, drawn for any purposes but CHOICE and ACCEPT."""
        ...


class LossyVerifier:
    """Follows a rule until its budget would be passed, and the exact rule from then on.

    Keeps the account of one row, so each request needs its own. ``max_distortion`` is a total
    variation, in (0, 1].
    """

    name = "lossy"
    exact = False

    def __init__(self, rule: Rule, max_distortion: float) -> None:
        if not 0.0 < max_distortion <= 1.0:
            raise ValueError(f"max_distortion must be in (0, 1], not {max_distortion}")
        self.max_distortion = max_distortion
        self.distortion = 0.0
        """Spent so far."""
        self.exhausted = False
        """Whether the row has turned to the exact rule for good."""
        self._rule = rule
        self._next_position = 0

    def verify(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        """Judge token by token. Raises ValueError when another row has used this verifier."""
        for row in rows:
            require_law(row.draft)
        parts = split(scores, rows)
        return [self._verify(part, row) for part, row in zip(parts, rows, strict=True)]

    def _verify(self, scores: Tensor, row: DraftedRow) -> Verdict:
        if row.position < self._next_position:
            raise ValueError(
                f"a {self.name} verifier keeps one row's account: give each request its own"
            )
        costs: list[float] = []

        def judge(drafted: DraftedToken) -> int:
            cost = self._cost(drafted)
            costs.append(cost or 0.0)
            return exact_token(drafted) if cost is None else self._rule.emit(drafted)

        verdict = walk(scores, row, judge)
        self._next_position = row.position + len(verdict.token_ids)
        costs += [0.0] * (len(verdict.token_ids) - len(costs))  # the bonus token is the target's
        return Verdict(verdict.token_ids, verdict.num_accepted, tuple(costs))

    def _cost(self, drafted: DraftedToken) -> float | None:
        """What the rule costs here, now spent; None where the exact rule is to be followed.

        Decided before the token is drawn: a budget that looked at it would bend the law once more.
        """
        emission = None if self.exhausted else self._rule.emission(drafted)
        if emission is None:
            return None
        cost = total_variation(emission, drafted.target_probs)
        if self.distortion + cost > self.max_distortion:
            self.exhausted = True
            return None
        self.distortion += cost
        return cost


def total_variation(law: Tensor, other: Tensor) -> float:
    """Half the summed difference of two laws [vocab]: 0 for equal, 1 for disjoint ones."""
    return 0.5 * (law - other).abs().sum().item()
