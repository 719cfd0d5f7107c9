"""`Replica` and `Arm`: servers that answer alike, and which of them is to answer next."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import httpx

from gateway.backends.openai.breaker import Breaker
from gateway.backends.openai.features import known_of
from gateway.backends.openai.inspection import Finding, Place, inspect
from gateway.backends.openai.settings import Balance, Pace
from gateway.backends.openai.wire import authorization

STANDARD, SPECULATIVE = "standard", "speculative"
_FULLER = 1.25
"""A replica that a prompt belongs to may have so much more than its share before others take it."""


class Replica:
    """One server of an arm."""

    def __init__(self, url: str, model: str, key: str | None, arm: str, pace: Pace) -> None:
        self.url = url
        self.place = Place.of(url)
        self.breaker = Breaker(pace.breaker_failures, pace.breaker_seconds)
        self.running = 0
        self.finding: Finding | None = None
        """None before the first look."""
        self._speculates = False
        self._times_caught = 0
        self._model, self._headers, self._pace = model, authorization(key), pace
        self._arm = arm
        self._looking = asyncio.Lock()

    @property
    def is_up(self) -> bool:
        """Whether it is known to answer."""
        return self.finding is not None and self.finding.up

    @property
    def broke_its_promise(self) -> bool:
        """Whether it speculates where no server may."""
        if self._arm != STANDARD:
            return False
        return self._speculates or (self.finding is not None and self.finding.has_drafted)

    @property
    def usable(self) -> bool:
        """Whether it may be sent a request: up or not yet looked at, true to its arm, not failing."""
        known = self.finding is None or self.finding.up
        return known and not self.broke_its_promise and self.breaker.passable

    @property
    def state(self) -> str:
        """In a word, for people and metrics."""
        if self.broke_its_promise:
            return "attestation_failed"
        if self.finding is None:
            return "unknown"
        if not self.finding.up:
            return "down"
        return "up" if self.breaker.state == "closed" else "breaker_open"

    def catch(self) -> None:
        """It was seen to speculate. That stands until a later look sees that it does not."""
        self._speculates = True
        self._times_caught += 1

    async def look(self, client: httpx.AsyncClient) -> None:
        """Look at it anew."""
        async with self._looking:
            await self._look(client)

    async def look_once(self, client: httpx.AsyncClient) -> None:
        """Look at it, if nobody has: no server is used unseen."""
        if self.finding is None:
            async with self._looking:
                if self.finding is None:
                    await self._look(client)

    async def _look(self, client: httpx.AsyncClient) -> None:
        times_caught = self._times_caught
        found = await inspect(
            client, self.place, self._model, self._headers, self._pace.connect_seconds
        )
        was_down = self.finding is not None and not self.finding.up
        if found.up and was_down:
            self.breaker.succeed()
        if found.has_drafted:
            self.catch()
        # Only another process can have ceased to speculate, and it counts from nothing. A page that
        # is missing clears nobody, nor does one from before an answer that had drafts.
        elif found.clears and times_caught == self._times_caught:
            self._speculates = False
        self.finding = found

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request runs here."""
        self.running += 1
        self.breaker.enter()
        try:
            yield
        finally:
            self.running -= 1
            self.breaker.leave()


class Arm:
    """Replicas that answer alike."""

    def __init__(
        self,
        name: str,
        replicas: Collection[Replica],
        *,
        key: str | None = None,
        balance: Balance = "least_loaded",
        declared: Collection[str] = (),
    ) -> None:
        self.name = name
        self.replicas = tuple(replicas)
        self.key = key
        self._balance = balance
        self._declared = frozenset(declared)
        self._turn = 0
        self.probed: Mapping[str, bool] = {}
        """What probing has shown of each feature."""

    @property
    def usable(self) -> bool:
        """Whether a request could be sent there now."""
        return any(replica.usable for replica in self.replicas)

    @property
    def kind(self) -> str:
        """What its servers are."""
        kinds = (r.finding.kind for r in self.replicas if r.finding is not None and r.finding.up)
        return next(kinds, "unknown")

    @property
    def honours(self) -> frozenset[str]:
        """What it is declared, documented or seen to honour; what was seen counts most."""
        seen = frozenset(name for name, yes in self.probed.items() if yes)
        refuted = frozenset(name for name, yes in self.probed.items() if not yes)
        return (self._declared | known_of(self.kind) | seen) - (refuted - self._declared)

    @property
    def max_length(self) -> int | None:
        """The shortest context that its servers tell of."""
        lengths = [r.finding.max_length for r in self.replicas if r.finding is not None]
        return min((length for length in lengths if length is not None), default=None)

    def choose(self, tried: Collection[Replica], prompt: Callable[[], bytes]) -> Replica | None:
        """The replica that is to answer; None where there is none but those that were tried."""
        free = [each for each in self.replicas if each.usable and each not in tried]
        if not free:
            return None
        if self._balance == "prefix" and len(free) > 1:
            return self._nearest(free, prompt())
        self._turn += 1
        least = min(replica.running for replica in free)
        equal = [replica for replica in free if replica.running == least]
        return equal[self._turn % len(equal)]

    def _nearest(self, free: list[Replica], prompt: bytes) -> Replica:
        """The one that has most likely computed the prompt's beginning, unless it has too much to do.

        Each replica draws a number for each prompt: where one joins or leaves, only its own move.
        """
        share = (sum(replica.running for replica in free) + 1) / len(free)
        ranked = sorted(free, key=lambda replica: _draw(replica.url, prompt))
        bound = max(1.0, share * _FULLER)
        return next((r for r in ranked if r.running + 1 <= bound), ranked[0])


def _draw(url: str, prompt: bytes) -> bytes:
    return hashlib.blake2b(prompt, key=url.encode()[:64], digest_size=8).digest()
