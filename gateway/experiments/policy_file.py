"""Writes a suggested policy and its tests: the bans of the policy in force, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.documents.layout import laid_out
from gateway.experiments.arms import Drafting
from gateway.experiments.matrix import Measured
from gateway.experiments.suggestion import GUARDED, PROBABILITY, Suggestion, decided, guards
from gateway.routing.cases import CaseFile
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.schema import PolicyEntry
from gateway.types import Mode

MIN_PROBABILITY = 0.6
"""From which a rule that was measured decides."""
GUARD_PROBABILITY = 0.10
"""From which a guarded domain keeps the mode that it has."""
_JUST_BELOW = 0.59


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The two files, and what in them is not as was suggested."""

    policy: str
    tests: str
    differences: tuple[str, ...]
    """Where something else in the policy in force stands above a suggestion."""


def write_policy(
    suggestions: Sequence[Suggestion],
    measurements: Sequence[Measured],
    current: Policy,
    entry: PolicyEntry,
    drafting: Drafting,
    path: Path,
) -> Written:
    """The policy to be saved at ``path``, and its tests; ``entry`` is ``current`` as it was written.

    Rules that ban, limit or refuse are kept; the default and the decisions, with the limits and the
    capture that stand in them, are replaced by what was measured. Raises ConfigError where that makes
    no valid policy.
    """
    text = laid_out(
        "\n".join(_policy(suggestions, measurements, current, entry, drafting)), path, PolicyEntry
    )
    draft = drafting.source
    names = {"coupled", *(rule.decision.verifier for rule in current.rules)}
    policy = parse_policy(text, path, verifiers=names, draft_sources={draft, "suffix", "model"})
    cases = laid_out("\n".join(_tests(suggestions, policy)), path, CaseFile)
    differences = tuple(
        f"{one.domain}: {one.mode.value} is suggested, and {now.rule} decides {now.mode.value}"
        for one in suggestions
        if (now := decided(policy, {one.domain: PROBABILITY})).mode is not one.mode
    )
    return Written(policy=text, tests=cases, differences=differences)


def _policy(
    suggestions: Sequence[Suggestion],
    measurements: Sequence[Measured],
    current: Policy,
    entry: PolicyEntry,
    drafting: Drafting,
) -> Iterator[str]:
    kept = [rule for rule in entry.rules if rule.decide is None]
    left = [rule.id for rule in entry.rules if rule.decide is not None]
    yield "# Suggested by `draftgate matrix` from measurements; read it before it is used."
    yield f"# Rules that ban, limit or refuse are those of {current.name} ({current.version})."
    yield "# Its default, with limits and capture that stand there or in a decision, is not kept."
    if left:
        yield f"# Its decisions are replaced by what was measured: {', '.join(left)}."
    if current.layers:
        yield f"# Keep what tightens it: {', '.join(layer.name for layer in current.layers)}."
    yield "#"
    yield "# Speed-up: tokens per second over standard mode, geometric mean and 95 % interval."
    yield "version: 1"
    yield "name: suggested"
    for block in ("default", "on_classifier_error", "on_truncated_input"):
        yield f"{block}: {{mode: standard}}"
    standard = [one for one in suggestions if one.mode is Mode.STANDARD]
    faster = [one for one in suggestions if one.mode is not Mode.STANDARD]
    for one in standard:
        yield f"# {one.domain}: standard, because {one.reason}."
        yield from _measurements(measurements, one.domain, "")
    guarded = guards(current) if faster else {}
    if not (kept or faster):
        return
    yield "rules:"
    for rule in kept:
        yield from _item(_plain(rule))
    for domain, modes in guarded.items():
        yield from _item(_guard(domain, modes, current))
    for one in faster:
        yield from _measurements(measurements, one.domain, "  ")
        yield from _item(_rule(one, drafting))


