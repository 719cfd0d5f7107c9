"""Proves the statements of ``x_proof.yaml`` about the policy ``x.yaml``, or shows a request against one.

A statement is about every request there can be, not about cases: see `cells`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gateway import documents
from gateway.documents import Document, suggestion
from gateway.errors import ConfigError, Problem
from gateway.routing.abstraction import Space
from gateway.routing.assumptions import assume, assume_when, is_assumption
from gateway.routing.cells import WISHES, Search
from gateway.routing.conditions import compile_when
from gateway.routing.point import Point
from gateway.routing.policy import Policy
from gateway.routing.schema import RESERVED_IDS
from gateway.routing.variables import Trust
from gateway.routing.when import Text, When
from gateway.types import Decision, Mode

_Some = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
_Modes = Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1)]
_Wish = Literal["none", "standard", "speculative", "hybrid"]


class Never(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests, and a decision that none of them may get: one with all that is given."""

    when: When | None = None
    requested_mode: Annotated[tuple[_Wish, ...], msgspec.Meta(min_length=1)] | None = None
    """Only requests whose caller asks for one of these; all are meant if left out."""
    classifier_error: bool | None = None
    truncated: bool | None = None
    mode: _Modes | None = None
    verifier: _Some | None = None
    lossy: bool | None = None
    denied: bool | None = None
    draft_source: _Some | None = None
    backend: _Some | None = None
    rule: _Some | None = None

    def __post_init__(self) -> None:
        if not any(True for _ in self.demands()):
            names = "`mode`, `verifier`, `lossy`, `denied`, `draft_source`, `backend` or `rule`"
            raise ValueError("says nothing of the decision", f"give {names}")

    def demands(self) -> Iterator[Callable[[Decision], bool]]:
        """What a decision must be to be the one that is spoken of."""
        if (modes := self.mode) is not None:
            yield lambda decision: decision.mode in modes
        if (verifiers := self.verifier) is not None:
            yield lambda decision: decision.verifier in verifiers
        if (lossy := self.lossy) is not None:
            yield lambda decision: (decision.max_distortion is not None) is lossy
        if (denied := self.denied) is not None:
            yield lambda decision: (decision.deny is not None) is denied
        if (sources := self.draft_source) is not None:
            yield lambda decision: (decision.draft.source if decision.draft else "none") in sources
        if (backends := self.backend) is not None:
            yield lambda decision: decision.backend in backends
        if (rules := self.rule) is not None:
            yield lambda decision: decision.rule in rules

    def trusts(self, trust: Trust) -> bool:
        """Whether requests are meant whose signals are trusted so. A missing signal is an error."""
        error = trust.classifier_error or bool(trust.missing)
        return self.classifier_error in (None, error) and self.truncated in (None, trust.truncated)

    def wishes(self) -> Iterator[Mode | None]:
        """What callers may ask for."""
        for wish in WISHES:
            if self.requested_mode is None or (wish or "none") in self.requested_mode:
                yield wish


class Always(Never, frozen=True, kw_only=True):
    """Some requests, and the decision that each of them must get."""

    max_temperature: float | None = None
    """The decision caps the temperature at this or less."""
    max_tokens: int | None = None

    def demands(self) -> Iterator[Callable[[Decision], bool]]:
        """See `Never.demands`."""
        yield from super().demands()
        if (temperature := self.max_temperature) is not None:
            yield lambda decision: _within(decision.limits.max_temperature, temperature)
        if (tokens := self.max_tokens) is not None:
            yield lambda decision: _within(decision.limits.max_tokens, tokens)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is to be proved."""

    name: Text
    never: Never | None = None
    always: Always | None = None

    def __post_init__(self) -> None:
        if (self.never is None) is (self.always is None):
            raise ValueError("needs exactly one of `never` and `always`")

    @property
    def claim(self) -> Never:
        """Either of the two."""
        claim = self.never or self.always
        if claim is None:
            raise AssertionError(self.name)
        return claim


class ProofFile(msgspec.Struct, frozen=True):
    """A whole file of statements."""

    statements: Annotated[tuple[Statement, ...], msgspec.Meta(min_length=1)]


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


def path_beside(policy: Path) -> Path:
    """Where the statements about a policy file are: ``x_proof.yaml`` beside ``x.yaml``."""
    return policy.with_name(f"{policy.stem}_proof{policy.suffix}")


def run(policy: Policy, path: Path) -> ProofReport:
    """Prove or refute every statement in the file at ``path``.

    Raises ConfigError for a file that is missing or wrong, and where a statement is too large.
    """
    document = documents.parse(documents.read(path), path)
    statements = documents.convert(document, ProofFile).statements
    _check(policy, statements, document)
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
    return Counterexample(case, decision, point.assumes)


def _within(cap: float | None, bound: float) -> bool:
    return cap is not None and cap <= bound


def _check(policy: Policy, statements: tuple[Statement, ...], document: Document) -> None:
    known = {*RESERVED_IDS, *(rule.id for rule in policy.rules)}
    names: set[str] = set()
    problems: list[Problem] = []
    for i, statement in enumerate(statements):
        if statement.name in names:
            message = f"a statement {statement.name!r} is already there"
            problems.append(document.problem(message, ("statements", i, "name"), hint="rename it"))
        names.add(statement.name)
        kind = "never" if statement.never is not None else "always"
        for k, rule in enumerate(statement.claim.rule or ()):
            if rule not in known:
                at = ("statements", i, kind, "rule", k)
                message = f"the policy has no rule {rule!r}"
                problems.append(document.problem(message, at, hint=suggestion(rule, known)))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))
