"""Runs the cases of ``x_test.yaml`` against the policy ``x.yaml``.

It says which cases hold and which rules no case reaches; how that is shown is the caller's matter.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from gateway import documents
from gateway.documents import Document, suggestion
from gateway.errors import ConfigError, Problem
from gateway.routing.cases import Case, CaseFile, Expectation, Given
from gateway.routing.decide import decide
from gateway.routing.policy import Policy
from gateway.routing.schema import RESERVED_IDS
from gateway.types import DOMAINS, Caller, ChatRequest, Decision, Signal, Signals

Classify = Callable[[ChatRequest], Signals]


class CaseResult(msgspec.Struct, frozen=True):
    """One case as it went."""

    name: str
    differences: tuple[str, ...]
    """What came out otherwise than expected; empty when the case holds."""
    decision: Decision | None
    """None when the case could not be decided."""
    seconds: float = 0.0
    """How long deciding took, classification included."""

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
    rules: int = 0
    """How many rules the policy has."""

    @property
    def coverage(self) -> float:
        """The share of rules that a passing case reaches; 1 for a policy without rules."""
        return 1 - len(self.uncovered) / self.rules if self.rules else 1.0

    @property
    def passed(self) -> bool:
        """Whether every case holds."""
        return all(result.passed for result in self.results)


def run(
    policy: Policy, path: Path, classify: Classify | None = None, *, only: str | None = None
) -> Report:
    """Run every case, or those whose name the regular expression ``only`` finds.

    ``classify`` gives the signals of cases that have text and no signals of their own; without it
    such cases fail. Raises ConfigError for a file that is missing, empty or wrong.
    """
    document = documents.parse(documents.read(path), path)
    file = documents.convert(document, CaseFile)
    cases = _checked(policy, file, document)
    results = tuple(
        _run_case(policy, case, classify)
        for case in cases
        if only is None or re.search(only, case.name)
    )
    covered = {name for result in results if result.passed for name in _reached(result)}
    uncovered = tuple(rule.id for rule in policy.rules if rule.id not in covered)
    return Report(policy.name, str(path), results, uncovered, len(policy.rules))


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


def _checked(policy: Policy, file: CaseFile, document: Document) -> list[Case]:
    """The cases with their fixtures. Raises ConfigError with all that is wrong between them."""
    problems = list(_problems(policy, file, document))
    cases = []
    for i, case in enumerate(file.cases):
        try:
            cases.append(case.over(file.fixtures.get(case.fixture or "", Given())))
        except ValueError as error:  # what its request refuses of both together
            message = f"with its fixture, the case {error.args[0]}"
            problems.append(document.problem(message, ("cases", i)))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))
    return cases


def _problems(policy: Policy, file: CaseFile, document: Document) -> Iterator[Problem]:
    known = {*RESERVED_IDS, *(rule.id for rule in policy.rules)}
    names: set[str] = set()
    for i, case in enumerate(file.cases):
        at = ("cases", i)
        if case.expect.rule not in known:
            message = f"the policy has no rule {case.expect.rule!r}"
            hint = suggestion(case.expect.rule, known)
            yield document.problem(message, (*at, "expect", "rule"), hint=hint)
        if case.name in names:
            message = f"a case {case.name!r} is already there"
            yield document.problem(message, (*at, "name"), hint="rename it")
        if case.fixture is not None and case.fixture not in file.fixtures:
            message = f"there is no fixture {case.fixture!r}"
            hint = suggestion(case.fixture, file.fixtures)
            yield document.problem(message, (*at, "fixture"), hint=hint)
        names.add(case.name)
    used = {case.fixture for case in file.cases}
    for name in file.fixtures:
        if name not in used:
            message = f"no case uses the fixture {name!r}"
            yield document.problem(message, ("fixtures", name), key=True, hint="remove it")


def _run_case(policy: Policy, case: Case, classify: Classify | None) -> CaseResult:
    started = time.perf_counter()
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
    seconds = time.perf_counter() - started
    return CaseResult(case.name, tuple(_differences(case.expect, decision)), decision, seconds)


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
        "verifier": decision.verifier,
        "backend": decision.backend or "none",
    }
    limits = msgspec.structs.asdict(decision.limits).items()
    found |= {name: "none" if limit is None else limit for name, limit in limits}
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
    """The rules that had a part in the decision: bans and limits that matched, and what decided."""
    decision = result.decision
    if decision is None:
        return set()
    kinds = ("ban", "limit")
    united = (rule.rule for rule in decision.trace if rule.kind in kinds and rule.matched)
    return {decision.rule, *united}