def _measurements(found: Sequence[Measured], domain: str, indent: str) -> Iterator[str]:
    for one in found:
        if one.domain == domain:
            yield f"{indent}# {described(one)}"


def described(one: Measured) -> str:
    """A measurement in one line."""
    speed = "nothing that counts"
    if one.speedup is not None:
        speed = f"{one.speedup.mean:.2f}x"
        if one.speedup.low is not None and one.speedup.high is not None:
            speed += f" ({one.speedup.low:.2f} to {one.speedup.high:.2f})"
    accepted = "no drafts" if one.acceptance_rate is None else f"{one.acceptance_rate:.0%} accepted"
    evidence = "bet lost" if one.log10_e is None else f"log10 e {one.log10_e:+.2f}"
    sound = "" if one.sound else ", UNSOUND"
    return (
        f"{one.domain}, {one.arm}: {speed} over {one.prompts} prompts, {accepted}, "
        f"{one.equal.hits} of {one.equal.rows} answers equal, {evidence}{sound}"
    )


def _guard(domain: str, modes: Sequence[Mode], current: Policy) -> dict[str, Any]:
    return {
        "id": f"{domain}-as-before",
        "when": {"domain": {"is": domain, "min_probability": GUARD_PROBABILITY}},
        "ban": [mode.value for mode in modes],
        "reason": f"{current.name} does not decide this for {domain} requests.",
    }


def _rule(one: Suggestion, drafting: Drafting) -> dict[str, Any]:
    decide: dict[str, Any] = {
        "mode": one.mode.value,
        "draft": {
            "source": drafting.source,
            "num_speculative_tokens": drafting.num_speculative_tokens,
        },
    }
    if one.mode is Mode.HYBRID:
        if drafting.standard_first:
            decide["standard_first"] = drafting.standard_first
        if drafting.content_tokens is Mode.STANDARD:
            decide["content_tokens"] = "standard"
    return {
        "id": f"measured-{one.domain}",
        "when": {"domain": {"is": one.domain, "min_probability": MIN_PROBABILITY}},
        "decide": decide,
        "reason": f"Measured: {one.reason}.",
    }


def _tests(suggestions: Sequence[Suggestion], policy: Policy) -> Iterator[str]:
    yield f"# What {policy.name} must decide. Run with: draftgate policy test"
    yield "cases:"
    for one in suggestions:
        name = f"plain {one.domain} requests"
        yield from _item(_case(policy, {one.domain: PROBABILITY}, name))
        if one.mode is Mode.STANDARD:
            continue
        name = f"{one.domain} that is not sure"
        yield from _item(_case(policy, {one.domain: _JUST_BELOW}, name))
        for other in GUARDED:
            if other != one.domain:
                both = {one.domain: PROBABILITY, other: GUARD_PROBABILITY}
                yield from _item(_case(policy, both, f"{one.domain} that may be {other}"))


def _case(policy: Policy, signals: Mapping[str, float], name: str) -> dict[str, Any]:
    """What the policy decides, whoever's rule it is: a later change of it must show."""
    now = decided(policy, signals)
    expect: dict[str, Any] = {"mode": now.mode.value, "rule": now.rule}
    if now.deny is not None:
        expect["deny"] = now.deny
    return {
        "name": name,
        "signals": dict(signals),
        "language": "en",
        "expect": expect,
    }


def _plain(value: Any) -> Any:
    """A struct as it may be written, without what is only its default."""
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _plain(given)
            for field in msgspec.structs.fields(value)
            if (given := getattr(value, field.name)) != field.default
        }
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return msgspec.to_builtins(value, builtin_types=(date,))


class _Dumper(yaml.SafeDumper):
    """Writes what is there twice twice: a policy has no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        return True


def _item(value: Mapping[str, Any]) -> Iterator[str]:
    """An entry of a list, indented by two."""
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    for number, line in enumerate(text.splitlines()):
        yield f"{'  - ' if number == 0 else '    '}{line}".rstrip()
