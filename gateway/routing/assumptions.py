"""Conditions on text as assumptions: that a text exists on which they hold cannot be proved.

`assume` puts reserved headers in their place. So each is true or false by itself, and all else of a
policy stays the code that serves requests. A client cannot send such a header: its name has a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway.routing.conditions import compile_when
from gateway.routing.policy import Placed, Policy, Rule
from gateway.routing.when import HeaderTest, When
from gateway.routing.words import fold, has_word
from gateway.types import Decision

_PREFIX = "assumed "
HOLDS = "true"
_IN_TRACE = re.compile(rf"header (?P<name>{_PREFIX}[0-9a-f]+) (?P<value>{HOLDS}|missing)")


class Assumption(msgspec.Struct, frozen=True):
    """That the text of a request meets one condition."""

    keyword: tuple[str, ...] | None = None
    regex: str | None = None

    def __str__(self) -> str:
        if self.regex is not None:
            return f"text that the regex {self.regex} finds"
        return f"text with the keyword {' or '.join(self.keyword or ())}"

    @property
    def header(self) -> str:
        """The reserved header's name; names ignore case, regexes do not."""
        return _PREFIX + msgspec.json.encode(self).hex()

    @property
    def when(self) -> When:
        """The condition itself."""
        return When(keyword=self.keyword, regex=self.regex)

    def implies(self, other: Assumption) -> bool:
        """Whether any text that meets this one surely meets the other: it has all of its words."""
        if self.keyword is None or other.keyword is None:
            return self == other
        words = tuple(map(fold, other.keyword))
        return all(any(has_word(fold(each), word) for word in words) for each in self.keyword)

    @property
    def example(self) -> str:
        """A text that may well meet it."""
        if self.keyword is not None:
            return max(self.keyword, key=len)
        return (self.regex or "").removeprefix("(?i)").replace("\\b", "")


def assume(policy: Policy) -> Policy:
    """The policy with every condition on text replaced; the same object if there is none."""
    rules = tuple(map(_assume_rule, policy.rules))
    if all(new is old for new, old in zip(rules, policy.rules, strict=True)):
        return policy

    def replaced(placed: Placed) -> Placed:
        return tuple((i, rules[i]) for i, _ in placed)

    return msgspec.structs.replace(
        policy,
        rules=rules,
        bans=replaced(policy.bans),
        limits=replaced(policy.limits),
        choices=replaced(policy.choices),
        layers=tuple(
            msgspec.structs.replace(
                layer,
                bans=replaced(layer.bans),
                limits=replaced(layer.limits),
                denies=replaced(layer.denies),
            )
            for layer in policy.layers
        ),
    )


def assume_when(when: When | None) -> When | None:
    """The condition with every condition on text replaced; the same object if there is none."""
    if when is None:
        return None
    all_ = tuple(_assumed(inner) for inner in when.all_ or ())
    any_ = tuple(_assumed(inner) for inner in when.any_ or ())
    not_ = assume_when(when.not_)
    own = (
        *([Assumption(keyword=when.keyword)] if when.keyword is not None else ()),
        *([Assumption(regex=when.regex)] if when.regex is not None else ()),
    )
    changed = own or not_ is not when.not_
    changed = changed or any(new is not old for new, old in zip(all_, when.all_ or (), strict=True))
    changed = changed or any(new is not old for new, old in zip(any_, when.any_ or (), strict=True))
    if not changed:
        return when
    headers = (When(header=HeaderTest(name=each.header, is_=HOLDS)) for each in own)
    return msgspec.structs.replace(
        when, keyword=None, regex=None, all_=(*all_, *headers) or None, any_=any_ or None, not_=not_
    )


def read(headers: Iterable[str]) -> tuple[Assumption, ...]:
    """The assumptions that are among these headers."""
    return tuple(
        msgspec.json.decode(bytes.fromhex(name.removeprefix(_PREFIX)), type=Assumption)
        for name in headers
        if name.startswith(_PREFIX)
    )


def is_assumption(header: str) -> bool:
    """Whether a header is a reserved one."""
    return header.startswith(_PREFIX)


def readable(decision: Decision) -> Decision:
    """The decision with a trace that speaks of the text, not of the reserved headers."""
    trace = tuple(
        msgspec.structs.replace(each, detail=_IN_TRACE.sub(_shown, each.detail))
        for each in decision.trace
    )
    return msgspec.structs.replace(decision, trace=trace)


def _shown(found: re.Match[str]) -> str:
    (assumption,) = read((found["name"],))
    return str(assumption) if found["value"] == HOLDS else f"no {assumption}"


def _assumed(when: When) -> When:
    replaced = assume_when(when)
    return when if replaced is None else replaced


def _assume_rule(rule: Rule) -> Rule:
    when = assume_when(rule.when)
    if when is rule.when:
        return rule
    return msgspec.structs.replace(rule, when=when, test=compile_when(when))
