"""What another policy would have decided for the requests in the decision log.

The log has their signals and facts, and no text and no headers. Where conditions on those would make
a difference, nobody can say what would have been decided, and neither does this.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord
from gateway.routing.abstraction import Space
from gateway.routing.assumptions import assume
from gateway.routing.cells import Search
from gateway.routing.decide import decide
from gateway.routing.demotion import Demotions
from gateway.routing.effects import Effect, differences, is_looser
from gateway.routing.facts import Facts
from gateway.routing.policy import Policy
from gateway.routing.variables import TRUST, Trust
from gateway.types import ChatRequest, Decision, Mode

MIN_ANSWERS = 5
"""Fewer answers of a mode and domain say nothing about its speed."""
NO_TEXT = "conditions on text or headers, which the log does not hold, would settle it"
TOKENS_OR_TEXT = "the log does not tell whether its prompt was text or token ids"

_Headers = Mapping[str, str]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One request that the policy would decide otherwise than it was decided, or may."""

    decision_id: str
    domain: str
    """The most probable one; empty if there is none."""
    caller: str
    old_rule: str
    new_rule: str
    """Empty where it cannot be told."""
    effects: tuple[Effect, ...] = ()
    looser: bool = False
    unknown: str = ""
    """Why it cannot be told what would have been decided; empty where it can."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How long the answers that change their mode take to decode: an estimate, by medians."""

    requests: int
    """Those that the estimate is about."""
    old_seconds: float
    new_seconds: float
    unknown: int
    """Those without an answer, or of a mode and domain of which too few answers were measured."""
    tokens_per_second: Mapping[str, float]
    """Mode and domain → the median of what was measured."""


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """All requests that were looked at."""

    requests: int
    unchanged: int
    changed: tuple[Replayed, ...]
    unknown: tuple[Replayed, ...]
    by_domain: Mapping[str, int]
    """Changed requests."""
    by_caller: Mapping[str, int]
    speed: Speed


def replay(policy: Policy, entries: Iterable[Entry]) -> ReplayReport:
    """Decide every request anew, and hold it against what was decided. Raises ConfigError where
    the policy's conditions on text and headers are too many."""
    replayer = _Replayer(policy)
    changed: list[Replayed] = []
    unknown: list[Replayed] = []
    modes: list[tuple[Entry, Mode]] = []
    measured: list[Entry] = []
    requests = 0
    for entry in entries:
        requests += 1
        measured.append(entry)
        found = replayer.replay(entry.decision)
        if isinstance(found, str):
            unknown.append(_replayed(entry.decision, unknown=found))
            continue
        effects = differences(entry.decision.decision, found)
        if effects:
            changed.append(_replayed(entry.decision, new_rule=found.rule, effects=effects))
            if found.mode is not entry.decision.decision.mode and found.deny is None:
                modes.append((entry, found.mode))
    return ReplayReport(
        requests=requests,
        unchanged=requests - len(changed) - len(unknown),
        changed=tuple(changed),
        unknown=tuple(unknown),
        by_domain=_counts(each.domain for each in changed),
        by_caller=_counts(each.caller for each in changed),
        speed=_speed(measured, modes),
    )


