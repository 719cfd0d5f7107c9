"""One step in the balance: which draft tokens raise its expected tokens per second.

Seconds are those of the target's pass over all rows, and of the passes in which draft models draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoders.offer import HORIZON, Offer
from decoders.price import Passes, Reading
from decoders.profile import Profile

HYSTERESIS = 0.04
"""Tokens a step that a row's draft must promise beyond what it costs."""


class Balance:
    """Expected tokens against seconds, as draft tokens join one step."""

    def __init__(self, profile: Profile, offers: Sequence[Offer]) -> None:
        self._profile = profile
        self._offers = offers
        self._num_rows = len(offers)
        self._num_tokens = sum(offer.num_tokens for offer in offers)
        self._num_decoding = sum(offer.decodes for offer in offers)
        self._num_admitted = 0
        self._passes: dict[str, Passes] = {}
        self._reading: dict[str, Reading] = {}
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
        # What must be drawn first has less to give for the same chance.
        ranked = sorted(
            (
                (chance - self._tokens(self._drawing(self._offers[i])), chance, i, k)
                for i, row in chances.items()
                for k, chance in enumerate(row)
            ),
            key=lambda entry: (-entry[0], entry[2], entry[3]),
        )
        best_rate = self._num_decoding / self._plain if self._plain else 0.0
        tokens, seconds, size = float(self._num_decoding), self._plain, 0
        passes: dict[str, Passes] = {}
        for count, (_, chance, i, k) in enumerate(ranked, 1):
            tokens += chance
            seconds += self._own(self._offers[i]) + _join(passes, self._offers[i], k)
            rate = tokens / (seconds + self._added(count))
            if rate > best_rate:
                best_rate, size = rate, count
        self._num_admitted = size
        counts: dict[int, int] = {}
        for _, _, i, k in ranked[:size]:
            counts[i] = counts.get(i, 0) + 1
            _join(self._passes, self._offers[i], k)
        return {
            i: count
            for i, count in counts.items()
            if self._pays(self._offers[i], sum(chances[i][:count]), count)
        }

    def price(self, offer: Offer) -> float:
        """What one draft token of this row costs, in tokens that its time would have decoded."""
        count = max(self._num_admitted, 1)
        seconds = self._added(count) / count + self._own(offer)
        return self._tokens(seconds + self._drawing(offer))

    def reading(self, offer: Offer) -> float:
        """What it costs until the row's draft model has read all that is there, in tokens."""
        if offer.price is None:
            return 0.0
        return self._tokens(offer.price.reading_seconds(offer.price.num_behind))

    def due(self, offer: Offer, count: int) -> float:
        """What ``count`` draft tokens of this row cost in this step, in tokens.

        Asked once for each row that is admitted, those first whose draft models lack least: so what
        is read in the step is shared out.
        """
        if offer.price is None:
            return count * self.price(offer)
        source, price = offer.kind.source, offer.price
        reading = self._reading.setdefault(source, Reading(price.chunk_tokens))
        num_read = reading.take(price.num_behind)
        due = self._tokens(price.reading_seconds(num_read))
        return due if num_read < price.num_behind else due + count * self.price(offer)

    def _pays(self, offer: Offer, accepted: float, count: int) -> bool:
        """Whether a row wins enough by ``count`` draft tokens of which ``accepted`` are expected."""
        gain = accepted - count * self.price(offer)
        num_steps = min(offer.num_remaining, HORIZON) / (1 + accepted)
        return gain >= HYSTERESIS and gain * num_steps >= self.reading(offer)

    def _tokens(self, seconds: float) -> float:
        """The tokens that the step's rows would decode in this time without drafts."""
        return seconds * self._num_decoding / self._plain if self._plain else 0.0

    def _drawing(self, offer: Offer) -> float:
        """Seconds to draw one draft token of this row."""
        if offer.price is None:
            return 0.0
        passes = self._passes.get(offer.kind.source) or Passes()
        return passes.token_seconds(offer.price, samples=offer.samples)

    def _added(self, count: int) -> float:
        """Seconds that ``count`` draft tokens add to the pass."""
        before = self._profile.forward_seconds(self._num_rows, self._num_tokens)
        return self._profile.forward_seconds(self._num_rows, self._num_tokens + count) - before

    def _own(self, offer: Offer) -> float:
        """Seconds that a draft token of this row takes wherever it stands: attention and choice."""
        attending = offer.num_cached * self._profile.drafted_context_seconds
        return attending + (self._profile.sampling_seconds if offer.samples else 0.0)


def _join(passes: dict[str, Passes], offer: Offer, number: int) -> float:
    """Seconds that this row's draft token ``number`` adds to the passes of its source."""
    if offer.price is None:
        return 0.0
    mine = passes.setdefault(offer.kind.source, Passes())
    return mine.join(offer.price, number, samples=offer.samples)
