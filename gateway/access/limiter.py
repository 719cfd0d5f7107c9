"""`Limiter`: how much of its quota each caller has left. Knows nothing of keys or of HTTP.

Requests and tokens are buckets that fill evenly and hold one minute's worth. Tokens are taken when a
request has ended and its count is known, so a bucket may go below zero; nothing more begins until it
is filled again, and over a longer time no caller has more than its quota.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

from gateway.errors import RateLimited
from gateway.grants import Grant, Quota

_MINUTE = 60.0
MAX_CALLERS = 10_000
"""So many are remembered; of more, those that ask for nothing now and were seen least lately go."""


class Allowance(NamedTuple):
    """What a caller has of one quota, for the answer's headers."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until all of it is there again."""


class _Bucket:
    """Fills evenly up to one minute's worth; may go below zero."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        filled = self._level + (now - self._at) * self.limit / _MINUTE
        self._level, self._at = min(float(self.limit), filled), now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def resize(self, limit: int, now: float) -> None:
        """Keep what was used under another limit."""
        used = self.limit - self.level(now)
        self.limit, self._level = limit, limit - used

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` is there."""
        return max(0.0, (amount - self.level(now)) * _MINUTE / self.limit)

    def allowance(self, now: float) -> Allowance:
        level = self.level(now)
        return Allowance(self.limit, max(0, int(level)), self.wait(self.limit, now))


class _Account:
    """One caller's buckets and requests in progress."""

    def __init__(self) -> None:
        self.buckets: dict[str, _Bucket] = {}
        self.running = 0

    def fit(self, quota: Quota, now: float) -> None:
        """Have a bucket for each limit, of its present size."""
        for name in ("requests", "tokens"):
            limit: int | None = getattr(quota, f"{name}_per_minute")
            if limit is None:
                self.buckets.pop(name, None)
            elif name not in self.buckets:
                self.buckets[name] = _Bucket(limit, now)
            elif self.buckets[name].limit != limit:
                self.buckets[name].resize(limit, now)


class Limiter:
    """Admits requests, counts what they cost, and says what is left."""

    def __init__(
        self,
        default: Quota = Quota(),  # noqa: B008 - immutable
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``default`` is for what a caller's own quota leaves open."""
        self._default = default
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def admit(self, grant: Grant) -> Callable[[], None]:
        """Begin a request; returns what to call, once or more often, when it has ended.

        Raises RateLimited. A request that is refused costs nothing.
        """
        now, quota = self._clock(), grant.quota.over(self._default)
        account = self._account(grant.caller.id)
        account.fit(quota, now)
        if quota.concurrent is not None and account.running >= quota.concurrent:
            raise RateLimited(
                f"{account.running} requests of this caller are in progress, and no more may be; "
                "wait until one has ended.",
                retry_seconds=1.0,
            )
        for name, bucket in account.buckets.items():
            if (wait := bucket.wait(1.0, now)) > 0:
                raise RateLimited(
                    f"Rate limit reached: {bucket.limit} {name} per minute. Try again in "
                    f"{wait:.1f} s.",
                    retry_seconds=wait,
                )
        if (requests := account.buckets.get("requests")) is not None:
            requests.take(1.0, now)
        account.running += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                account.running -= 1

        return end

    def spend(self, caller_id: str, tokens: int) -> None:
        """Count the tokens of a request that has ended."""
        account = self._accounts.get(caller_id)
        if account is not None and (bucket := account.buckets.get("tokens")) is not None:
            bucket.take(tokens, self._clock())

    def allowances(self, caller_id: str) -> Mapping[str, Allowance]:
        """What the caller has left of ``requests`` and ``tokens``, where those are limited."""
        account, now = self._accounts.get(caller_id), self._clock()
        buckets = {} if account is None else account.buckets
        return {name: bucket.allowance(now) for name, bucket in buckets.items()}

    def _account(self, caller_id: str) -> _Account:
        account = self._accounts.setdefault(caller_id, _Account())
        self._accounts.move_to_end(caller_id)
        if len(self._accounts) > MAX_CALLERS:
            idle = (name for name, other in self._accounts.items() if not other.running)
            if (oldest := next(idle, caller_id)) != caller_id:
                del self._accounts[oldest]
        return account


def header_values(allowances: Mapping[str, Allowance]) -> dict[str, str]:
    """The headers that OpenAI's clients read."""
    return {
        f"x-ratelimit-{what}-{name}": text
        for name, allowance in allowances.items()
        for what, text in (
            ("limit", str(allowance.limit)),
            ("remaining", str(allowance.remaining)),
            ("reset", f"{ceil(allowance.reset_seconds * 1000)}ms"),
        )
    }