class _Replayer:
    """Decides logged requests by one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._assumed = assume(policy)
        self._space = Space((self._assumed,))
        self._known = [
            i
            for i, variable in enumerate(self._space.variables)
            if variable.field != "header" and i != TRUST
        ]
        self._reads_unlogged = len(self._known) + 1 < len(self._space.variables)
        self._headers: dict[tuple[int, ...], tuple[_Headers, ...]] = {}

    def replay(self, record: DecisionRecord) -> Decision | str:
        """The decision, or why it cannot be told."""
        if record.decision.policy_hash == self._policy.hash:
            return record.decision
        if record.request.endpoint == "completions" and not record.signals.total_tokens:
            return TOKENS_OR_TEXT
        if not self._reads_unlogged:
            return self._decide(record, {})
        decisions = [self._decide(record, headers) for headers in self._possible(record)]
        first = decisions[0]
        return NO_TEXT if any(differences(first, other) for other in decisions) else first

    def _decide(self, record: DecisionRecord, headers: _Headers) -> Decision:
        return decide(
            self._assumed,
            record.signals,
            _request(record, headers),
            record.caller,
            prompt_tokens=record.request.prompt_tokens,
            now=datetime.fromtimestamp(record.created_at, UTC),
            demotions=Demotions.recorded(record.decision.trace),
        )

    def _possible(self, record: DecisionRecord) -> tuple[_Headers, ...]:
        """Headers, with the reserved ones of conditions on text, of every kind that makes a
        difference to a request with what is known of this one."""
        facts = Facts(
            record.signals,
            _request(record, {}),
            record.caller,
            record.request.prompt_tokens,
            datetime.fromtimestamp(record.created_at, UTC),
        )
        space, trust = self._space, self._trust(record, facts)
        values = (trust, *(space.variables[i].value_of(facts) for i in self._known))
        if values not in self._headers:
            literals = (
                space.formulas.literal(variable, 1 << value)
                for variable, value in zip((TRUST, *self._known), values, strict=True)
            )
            search = Search(space, (self._assumed,), space.formulas.conjunction(literals))
            points = (search.point(cell) for cell in search.cells())
            self._headers[values] = tuple(point.headers for point in points)
        return self._headers[values]

    def _trust(self, record: DecisionRecord, facts: Facts) -> int:
        trusts = self._space.variables[TRUST].values
        read = {name for trust in trusts for name in trust.missing}
        error = record.signals.error is not None or facts.unusable is not None
        error = error or any(name not in facts.scores for name in self._policy.signals_read - read)
        missing = tuple(sorted(name for name in read if name not in facts.scores))
        index: int = trusts.index(Trust(error, record.signals.truncated, missing))
        return index


def _request(record: DecisionRecord, headers: _Headers) -> ChatRequest:
    wish = record.request.requested_mode
    return ChatRequest(
        model=record.request.model,
        n=record.request.n,
        best_of=record.request.best_of,
        stream=record.request.stream,
        has_tools=record.request.has_tools,
        response_format=record.request.response_format,
        requested_mode=None if wish is None else Mode(wish),
        headers=headers,
    )


def _replayed(
    record: DecisionRecord,
    *,
    new_rule: str = "",
    effects: tuple[Effect, ...] = (),
    unknown: str = "",
) -> Replayed:
    return Replayed(
        decision_id=record.decision_id,
        domain=_domain(record),
        caller=record.caller.id,
        old_rule=record.decision.rule,
        new_rule=new_rule,
        effects=effects,
        looser=is_looser(effects),
        unknown=unknown,
    )


def _domain(record: DecisionRecord) -> str:
    top = record.signals.top("domain")
    return "" if top is None else top.value


def _counts(names: Iterable[str]) -> dict[str, int]:
    """Each name with how often it is there, the most frequent first."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _speed(measured: Iterable[Entry], changed: Iterable[tuple[Entry, Mode]]) -> Speed:
    rates: dict[tuple[Mode, str], list[float]] = {}
    for mode, domain, rate in _rates(measured):
        rates.setdefault((mode, domain), []).append(rate)
    medians = {
        key: statistics.median(found) for key, found in rates.items() if len(found) >= MIN_ANSWERS
    }
    old = new = 0.0
    known = unknown = 0
    for entry, mode in changed:
        domain = _domain(entry.decision)
        before = medians.get((entry.decision.decision.mode, domain))
        after = medians.get((mode, domain))
        tokens = 0 if entry.outcome is None else entry.outcome.execution.usage.completion_tokens
        if before is None or after is None or not tokens:
            unknown += 1
            continue
        known += 1
        old += tokens / before
        new += tokens / after
    return Speed(
        requests=known,
        old_seconds=old,
        new_seconds=new,
        unknown=unknown,
        tokens_per_second={
            f"{mode.value} {domain}": rate for (mode, domain), rate in medians.items()
        },
    )


def _rates(entries: Iterable[Entry]) -> Iterator[tuple[Mode, str, float]]:
    """Tokens per second of every answer, by the mode that ran."""
    for entry in entries:
        if entry.outcome is None:
            continue
        execution = entry.outcome.execution
        tokens, seconds = execution.usage.completion_tokens, execution.decode_seconds
        # The clock starts with the first token.
        if execution.mode is not None and tokens > 1 and seconds > 0:
            yield execution.mode, _domain(entry.decision), (tokens - 1) / seconds
