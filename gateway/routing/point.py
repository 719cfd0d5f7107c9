"""`Point`: one concrete request, whose signals are given, to be decided by a policy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from gateway.routing.assumptions import Assumption, is_assumption, read
from gateway.routing.cases import DEFAULT_NOW
from gateway.routing.decide import decide
from gateway.routing.facts import Facts
from gateway.routing.policy import Policy
from gateway.routing.testing import given_signals
from gateway.types import Caller, ChatRequest, Decision, Message, Mode, Signals

UNDETERMINED = "und"
_FAILED = "a classifier failed"
_PLAIN = {"n": 1, "response_format": "text", "caller": "anonymous", "model": "test"}
_REQUEST_FIELDS = ("stream", "n", "has_tools", "response_format", "caller", "team", "model")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may look at in one request; in all that is not given it is as plain as can be."""

    domains: Mapping[str, float] = {}
    top: str | None = None
    """Of domains that are equally probable, the one that counts as the most probable."""
    language: str = UNDETERMINED
    has_context: bool = False
    classifier_error: bool = False
    truncated: bool = False
    missing: tuple[str, ...] = ()
    """Signals that no classifier gave."""
    stream: bool = False
    n: int = 1
    has_tools: bool = False
    response_format: str = "text"
    caller: str = "anonymous"
    team: str | None = None
    model: str = "test"
    prompt_tokens: int = 0
    now: datetime = DEFAULT_NOW
    headers: Mapping[str, str] = {}
    """With the reserved ones of `assumptions`."""
    requested_mode: Mode | None = None
    text: str = ""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed of the text."""
        return read(self.headers)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a case of a test file cannot say of it."""
        return (
            *map(str, self.assumptions),
            *(f"no classifier gives the signal {name}" for name in self.missing),
        )

    def signals(self) -> Signals:
        """The signals, as if classifiers had given them."""
        error = _FAILED if self.classifier_error else None
        given = given_signals(
            self.domains,
            language=None if self.language == UNDETERMINED else self.language,
            has_context=self.has_context,
            error=error,
            truncated=self.truncated,
        )
        there = (item for item in given.items if item.name not in self.missing)
        ordered = sorted(there, key=lambda item: item.value != self.top)
        return msgspec.structs.replace(given, items=tuple(ordered))

    def request(self) -> ChatRequest:
        """The request as the gateway would know it."""
        return ChatRequest(
            model=self.model,
            messages=(Message("user", self.text),) if self.text else (),
            stream=self.stream,
            n=self.n,
            has_tools=self.has_tools,
            response_format=self.response_format,
            requested_mode=self.requested_mode,
            headers=self.headers,
        )

    def facts(self) -> Facts:
        """What conditions see of it."""
        caller = Caller(self.caller, self.team)
        return Facts(self.signals(), self.request(), caller, self.prompt_tokens, self.now)

    def decide(self, policy: Policy) -> Decision:
        """What the policy decides for it."""
        return decide(
            policy,
            self.signals(),
            self.request(),
            Caller(self.caller, self.team),
            prompt_tokens=self.prompt_tokens,
            now=self.now,
        )

    def case(self) -> dict[str, Any]:
        """The point as a case of a test file, without name and expectation."""
        request = {
            "messages": [{"content": self.text}] if self.text else [],
            **{name: getattr(self, name) for name in _REQUEST_FIELDS},
            "headers": {k: v for k, v in self.headers.items() if not is_assumption(k)},
            "requested_mode": self.requested_mode and self.requested_mode.value,
            # Without it, a text would count a token for every four characters.
            "prompt_tokens": self.prompt_tokens if self.prompt_tokens or self.text else None,
            "now": None if self.now == DEFAULT_NOW else self.now.isoformat(),
        }
        case = {
            "language": None if self.language == UNDETERMINED else self.language,
            "has_context": self.has_context,
            "classifier_error": _FAILED if self.classifier_error else None,
            "truncated": self.truncated,
            "request": {k: v for k, v in request.items() if v and v != _PLAIN.get(k)},
        }
        probable = {name: value for name, value in self.domains.items() if value > 0}
        return {"signals": probable, **{k: v for k, v in case.items() if v}}
