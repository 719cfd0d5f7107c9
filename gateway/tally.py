"""`Tally`: sums over the tokens that one request emitted, from which evidence is made.

Each is a sum of differences whose expectation, given all that came before, is zero where the emitted
tokens follow the target's law, after all processors.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Moments(msgspec.Struct, frozen=True):
    """Sums over tokens of what was seen, of what was to be expected, and of its variance."""

    observed: float = 0.0
    expected: float = 0.0
    """Conditional expectations under the target's law, given the tokens before."""
    variance: float = 0.0
    """Conditional variances under the target's law."""

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.observed + other.observed,
            self.expected + other.expected,
            self.variance + other.variance,
        )


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of the emitted tokens of one request, over all of its choices."""

    num_tokens: int = 0
    """Emitted tokens that were measured."""
    num_impossible: int = 0
    """Of those, tokens that the target's law gives no probability at all: each is a fault."""
    log_factors: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Alternative to the target's law -> the logarithm of its likelihood ratio, whose expectation is
    at most 1 under the target's law: nats."""
    accepted: Moments = Moments()
    """Draft tokens that were accepted, against sum over tokens of min(target, draft)."""
    surprisal: Moments = Moments()
    """-log of the target's probability of the token, against the entropy of its law: nats."""
    tail: Moments = Moments()
    """Tokens that the target finds improbable."""
    draft_blind: Moments = Moments()
    """Tokens to which the draft's law gives next to nothing."""
    hedging: Moments = Moments()
    """Tokens that may begin a hedge, such as "perhaps"."""

    def __add__(self, other: Tally) -> Tally:
        names = dict.fromkeys((*self.log_factors, *other.log_factors))
        return Tally(
            num_tokens=self.num_tokens + other.num_tokens,
            num_impossible=self.num_impossible + other.num_impossible,
            log_factors={
                name: self.log_factors.get(name, 0.0) + other.log_factors.get(name, 0.0)
                for name in names
            },
            accepted=self.accepted + other.accepted,
            surprisal=self.surprisal + other.surprisal,
            tail=self.tail + other.tail,
            draft_blind=self.draft_blind + other.draft_blind,
            hedging=self.hedging + other.hedging,
        )
