"""How many draft tokens are worth their time: expected tokens against the measured cost of a step.

A draft token joins the step while the step then emits more tokens per second. The time of a step
depends on the tokens of all its rows, so under load the number falls to 0 by itself. A draft that a
model has to draw is ruled on before it is drawn, with the time of drawing in the balance. None of
this can change a token; it knows no model, no source and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from decoders.acceptance import Acceptance, DraftKind, History, survivals
from decoders.balance import Balance
from decoders.offer import Offer
from decoders.profile import Profile

MAX_LOSS = 0.02
"""Share of its standard speed that a domain may lose to drafts of one source."""
_CREDIT = 2.0
_MAX_CREDIT = 16.0
_EXPLORE_EVERY = 64
_PATIENCE = 2.0
"""Tokens that a row's rejected drafts may cost one after the other until it pauses."""
_COOLDOWN = 8
_MAX_COOLDOWN = 256
_LONG_MATCH = 8


class Why(StrEnum):
    """Why a step of a row that may draft had the number of draft tokens it had."""

    LIMIT = "limit"
    """All that was proposed: the source or the mode set the limit."""
    COST = "cost"
    """More would not have paid."""
    BUDGET = "budget"
    """The drafts of this source and domain have lost what they may lose."""
    COOLDOWN = "cooldown"
    """The row's last drafts were rejected whole."""
    EXPLORE = "explore"
    """It does not pay; tried to learn whether it would again."""
    GATE = "gate"
    """A gate let no more stand."""
    CONSTRAINT = "constraint"
    """What follows may not be said."""
    NO_MATCH = "no_match"
    """The source had nothing to propose."""
    BEHIND = "behind"
    """The draft model is still reading what is there."""
    END = "end"
    """The answer has no room for a draft."""


@dataclass(frozen=True)
class Ruling:
    """How many draft tokens one row may have."""

    num_draft_tokens: int
    why: Why


class Cost(Protocol):
    """Decides between proposing and computing."""

    def admit(self, offers: Sequence[Offer]) -> list[Ruling]:
        """One ruling for each row of a step. May depend on nothing that the step will draw.

        A row whose draft has a price is then asked for as many tokens as the ruling says.
        """
        ...

    def observe(self, kind: DraftKind, history: History, proposed: int, accepted: int) -> None:
        """What became of an admitted draft."""
        ...


class EverythingPays:
    """No cost model: every draft is admitted whole."""

    def admit(self, offers: Sequence[Offer]) -> list[Ruling]:
        """All of every draft."""
        return [Ruling(offer.num_draft_tokens, Why.LIMIT) for offer in offers]

    def observe(self, kind: DraftKind, history: History, proposed: int, accepted: int) -> None:
        """Nothing to learn."""


class CostModel:
    """Admits the draft tokens that raise the step's expected tokens per second.

    With E(K) = 1 + sum of survivals and T(K) from the profile at the token count of the whole step,
    it maximises sum E / T over all rows of the step together. ``frozen`` learns nothing, so that
    the same step always gets the same ruling.
    """

    def __init__(self, profile: Profile, *, frozen: bool = False) -> None:
        self._profile = profile
        self._frozen = frozen
        self._acceptance = Acceptance()
        self._credit: dict[tuple[str, str], float] = {}
        self._refused: dict[DraftKind, int] = {}

    def admit(self, offers: Sequence[Offer]) -> list[Ruling]:
        """One ruling for each row of a step."""
        step = Balance(self._profile, offers)
        for offer in offers:
            if offer.num_draft_tokens:
                self._earn(offer.kind, MAX_LOSS)
        cooling = {i for i, offer in enumerate(offers) if self._cools(offer)}
        chances = {
            i: survivals(
                self._acceptance.rates(offer.kind, offer.num_draft_tokens), offer.history.ratio
            )
            for i, offer in enumerate(offers)
            if offer.num_draft_tokens and i not in cooling
        }
        counts = step.best(chances)
        rulings = {i: Ruling(0, Why.COOLDOWN) for i in cooling}
        # In the order in which draft models read, so that each row is charged for what it has read.
        for i in sorted(range(len(offers)), key=lambda i: offers[i].num_unread):
            if i not in cooling:
                rulings[i] = self._rule(offers[i], counts.get(i, 0), step)
        return [rulings[i] for i in range(len(offers))]

    def observe(self, kind: DraftKind, history: History, proposed: int, accepted: int) -> None:
        """Learn from a verified draft of ``proposed`` tokens."""
        if self._frozen or not proposed:
            return
        rates = self._acceptance.rates(kind, proposed)
        history.add(sum(rates[: accepted + 1]), accepted)
        self._acceptance.add(kind, proposed, accepted)
        self._earn(kind, accepted)
        if accepted:
            history.lost = 0.0
            history.longest_miss = history.next_cooldown = 0
            return
        history.longest_miss = max(history.longest_miss, kind.match_length)
        if history.lost >= _PATIENCE or history.next_cooldown:
            history.cooldown = history.next_cooldown or _COOLDOWN
            history.next_cooldown = min(2 * history.cooldown, _MAX_COOLDOWN)

    def _cools(self, offer: Offer) -> bool:
        """Whether the row sits out; a match longer than all that failed ends its cooldown."""
        history = offer.history
        if not history.cooldown:
            return False
        if offer.kind.match_length > max(_LONG_MATCH, history.longest_miss):
            history.cooldown = history.next_cooldown = 0
            history.lost = 0.0
            return False
        history.cooldown -= 1
        return offer.num_draft_tokens > 0

    def _rule(self, offer: Offer, count: int, step: Balance) -> Ruling:
        if self._frozen or not offer.num_draft_tokens:
            return Ruling(count, _cut(count, offer))
        why = _cut(count, offer)
        if not count and self._explores(offer.kind):
            count, why = 1, Why.EXPLORE
        credit = self._credit.get(_account(offer.kind), _CREDIT) - step.reading(offer)
        price = step.price(offer)
        if count and count * price > credit:
            count, why = max(int(credit / price), 0) if price else 0, Why.BUDGET
        if count:
            due = step.due(offer, count)
            offer.history.lost += due
            self._earn(offer.kind, -due)
        return Ruling(count, why)

    def _explores(self, kind: DraftKind) -> bool:
        """Whether this refusal is the one in so many that is tried all the same."""
        key = DraftKind(kind.source, kind.bucket, kind.domain)
        self._refused[key] = (self._refused.get(key, 0) + 1) % _EXPLORE_EVERY
        return self._refused[key] == 0

    def _earn(self, kind: DraftKind, tokens: float) -> None:
        """Book what drafts won or cost against standard decoding, in tokens."""
        account = _account(kind)
        credit = self._credit.get(account, _CREDIT) + tokens
        self._credit[account] = min(credit, _MAX_CREDIT)


def _cut(count: int, offer: Offer) -> Why:
    return Why.LIMIT if count == offer.num_draft_tokens else Why.COST


def _account(kind: DraftKind) -> tuple[str, str]:
    return kind.source, kind.domain
