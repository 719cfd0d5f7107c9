"""`Policy`: one validated policy file, compiled, immutable and named by the hash of its text.

`load` and `parse_policy` make one or raise ConfigError. Deciding is `decide`'s matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from gateway import documents, extensions
from gateway.errors import ConfigError
from gateway.routing.checks import Known, problems
from gateway.routing.conditions import Test, compile_when, signals_read
from gateway.routing.schema import Decide, PolicyEntry, RuleEntry
from gateway.routing.when import When
from gateway.types import SHORT_HASH_LENGTH, Decision, DraftSetting, Mode, RuleTrace, SamplingLimits


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled rule."""

    id: str
    kind: str
    """``ban``, ``decide`` or ``deny``."""
    when: When | None
    test: Test
    bans: tuple[Mode, ...] = ()
    decision: Decision
    """What the rule decides, without bans and trace; standard mode for a ban."""
    caller_may_choose: bool = False
    reason: str = ""
    owner: str | None = None
    not_reached: RuleTrace


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable policy: rules in file order, and what applies when none of them does."""

    name: str
    hash: str
    """SHA-256 of the file's bytes, in hex."""
    path: str
    text: str
    rules: tuple[Rule, ...]
    """All of them, in file order."""
    bans: tuple[tuple[int, Rule], ...]
    """The bans, each with its place in ``rules``."""
    choices: tuple[tuple[int, Rule], ...]
    """The rules that decide or deny, each with its place in ``rules``."""
    default: Decision
    on_classifier_error: Decision
    on_truncated_input: Decision
    signals_read: frozenset[str]
    """The names of the signals that the rules cannot do without."""

    @property
    def version(self) -> str:
        """The hash as people see it."""
        return self.hash[:SHORT_HASH_LENGTH]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every decision that it can come to, callers' wishes aside."""
        chosen = (rule.decision for rule in self.rules if rule.kind == "decide")
        return (*chosen, self.default, self.on_classifier_error, self.on_truncated_input)


def load(path: Path, *, backends: Collection[str] | None = None) -> Policy:
    """The policy in a file, checked against the registered verifiers and draft sources.

    ``backends`` are the names that a rule may send requests to; None leaves them unchecked.
    Raises ConfigError with every problem at its line and column.
    """
    return parse_policy(
        documents.read(path),
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
) -> Policy:
    """The policy in ``text``; ``path`` is only named in problems. Raises ConfigError."""
    document = documents.parse(text, path)
    entry = documents.convert(document, PolicyEntry)
    if found := problems(entry, document, Known(verifiers, draft_sources, backends)):
        raise ConfigError(found)
    policy_hash = hashlib.sha256(text.encode()).hexdigest()

    def decision(decide: Decide, rule: str, reason: str = "") -> Decision:
        return _decision(decide, rule, reason, entry.name, policy_hash)

    rules = tuple(_rule(rule, entry.name, policy_hash) for rule in entry.rules)
    return Policy(
        name=entry.name,
        hash=policy_hash,
        path=str(path),
        text=text,
        rules=rules,
        bans=tuple((i, rule) for i, rule in enumerate(rules) if rule.kind == "ban"),
        choices=tuple((i, rule) for i, rule in enumerate(rules) if rule.kind != "ban"),
        default=decision(entry.default, "default"),
        on_classifier_error=decision(entry.on_classifier_error, "on_classifier_error"),
        on_truncated_input=decision(entry.on_truncated_input, "on_truncated_input"),
        signals_read=frozenset(name for rule in entry.rules for name in signals_read(rule.when)),
    )


def _rule(entry: RuleEntry, policy: str, policy_hash: str) -> Rule:
    decide = entry.decide or Decide(mode=Mode.STANDARD)
    decision = _decision(decide, entry.id, entry.reason, policy, policy_hash)
    return Rule(
        id=entry.id,
        kind=entry.kind,
        when=entry.when,
        test=compile_when(entry.when),
        bans=entry.ban or (),
        decision=msgspec.structs.replace(decision, deny=entry.deny),
        caller_may_choose=entry.caller_may_choose,
        reason=entry.reason,
        owner=entry.owner,
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
        backend=decide.backend,
        limits=SamplingLimits(decide.max_temperature, decide.max_tokens),
        shadow_rate=decide.shadow_rate,
    )
