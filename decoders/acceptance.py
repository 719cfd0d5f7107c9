"""How often drafts are accepted, from counts that forget: by source, match length, domain, position.

Each level leans on the one above it until it has seen enough: a domain on the source, a position on
the one before it, and all on a prior by match length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

HALF_LIFE = 200
"""Drafts of one kind after which a count weighs half."""
_DECAY = 0.5 ** (1 / HALF_LIFE)
_STRENGTH = 4.0
"""Verified tokens that the level above is worth."""
_POSITIONS = 8
"""Draft positions counted apart; those behind share the last."""
_PRIORS = (0.5, 0.25, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Acceptance of the next draft token by match-length bucket: unknown, 1, 2, 3-4, 5-8, 9-16, more.

About what the suffix source reaches on the demo model over prompts of ten domains."""
_ROW_DECAY = 0.5 ** (1 / 24)
_ROW_STRENGTH = 3.0


@dataclass(frozen=True)
class DraftKind:
    """What a draft is known by before it is verified."""

    source: str
    match_length: int = 0
    """Tokens of context that the source recognised; 0 where it does not say."""
    domain: str = ""

    @property
    def bucket(self) -> int:
        """Match lengths in doubling ranges: 0, 1, 2, 3-4, 5-8, 9-16, more."""
        if self.match_length <= 0:
            return 0
        return min(1 + (self.match_length - 1).bit_length(), len(_PRIORS) - 1)


@dataclass
class History:
    """What the drafts of one row have come to; learned by and for that row alone."""

    num_accepted: float = 0.0
    num_expected: float = 0.0
    lost: float = 0.0
    """What its drafts have cost since one was accepted, in tokens."""
    cooldown: int = 0
    """Steps left without a draft."""
    next_cooldown: int = 0
    longest_miss: int = 0
    """Longest match among those misses."""

    @property
    def ratio(self) -> float:
        """How much better than expected this row's drafts do; 1 for a new row."""
        return (self.num_accepted + _ROW_STRENGTH) / (self.num_expected + _ROW_STRENGTH)

    def add(self, expected: float, accepted: int) -> None:
        """Count the verified tokens of one draft."""
        self.num_accepted = self.num_accepted * _ROW_DECAY + accepted
        self.num_expected = self.num_expected * _ROW_DECAY + expected


@dataclass
class _Counts:
    """Decayed counts by draft position."""

    tried: list[float] = field(default_factory=lambda: [0.0] * _POSITIONS)
    accepted: list[float] = field(default_factory=lambda: [0.0] * _POSITIONS)

    def add(self, num_proposed: int, num_accepted: int) -> None:
        for counts in (self.tried, self.accepted):
            counts[:] = [count * _DECAY for count in counts]
        for position in range(min(num_accepted + 1, num_proposed)):
            at = min(position, _POSITIONS - 1)
            self.tried[at] += 1
            self.accepted[at] += position < num_accepted

    def rate(self, position: int, prior: float) -> float:
        """Mean of the Beta posterior whose prior has mean ``prior``."""
        at = min(position, _POSITIONS - 1)
        return (self.accepted[at] + _STRENGTH * prior) / (self.tried[at] + _STRENGTH)


class Acceptance:
    """The table of rates; a rate is the chance of a token whose predecessors were accepted."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, str], _Counts] = {}
        self._nothing = _Counts()

    def rates(self, kind: DraftKind, count: int) -> list[float]:
        """The acceptance rates of the first ``count`` positions of a draft of this kind."""
        overall = self._counts.get((kind.source, kind.bucket, ""), self._nothing)
        own = self._counts.get((kind.source, kind.bucket, kind.domain), self._nothing)
        rates = []
        before = _PRIORS[kind.bucket]
        for position in range(count):
            before = overall.rate(position, before)
            rates.append(own.rate(position, before) if kind.domain else before)
        return rates

    def add(self, kind: DraftKind, num_proposed: int, num_accepted: int) -> None:
        """Count one verified draft."""
        for domain in {"", kind.domain}:
            key = (kind.source, kind.bucket, domain)
            self._counts.setdefault(key, _Counts()).add(num_proposed, num_accepted)


def survivals(rates: Sequence[float], ratio: float = 1.0) -> list[float]:
    """The chance that each position is reached and accepted; ``ratio`` scales every rate."""
    chance, result = 1.0, []
    for rate in rates:
        chance *= min(rate * ratio, 0.98)
        result.append(chance)
    return result
