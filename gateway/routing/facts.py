"""`Facts`: what conditions may look at in one request. Knows nothing of conditions or modes."""

from __future__ import annotations

import functools
from collections.abc import Set
from datetime import UTC, date, datetime, tzinfo

import msgspec

from gateway.routing.when import WEEKDAYS
from gateway.routing.words import fold
from gateway.types import Caller, ChatRequest, Signals


class Doubt(msgspec.Struct, frozen=True):
    """Why the signals of a request cannot be trusted."""

    why: str
    unread: bool = False
    """Nothing failed, but some text was not scored."""


class Facts:
    """What the conditions may look at for one request, worked out at most once."""

    def __init__(
        self,
        signals: Signals,
        request: ChatRequest,
        caller: Caller,
        prompt_tokens: int,
        now: datetime,
    ) -> None:
        self.signals = signals
        self.request = request
        self.caller = caller
        self.prompt_tokens = prompt_tokens
        self.now = now if now.tzinfo is not None else now.replace(tzinfo=UTC)
        self.scores: dict[str, dict[str, float]] = {}
        """Signal name → value → highest score."""
        self.unusable: str | None = None
        """A signal whose score is not a number."""
        for item in signals.items:
            values = self.scores.setdefault(item.name, {})
            if item.score != item.score:  # NaN would make every comparison false, a ban's too
                self.unusable = f"{item.name} {item.value}"
            elif item.score > values.get(item.value, -1.0):
                values[item.value] = item.score
        self.domains = self.scores.get("domain", {})
        self._shown: dict[str, str] = {}
        self._local: dict[tzinfo, tuple[int, str, str]] = {}

    def doubt(self, read: Set[str]) -> Doubt | None:
        """Why rules that read these signals cannot trust them; None when they can."""
        if self.signals.error is not None:
            return Doubt(f"classifier error: {self.signals.error}")
        if self.unusable is not None:
            return Doubt(f"the score of {self.unusable} is not a number")
        if isinstance(self.request.prompt, tuple) and not self.signals.total_tokens:
            return Doubt("a prompt of token ids, whose text was not scored", unread=True)
        for name in read:
            if name not in self.scores:
                return Doubt(f"no classifier gave the signal {name}")
        if self.signals.truncated:
            seen = f"{self.signals.scored_tokens} of {self.signals.total_tokens}"
            return Doubt(f"only {seen} tokens were scored", unread=True)
        return None

    def _top(self, name: str) -> tuple[str, float]:
        """The value of a signal with the highest score, the first of equals; ("", 0.0) if none."""
        values = self.scores.get(name)
        if not values:
            return "", 0.0
        value = max(values, key=values.__getitem__)
        return value, values[value]

    def shown(self, domain: str) -> str:
        """The domain and its probability for the trace; many rules ask for the same few."""
        text = self._shown.get(domain)
        if text is None:
            text = f"domain {domain} {self.domains.get(domain, 0.0):.6g}"
            self._shown[domain] = text
        return text

    @functools.cached_property
    def today(self) -> date:
        """The day of the request, in UTC."""
        return self.now.astimezone(UTC).date()

    def local(self, zone: tzinfo) -> tuple[int, str, str]:
        """Minutes since midnight and the day in that zone, and both for the trace."""
        found = self._local.get(zone)
        if found is None:
            time = self.now.astimezone(zone)
            day = WEEKDAYS[time.weekday()]
            found = (time.hour * 60 + time.minute, day, f"time {day} {time:%H:%M}")
            self._local[zone] = found
        return found

    @functools.cached_property
    def top_domain(self) -> tuple[str, float]:
        """The most probable domain and its probability."""
        return self._top("domain")

    @functools.cached_property
    def top_domain_shown(self) -> str:
        """The most probable domain and its probability, for the trace."""
        name, score = self.top_domain
        return f"{name or 'none'} {score:.6g}"

    @functools.cached_property
    def team_shown(self) -> str:
        """The caller's team, for the trace."""
        return f"team {self.caller.team or 'none'}"

    @functools.cached_property
    def model_shown(self) -> str:
        """The model asked for, for the trace."""
        return f"model {self.request.model[:64]}"

    @functools.cached_property
    def language(self) -> str:
        """The most probable language's code, lower-cased; empty if unknown."""
        return self._top("language")[0].lower()

    @functools.cached_property
    def has_context(self) -> bool:
        """Whether the request carries its own source."""
        return self._top("has_context")[0] == "true"

    @functools.cached_property
    def text(self) -> str:
        """All text of the request; half surrogate pairs, which UTF-8 cannot carry, become ``?``."""
        text = "\n".join(self.request.texts())
        return text.encode("utf-8", "replace").decode()

    @functools.cached_property
    def folded_text(self) -> str:
        """The text for keywords; see `fold`."""
        return fold(self.text)
