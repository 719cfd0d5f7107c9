"""Runs the cases of ``x_test.yaml`` against the policy ``x.yaml``.

It says which cases hold and which rules no case reaches; how that is shown is the caller's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from gateway import documents
from gateway.documents import Document, suggestion
from gateway.errors import ConfigError
from gateway.routing.decide import decide
from gateway.routing.policy import Policy
from gateway.routing.schema import RESERVED_IDS
from gateway.routing.when import Count, Domain, Text
from gateway.types import DOMAINS, Caller, ChatRequest, Decision, Message, Mode, Signal, Signals

Classify = Callable[[ChatRequest], Signals]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]

DEFAULT_NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""When a case does not say: a Monday at noon."""


class MessageEntry(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    content: str
    role: str = "user"


class RequestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a case says of its request; the rest is as plain as can be."""

    messages: tuple[MessageEntry, ...] = ()
    prompt: str | None = None
    model: str = "test"
    stream: bool = False
    n: Annotated[int, msgspec.Meta(ge=1)] = 1
    has_tools: bool = False
    response_format: str = "text"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    requested_mode: Mode | None = None
    caller: str = "anonymous"
    team: str | None = None
    prompt_tokens: Count | None = None
    """None: a token for every four characters."""
    now: datetime = DEFAULT_NOW

    def __post_init__(self) -> None:
        if self.messages and self.prompt is not None:
            raise ValueError("has both `messages` and `prompt`", "keep one of them")

    def build(self) -> ChatRequest:
        """The request as the gateway knows it."""
        return ChatRequest(
            model=self.model,
            messages=tuple(Message(turn.role, turn.content) for turn in self.messages),
            prompt=self.prompt,
            stream=self.stream,
            n=self.n,
            has_tools=self.has_tools,
            response_format=self.response_format,
            headers={name.lower(): value for name, value in self.headers.items()},
            requested_mode=self.requested_mode,
        )


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What must come out; what is not given may be anything."""

    mode: Mode
    rule: Text
    draft_source: str | None = None
    standard_first: int | None = None
    max_entropy: float | None = None
    deny: str | None = None
    bans: tuple[Mode, ...] | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case. Without ``signals``, the text of the request is classified."""

    name: Text
    signals: Mapping[Domain, Probability] | None = None
    """Domain probabilities; those not named are 0."""
    language: str | None = None
    has_context: bool | None = None
    classifier_error: str | None = None
    truncated: bool = False
    request: RequestEntry = RequestEntry()
    expect: Expectation


class CaseFile(msgspec.Struct, frozen=True):
    """A whole file of cases."""

    cases: Annotated[tuple[Case, ...], msgspec.Meta(min_length=1)]


class CaseResult(msgspec.Struct, frozen=True):
    """One case as it went."""

    name: str
    differences: tuple[str, ...]
    """What came out otherwise than expected; empty when the case holds."""
    decision: Decision | None
    """None when the case could not be decided."""

    @property
    def passed(self) -> bool:
        """Whether the case holds."""
        return not self.differences


class Report(msgspec.Struct, frozen=True):
    """All cases of one test file, and the rules that none of them reaches."""

    policy: str
    path: str
    results: tuple[CaseResult, ...]
    uncovered: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every case holds."""
        return all(result.passed for result in self.results)


def path_beside(policy: Path) -> Path:
    """Where the tests of a policy file are: ``x_test.yaml`` beside ``x.yaml``."""
    return policy.with_name(f"{policy.stem}_test{policy.suffix}")


def run(policy: Policy, path: Path, classify: Classify | None = None) -> Report:
    """Run every case. Raises ConfigError for a file that is missing, empty or wrong.

    ``classify`` gives the signals of cases that have text and no signals of their own; without it
    such cases fail.
    """
    document = documents.parse(documents.read(path), path)
    cases = documents.convert(document, CaseFile).cases
    _check(policy, cases, document)
    results = tuple(_run_case(policy, case, classify) for case in cases)
    covered = {name for result in results if result.passed for name in _reached(result)}
    uncovered = tuple(rule.id for rule in policy.rules if rule.id not in covered)
    return Report(policy.name, str(path), results, uncovered)


def given_signals(
    domains: Mapping[str, float],
    *,
    language: str | None = None,
    has_context: bool | None = None,
    error: str | None = None,
    truncated: bool = False,
) -> Signals:
    """Signals as if classifiers had given them; a domain that is not named has probability 0."""
    scores = {name: domains.get(name, 0.0) for name in DOMAINS}
    return Signals(
        items=(
            *(Signal("domain", name, score, "given") for name, score in scores.items()),
            Signal("language", language or "und", float(language is not None), "given"),
            Signal("has_context", "true" if has_context else "false", 1.0, "given"),
        ),
        scored_tokens=1,
        total_tokens=2 if truncated else 1,
        error=error,
    )


def _check(policy: Policy, cases: tuple[Case, ...], document: Document) -> None:
    known = {*RESERVED_IDS, *(rule.id for rule in policy.rules)}
    names: set[str] = set()
    problems = []
    for i, case in enumerate(cases):
        if case.expect.rule not in known:
            message = f"the policy has no rule {case.expect.rule!r}"
            hint = suggestion(case.expect.rule, known)
            problems.append(document.problem(message, ("cases", i, "expect", "rule"), hint=hint))
        if case.name in names:
            message = f"a case {case.name!r} is already there"
            problems.append(document.problem(message, ("cases", i, "name"), hint="rename it"))
        names.add(case.name)
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))


