"""`Policy`: one validated policy, compiled, immutable and named by the hash of its files.

`load` and `parse_policy` make one or raise ConfigError. Deciding is `decide`'s matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import date
from pathlib import Path

import msgspec

from gateway import documents, extensions
from gateway.errors import ConfigError, Problem
from gateway.routing.checks import problems
from gateway.routing.conditions import Test, compile_when, domains_read, signals_read
from gateway.routing.layers import SET_FILE, TighteningEntry, TighteningRule
from gateway.routing.names import Known
from gateway.routing.schema import Decide, RuleEntry
from gateway.routing.sources import PolicyFile, Read, Sources, gather
from gateway.routing.when import When
from gateway.types import SHORT_HASH_LENGTH, Decision, DraftSetting, Mode, RuleTrace, SamplingLimits


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled rule."""

    id: str
    kind: str
    """``ban``, ``limit``, ``decide`` or ``deny``."""
    when: When | None
    test: Test
    bans: tuple[Mode, ...] = ()
    decision: Decision
    """What the rule decides, without bans and trace; standard mode for a ban. Of a rule that
    limits, only the limits count."""
    caller_may_choose: bool = False
    reason: str = ""
    owner: str | None = None
    expires: date | None = None
    """The last day, in UTC."""
    not_reached: RuleTrace

    def expired(self, today: date) -> bool:
        """Whether the rule's last day is over."""
        return self.expires is not None and today > self.expires


Placed = tuple[tuple[int, Rule], ...]
"""Rules, each with its place among all of the policy."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled policy that only tightens, and only for some callers."""

    name: str
    path: str
    when: When
    """Whose requests it tightens."""
    test: Test
    bans: Placed
    limits: Placed
    denies: Placed
    signals_read: frozenset[str]

    def rules(self) -> Iterator[tuple[int, Rule]]:
        """Every rule of it with its place."""
        yield from (*self.bans, *self.limits, *self.denies)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable policy: rules in file order, and what applies when none of them does."""

    name: str
    hash: str
    """SHA-256 of the file's bytes, in hex; of a set's listing by ``sha256sum``."""
    path: str
    files: tuple[PolicyFile, ...]
    """All that it was read from, the file at ``path`` first."""
    rules: tuple[Rule, ...]
    """All of them, in file order; those of the layers last."""
    bans: Placed
    """The bans, each with its place in ``rules``; without those of the layers."""
    limits: Placed
    choices: Placed
    """The rules that decide or deny, each with its place in ``rules``."""
    layers: tuple[Layer, ...] = ()
    """What tightens decisions for some callers, in order."""
    default: Decision
    on_classifier_error: Decision
    on_truncated_input: Decision
    signals_read: frozenset[str]
    """The names of the signals that the rules cannot do without; without those of the layers."""
    restricting_domains: frozenset[str]
    """The domains by which a rule bans, denies or decides standard mode; layers included."""

    @property
    def text(self) -> str:
        """The text of the file at ``path``."""
        return self.files[0].text

    @property
    def version(self) -> str:
        """The hash as people see it."""
        return self.hash[:SHORT_HASH_LENGTH]

    def warnings(self, today: date) -> tuple[str, ...]:
        """What is allowed but should not stay so: rules that have expired."""
        return tuple(
            f"rule {rule.id!r} expired on {rule.expires}: "
            + ("it decides standard mode" if rule.kind == "decide" else f"its {rule.kind} holds on")
            + " until the rule is renewed or removed"
            for rule in self.rules
            if rule.expired(today)
        )

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision that it can come to, callers' wishes aside."""
        chosen = (rule.decision for rule in self.rules if rule.kind == "decide")
        return (*chosen, self.default, self.on_classifier_error, self.on_truncated_input)


def load(path: Path, *, backends: Collection[str] | None = None, text: str | None = None) -> Policy:
    """The policy in a file or a folder, checked against the registered verifiers and draft sources.

    ``backends`` are the names that a rule may send requests to; None leaves them unchecked.
    ``text`` stands for what the file at ``path`` holds.
    Raises ConfigError with every problem at its line and column.
    """
    if path.is_dir():
        path = path / SET_FILE
        if not path.exists():
            hint = "list the files of the set in it, or name one policy file"
            raise ConfigError(
                [Problem(f"no {SET_FILE} in this folder", path=path.parent, hint=hint)]
            )
    return parse_policy(
        documents.read(path) if text is None else text,
        path,
        verifiers=extensions.names("verifiers"),
        draft_sources=extensions.names("draft_sources"),
        backends=backends,
    )


