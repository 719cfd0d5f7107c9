"""`Variable`: one place that conditions read, and the classes of what may stand there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import ConfigError, Problem
from gateway.routing.assumptions import read
from gateway.routing.conditions import TOP_DOMAIN_PROBABILITY, Test
from gateway.routing.facts import Facts

TRUST = 0
"""The variable that says whether the signals can be trusted: its values are a `Trust` each."""
NO_TOP = ""
"""Where no domain has the probability that the most probable one needs."""

_NAMES = {"top": "most probable domain", "now": "time", "prompt_tokens": "prompt tokens"}


class Trust(msgspec.Struct, frozen=True):
    """Whether the signals of a request can be trusted, and which are missing altogether."""

    classifier_error: bool = False
    truncated: bool = False
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [name for name in ("classifier_error", "truncated") if getattr(self, name)]
        words += [f"without {name}" for name in self.missing]
        return " ".join(words or ["trusted"]).replace("_", " ")


class Variable(msgspec.Struct, frozen=True):
    """One place that conditions read, and the classes of what may stand there."""

    field: str
    """The field of `Point`; ``domain`` and ``header`` for one entry of such a field."""
    key: str
    """The domain or header; empty for other fields."""
    values: tuple[Any, ...]
    """One representative a class; the plainest first."""
    members: tuple[tuple[Any, ...], ...] = ()
    """All candidates, class by class."""
    tests: tuple[Test, ...] = ()
    classes: Mapping[tuple[bool, ...], int] = {}
    """What the tests answer → the class."""
    tops: Mapping[str, int] = {}
    """For the most probable domain alone: domain → class."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        if self.field == "header":
            return next((str(each) for each in read((self.key,))), f"header {self.key}")
        return self.key or _NAMES.get(self.field, self.field)

    def value_of(self, facts: Facts) -> int:
        """The class of what is there in one request. Raises ConfigError if there is none for it."""
        if self.field == "top":
            domain, score = facts.top_domain
            return self.tops[domain if score >= TOP_DOMAIN_PROBABILITY else NO_TOP]
        answers = tuple(test(facts)[0] for test in self.tests)
        if answers not in self.classes:
            message = f"cannot tell what the policy makes of this {self.name}"
            raise ConfigError([Problem(message, path="", hint="please report this as a bug")])
        return self.classes[answers]

    def upper(self, value: int) -> float | None:
        """Where a class of a domain's probability ends, excluded; None: at 1, included."""
        return self.values[value + 1] if value + 1 < len(self.values) else None