def _run_case(policy: Policy, case: Case, classify: Classify | None) -> CaseResult:
    request = case.request.build()
    signals = _signals(case, request, classify)
    if signals is None:
        reason = "has text to classify but no classifier is there; give it `signals`"
        return CaseResult(case.name, (reason,), None)
    tokens = case.request.prompt_tokens
    decision = decide(
        policy,
        signals,
        request,
        Caller(case.request.caller, case.request.team),
        prompt_tokens=sum(map(len, request.texts())) // 4 if tokens is None else tokens,
        now=case.request.now,
    )
    return CaseResult(case.name, tuple(_differences(case.expect, decision)), decision)


def _signals(case: Case, request: ChatRequest, classify: Classify | None) -> Signals | None:
    given = given_signals(
        case.signals or {},
        language=case.language,
        has_context=case.has_context,
        error=case.classifier_error,
        truncated=case.truncated,
    )
    if case.signals is not None or not any(request.texts()):
        return given
    if classify is None:
        return None
    stated = {"language": case.language, "has_context": case.has_context}
    replaced = {name for name, value in stated.items() if value is not None}
    measured = classify(request)
    return msgspec.structs.replace(
        measured,
        items=(
            *(item for item in measured.items if item.name not in replaced),
            *(item for item in given.items if item.name in replaced),
        ),
        total_tokens=measured.scored_tokens + 1 if case.truncated else measured.total_tokens,
        error=case.classifier_error or measured.error,
    )


def _differences(expect: Expectation, decision: Decision) -> list[str]:
    found = {
        "mode": decision.mode,
        "rule": decision.rule,
        "draft_source": decision.draft.source if decision.draft else "none",
        "standard_first": decision.standard_first,
        "max_entropy": decision.max_entropy,
        "deny": decision.deny,
        "bans": tuple(sorted(decision.bans)),
    }
    wanted = {name: getattr(expect, name) for name in found}
    if expect.bans is not None:
        wanted["bans"] = tuple(sorted(expect.bans))
    return [
        f"{name}: expected {_shown(wanted[name])}, got {_shown(found[name])}"
        for name in found
        if wanted[name] is not None and wanted[name] != found[name]
    ] + (["deny: expected none, got " + decision.deny] if decision.deny and not expect.deny else [])


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)


def _reached(result: CaseResult) -> set[str]:
    """The rules that had a part in the decision: every ban that matched, and what decided."""
    decision = result.decision
    if decision is None:
        return set()
    bans = (rule.rule for rule in decision.trace if rule.kind == "ban" and rule.matched)
    return {decision.rule, *bans}