def parse_policy(
    text: str,
    path: Path | str,
    *,
    verifiers: Collection[str],
    draft_sources: Collection[str],
    backends: Collection[str] | None = None,
    read: Read = documents.read,
) -> Policy:
    """The policy in ``text``; ``path`` is named in problems, and says whether it is a set.

    ``read`` gives the text of the other files of a set. Raises ConfigError.
    """
    known = Known(verifiers, draft_sources, backends)
    sources = gather(text, Path(path), read, known)
    if found := problems(sources, known):
        raise ConfigError(found)
    return _compile(sources)


def _compile(sources: Sources) -> Policy:
    entry, name, policy_hash = sources.entry, sources.entry.name, sources.hash

    def decision(decide: Decide, rule: str) -> Decision:
        return _decision(decide, rule, "", name, policy_hash)

    rules = [_rule(rule, name, policy_hash) for rule in entry.rules]
    bans, limits, choices = _split(rules, 0)
    layers = []
    for document, layer in sources.layers:
        added = [_rule(rule, name, policy_hash) for rule in layer.rules]
        layers.append(_layer(document.path, layer, _split(added, len(rules))))
        rules += added
    return Policy(
        name=name,
        hash=policy_hash,
        path=sources.files[0].path,
        files=sources.files,
        rules=tuple(rules),
        bans=bans,
        limits=limits,
        choices=choices,
        layers=tuple(layers),
        default=decision(entry.default, "default"),
        on_classifier_error=decision(entry.on_classifier_error, "on_classifier_error"),
        on_truncated_input=decision(entry.on_truncated_input, "on_truncated_input"),
        signals_read=_signals_read(entry.rules),
        restricting_domains=frozenset(
            domain for rule in rules if _restricts(rule) for domain in domains_read(rule.when)
        ),
    )


def _restricts(rule: Rule) -> bool:
    return rule.kind in ("ban", "deny") or (
        rule.kind == "decide" and rule.decision.mode is Mode.STANDARD
    )


def _split(rules: list[Rule], start: int) -> tuple[Placed, Placed, Placed]:
    """Bans, limits, and the rest; the first rule has the place ``start``."""

    def those(wanted: Callable[[str], bool]) -> Placed:
        return tuple((start + i, rule) for i, rule in enumerate(rules) if wanted(rule.kind))

    return (
        those(lambda kind: kind == "ban"),
        those(lambda kind: kind == "limit"),
        those(lambda kind: kind in ("decide", "deny")),
    )


def _layer(path: str, entry: TighteningEntry, rules: tuple[Placed, Placed, Placed]) -> Layer:
    bans, limits, denies = rules
    when = entry.for_.when
    return Layer(
        name=entry.name,
        path=path,
        when=when,
        test=compile_when(when),
        bans=bans,
        limits=limits,
        denies=denies,
        signals_read=_signals_read(entry.rules),
    )


def _signals_read(rules: tuple[RuleEntry, ...] | tuple[TighteningRule, ...]) -> frozenset[str]:
    return frozenset(name for rule in rules for name in signals_read(rule.when))


def _rule(entry: RuleEntry | TighteningRule, policy: str, policy_hash: str) -> Rule:
    given = entry.decide if isinstance(entry, RuleEntry) else None
    decide = given or Decide(mode=Mode.STANDARD)
    decision = _decision(decide, entry.id, entry.reason, policy, policy_hash)
    if entry.limit is not None:
        limits = SamplingLimits(entry.limit.max_temperature, entry.limit.max_tokens)
        decision = msgspec.structs.replace(decision, limits=limits, capture=entry.limit.capture)
    return Rule(
        id=entry.id,
        kind=entry.kind,
        when=entry.when,
        test=compile_when(entry.when),
        bans=tuple(map(Mode, entry.ban or ())),
        decision=msgspec.structs.replace(decision, deny=entry.deny),
        caller_may_choose=isinstance(entry, RuleEntry) and entry.caller_may_choose,
        reason=entry.reason,
        owner=entry.owner,
        expires=entry.expires,
        not_reached=RuleTrace(entry.id, entry.kind, False, "not reached"),
    )


def _decision(decide: Decide, rule: str, reason: str, policy: str, policy_hash: str) -> Decision:
    draft = None
    if decide.mode is not Mode.STANDARD:
        chosen = decide.draft
        draft = (
            DraftSetting(chosen.source, chosen.num_speculative_tokens) if chosen else DraftSetting()
        )
    return Decision(
        mode=decide.mode,
        rule=rule,
        policy=policy,
        policy_hash=policy_hash,
        reason=reason,
        verifier=decide.verifier,
        max_distortion=decide.max_distortion,
        draft=draft,
        standard_first=decide.standard_first or 0,
        content_tokens=Mode(decide.content_tokens or "speculative"),
        max_entropy=decide.max_entropy,
        hybrid_fallback=Mode(decide.hybrid_fallback or "standard"),
        backend=decide.backend,
        limits=SamplingLimits(decide.max_temperature, decide.max_tokens, decide.temperature),
        shadow_rate=decide.shadow_rate,
        capture=decide.capture,
    )
