"""How many draft tokens are worth their time: expected tokens against the measured cost of a step.

A draft token joins the step while the step then emits more tokens per second. The time of a step
depends on the tokens of all its rows, so under load the number falls to 0 by itself. None of this
can change a token; it knows no model, no source and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from decoders.acceptance import Acceptance, DraftKind, History, survivals
from decoders.profile import Profile

HYSTERESIS = 0.04
"""Tokens a step that a row's draft must promise beyond what it costs."""
MAX_LOSS = 0.02
"""Share of its standard speed that a domain may lose to drafts of one source."""
_CREDIT = 2.0
_MAX_CREDIT = 16.0
_EXPLORE_EVERY = 64
_MISSES = 3
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
    END = "end"
    """The answer has no room for a draft."""


@dataclass(frozen=True)
class Offer:
    """One row's part of the next step, before its draft is cut."""

    num_tokens: int = 1
    """Tokens that must be computed whatever becomes of the draft."""
    decodes: bool = True
    """Whether the row emits in this step."""
    num_cached: int = 0
    """Tokens that it attends to besides its own."""
    num_draft_tokens: int = 0
    kind: DraftKind = DraftKind("")
    samples: bool = False
    """Whether its tokens are chosen with noise, which takes time too."""
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class Ruling:
    """How many draft tokens one row may have."""

    num_draft_tokens: int
    why: Why


class Cost(Protocol):
    """Decides between proposing and computing."""

    def admit(self, offers: Sequence[Offer]) -> list[Ruling]:
        """One ruling for each row of a step. May depend on nothing that the step will draw."""
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
        step = _Step(self._profile, offers)
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
        rulings = []
        for i, offer in enumerate(offers):
            if i in cooling:
                rulings.append(Ruling(0, Why.COOLDOWN))
            else:
                rulings.append(self._rule(offer, counts.get(i, 0), step))
        return rulings

    def observe(self, kind: DraftKind, history: History, proposed: int, accepted: int) -> None:
        """Learn from a verified draft of ``proposed`` tokens."""
        if self._frozen or not proposed:
            return
        rates = self._acceptance.rates(kind, proposed)
        history.add(sum(rates[: accepted + 1]), accepted)
        self._acceptance.add(kind, proposed, accepted)
        self._earn(kind, accepted)
        if accepted:
            history.num_misses = history.longest_miss = history.next_cooldown = 0
            return
        history.num_misses += 1
        history.longest_miss = max(history.longest_miss, kind.match_length)
        if history.num_misses >= _MISSES or history.next_cooldown:
            history.cooldown = history.next_cooldown or _COOLDOWN
            history.next_cooldown = min(2 * history.cooldown, _MAX_COOLDOWN)

    def _cools(self, offer: Offer) -> bool:
        """Whether the row sits out; a match longer than all that failed ends its cooldown."""
        history = offer.history
        if not history.cooldown:
            return False
        if offer.kind.match_length > max(_LONG_MATCH, history.longest_miss):
            history.cooldown = history.next_cooldown = history.num_misses = 0
            return False
        history.cooldown -= 1
        return offer.num_draft_tokens > 0

    def _rule(self, offer: Offer, count: int, step: _Step) -> Ruling:
        if self._frozen or not offer.num_draft_tokens:
            return Ruling(count, _cut(count, offer))
        why = _cut(count, offer)
        if not count and self._explores(offer.kind):
            count, why = 1, Why.EXPLORE
        credit = self._credit.get(_account(offer.kind), _CREDIT)
        price = step.price(offer)
        if count * price > credit:
            count, why = int(credit / price), Why.BUDGET
        self._earn(offer.kind, -count * price)
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


class _Step:
    """The time of one step as draft tokens join it."""

    def __init__(self, profile: Profile, offers: Sequence[Offer]) -> None:
        self._profile = profile
        self._offers = offers
        self._num_rows = len(offers)
        self._num_tokens = sum(offer.num_tokens for offer in offers)
        self._num_decoding = sum(offer.decodes for offer in offers)
        self._num_admitted = 0
        sampled = sum(offer.decodes and offer.samples for offer in offers)
        # Prefill that shares the step would be paid anyway, so it is no part of what a token costs.
        self._plain = (
            profile.forward_seconds(self._num_decoding, self._num_decoding)
            if self._num_decoding
            else 0.0
        ) + sampled * profile.sampling_seconds
        attended = sum(offer.num_cached for offer in offers if offer.decodes)
        self._plain += attended * profile.context_seconds

    def best(self, chances: dict[int, list[float]]) -> dict[int, int]:
        """Draft tokens per row that maximise expected tokens / time; rows that win too little get none."""
        ranked = sorted(
            ((chance, i, k) for i, row in chances.items() for k, chance in enumerate(row)),
            key=lambda entry: (-entry[0], entry[1], entry[2]),
        )
        best_rate = self._num_decoding / self._plain if self._plain else 0.0
        tokens, sampling, size = float(self._num_decoding), 0.0, 0
        for count, (chance, i, _) in enumerate(ranked, 1):
            tokens += chance
            sampling += self._sampling(self._offers[i])
            rate = tokens / (self._plain + self._added(count) + sampling)
            if rate > best_rate:
                best_rate, size = rate, count
        self._num_admitted = size
        counts: dict[int, int] = {}
        for _, i, _ in ranked[:size]:
            counts[i] = counts.get(i, 0) + 1
        return {
            i: count
            for i, count in counts.items()
            if sum(chances[i][:count]) - count * self.price(self._offers[i]) >= HYSTERESIS
        }

    def price(self, offer: Offer) -> float:
        """What one draft token of this row costs, in tokens that its time would have decoded."""
        count = max(self._num_admitted, 1)
        seconds = self._added(count) / count + self._sampling(offer)
        return seconds * self._num_decoding / self._plain if self._plain else 0.0

    def _added(self, count: int) -> float:
        """Seconds that ``count`` draft tokens add to the pass."""
        before = self._profile.forward_seconds(self._num_rows, self._num_tokens)
        return self._profile.forward_seconds(self._num_rows, self._num_tokens + count) - before

    def _sampling(self, offer: Offer) -> float:
        return self._profile.sampling_seconds if offer.samples else 0.0


def _cut(count: int, offer: Offer) -> Why:
    return Why.LIMIT if count == offer.num_draft_tokens else Why.COST


def _account(kind: DraftKind) -> tuple[str, str]:
    return kind.source, kind.domain
