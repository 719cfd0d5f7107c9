"""Proves the statements of ``x_proof.yaml`` about the policy ``x.yaml``, or shows a request against one.

A statement is about every request there can be, not about cases: see `cells`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from gateway import documents, extensions
from gateway.documents import Document, suggestion
from gateway.errors import ConfigError, Problem
from gateway.routing.abstraction import Space
from gateway.routing.assumptions import assume, assume_when, is_assumption, readable
from gateway.routing.cells import Search
from gateway.routing.conditions import compile_when
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.schema import RESERVED_IDS
from gateway.routing.statements import ProofFile, Statement
from gateway.routing.when import When
from gateway.types import EXACT_VERIFIERS, LOSSY_VERIFIERS, Decision


class Counterexample(msgspec.Struct, frozen=True):
    """A request, as a case of a test file, and what is decided for it."""

    case: dict[str, Any]
    decision: Decision
    assumes: tuple[str, ...]
    """What its text must be for that, where no such text was found."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one statement."""

    name: str
    proved: bool
    vacuous: bool
    """No request meets its conditions, so it says nothing; it does not count as proved."""
    cells: int
    """The cells that were looked at."""
    counterexample: Counterexample | None


class ProofReport(msgspec.Struct, frozen=True):
    """All statements of one file."""

    policy: str
    path: str
    verdicts: tuple[Verdict, ...]

    @property
    def proved(self) -> bool:
        """Whether every statement is."""
        return all(verdict.proved for verdict in self.verdicts)


def run(policy: Policy, path: Path, *, backends: Collection[str] | None = None) -> ProofReport:
    """Prove or refute every statement in the file at ``path``.

    ``backends`` are the names that there are; None leaves them unchecked.
    Raises ConfigError for a file that is missing or wrong, and where a statement is too large.
    """
    document = documents.parse(documents.read(path), path)
    statements = documents.convert(document, ProofFile).statements
    _check(policy, statements, document, backends)
    verdicts = tuple(prove(policy, statement) for statement in statements)
    return ProofReport(policy.name, str(path), verdicts)


def prove(policy: Policy, statement: Statement) -> Verdict:
    """Look at every cell that the statement speaks of, until one is against it."""
    claim, assumed = statement.claim, assume(policy)
    when = assume_when(claim.when)
    space = Space((assumed,), when)
    condition = space.formulas.conjunction((space.formula(when), space.trusts(claim.trusts)))
    search = Search(space, (assumed,), condition)
    demands, wishes = tuple(claim.demands()), tuple(claim.wishes())
    cells = 0
    for cell in search.cells():
        cells += 1
        point = search.point(cell)
        for wish in wishes:
            wished = msgspec.structs.replace(point, requested_mode=wish)
            decision = wished.decide(assumed)
            meets = all(demand(decision) for demand in demands)
            if meets is (statement.never is not None):
                name = f"against: {statement.name}"
                example = counterexample(name, wished, policy, decision, claim.when)
                return Verdict(statement.name, False, False, cells, example)
    return Verdict(statement.name, cells > 0, cells == 0, cells, None)


def counterexample(
    name: str, point: Point, policy: Policy, decision: Decision, when: When | None = None
) -> Counterexample:
    """The point as people can try it; with a text that does what was assumed, if one is found."""
    text = "\n".join(each.example for each in point.assumptions)
    headers = {name: value for name, value in point.headers.items() if not is_assumption(name)}
    real = msgspec.structs.replace(point, headers=headers, text=text)
    found = real.decide(policy)
    alike = msgspec.structs.replace(found, trace=()) == msgspec.structs.replace(decision, trace=())
    if alike and (when is None or compile_when(when)(real.facts())[0]):
        point, decision = real, found
    expect = {"mode": decision.mode.value, "rule": decision.rule}
    if decision.deny is not None:
        expect["deny"] = decision.deny
    case = {"name": name, **point.case(), "expect": expect}
    return Counterexample(case, readable(decision), point.assumes)


def _check(
    policy: Policy,
    statements: tuple[Statement, ...],
    document: Document,
    backends: Collection[str] | None,
) -> None:
    """Refuse names that nothing bears: of those every `never` would be true."""
    decisions = policy.decisions
    known: dict[str, tuple[str, set[str]]] = {
        "rule": ("the policy has no rule", {*RESERVED_IDS, *(rule.id for rule in policy.rules)}),
        "verifier": (
            "unknown verifier",
            {
                *EXACT_VERIFIERS,
                *LOSSY_VERIFIERS,
                *extensions.names("verifiers"),
                *(decision.verifier for decision in decisions),
            },
        ),
        "draft_source": (
            "unknown draft source",
            {
                "none",
                *extensions.names("draft_sources"),
                *(decision.draft.source for decision in decisions if decision.draft),
            },
        ),
    }
    if backends is not None:
        known["backend"] = ("unknown backend", set(backends))
    names: set[str] = set()
    problems: list[Problem] = []
    for i, statement in enumerate(statements):
        if statement.name in names:
            message = f"a statement {statement.name!r} is already there"
            problems.append(document.problem(message, ("statements", i, "name"), hint="rename it"))
        names.add(statement.name)
        kind = "never" if statement.never is not None else "always"
        for field, (message, words) in known.items():
            for k, word in enumerate(getattr(statement.claim, field) or ()):
                if word not in words:
                    at = ("statements", i, kind, field, k)
                    hint = suggestion(word, words)
                    problems.append(document.problem(f"{message} {word!r}", at, hint=hint))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))
