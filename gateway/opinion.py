"""`Opinion`: what a backend finds out about a request by itself, after the decision. Knows no policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is about, seen from inside the backend that answers it."""

    source: str
    """``probe``: read in the hidden states of the prompt."""
    content_hash: str
    """Identifies the weights."""
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Domain → calibrated probability; empty where there is an error."""
    rule: str | None = None
    """The rule by which the decided mode would not be allowed, had the scores been known."""
    error: str | None = None
    """Why there are no scores, or why they could not be judged."""


Review = Callable[[Mapping[str, float]], str | None]
"""What the policy that decided says of domain probabilities that were not known to it: the rule by
which it would not allow the decided mode, or None. Pure, quick, and safe to call from any thread."""
