"""The seam to draft sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from decoders.draft import Draft
from decoders.noise import Greedy, Noise
from decoders.price import Price

Processors = Callable[[Tensor, Sequence[int]], Tensor]
"""From the logits [1, vocab] of a draft model, after the draft tokens given beside them, to scores
[1, vocab of the target]."""


@dataclass(frozen=True)
class DraftRequest:
    """What a draft source is told of one sequence."""

    sequence_id: int
    token_ids: Sequence[int]
    """Prompt and output so far; grows in place between calls and is never cut."""
    max_tokens: int
    """At least 1."""
    position: int = 0
    """Output position of the draft's first token."""
    noise: Noise = Greedy()
    """To draw a proposal with, for purpose CHOICE at the position of the token: the `coupled`
    verifier then chooses with the same noise, and all others never touch it."""
    scope: str | None = None
    """Whose ended sequences the draft may depend on too; None: nobody's. Given where no draft can
    move what is emitted: an ended answer has met the coins that another verifier would judge with
    when its seed comes again."""
    process: Processors = lambda logits, drafted: logits
    """Does to a draft model's logits what is done to the target's. A draft that is drawn without
    is no less exact, only accepted less often."""
    wants_law: bool = True
    """Whether the row's verifier looks at the law of a draft. Where not, a drawn one is judged as
    given too, and to state its law is work for nothing."""


class DraftSource(Protocol):
    """A proposer of tokens. Called from the engine's thread only, for all rows of a step at once."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of at most its ``max_tokens``; empty where it has nothing to say.

        A draft must be a function of the sequence's tokens (and its noise) alone, never of the
        other rows; where there is a scope, also of its sequences that have ended. One that is drawn
        states a dense law, unless anything was dropped for what was drawn: then it is one-hot, or
        its law is renormalised (see `Draft.select`).
        """
        ...

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended; free what is kept for it."""
        ...


@runtime_checkable
class PricedDraftSource(Protocol):
    """What a draft source has too that computes for its drafts: it is asked only for what will pay."""

    @property
    def name(self) -> str:
        """The `source` of its drafts."""
        ...

    def price(self, request: DraftRequest) -> Price | None:
        """What a draft would cost; None where there can be none now. Computes nothing."""
        ...
