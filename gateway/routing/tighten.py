"""What makes a decision stricter: bans in force, limits, and the layers that only some callers have.

Each function takes a decision and gives one that is as strict or stricter: its mode is the same or
standard, its limits are the same or lower, and a refusal stays one. So no layer can give anything
that the policy below it does not give.
"""

from __future__ import annotations

import msgspec

from gateway.routing.facts import Facts
from gateway.routing.policy import Layer, Placed, Policy, Rule
from gateway.types import EXACT_VERIFIERS, Decision, Mode, RuleTrace, SamplingLimits

Trace = list[RuleTrace]


def standard(chosen: Decision, reason: str) -> Decision:
    """The decision in standard mode, with its limits and its backend."""
    return msgspec.structs.replace(
        chosen,
        mode=Mode.STANDARD,
        verifier=chosen.verifier if chosen.max_distortion is None else EXACT_VERIFIERS[0],
        max_distortion=None,
        draft=None,
        standard_first=0,
        content_tokens=Mode.SPECULATIVE,
        max_entropy=None,
        hybrid_fallback=Mode.STANDARD,
        shadow_rate=0.0,
        reason=reason,
    )


def with_expiry(rule: Rule, detail: str, facts: Facts) -> str:
    """Why a rule matched, and that it has expired if it has."""
    if rule.expires is None or not rule.expired(facts.today):
        return detail
    effect = "decides standard" if rule.kind == "decide" else "still holds"
    return f"{detail}; expired {rule.expires}, {effect}"


def unite_bans(
    rules: Placed, facts: Facts, bans: dict[str, str], trace: Trace, doubt: str = ""
) -> None:
    """Add to ``bans`` (mode to rule id) what the matching rules ban, or all of them in doubt."""
    for i, rule in rules:
        matched, detail = (True, doubt) if doubt else rule.test(facts)
        if matched:
            detail = with_expiry(rule, detail, facts)
            for mode in rule.bans:
                bans.setdefault(mode.value, rule.id)
        trace[i] = RuleTrace(rule.id, "ban", matched, detail)


def limit(rules: Placed, chosen: Decision, facts: Facts, trace: Trace, doubt: str = "") -> Decision:
    """The decision within the limits that match, or all of them in doubt."""
    limits, capture = chosen.limits, chosen.capture
    for i, rule in rules:
        matched, detail = (True, doubt) if doubt else rule.test(facts)
        if matched:
            detail = with_expiry(rule, detail, facts)
            limits = lower(limits, rule.decision.limits)
            capture = rule.decision.capture or capture
        trace[i] = RuleTrace(rule.id, "limit", matched, detail)
    if limits is chosen.limits:
        return chosen
    return msgspec.structs.replace(chosen, limits=limits, capture=capture)


def lower(limits: SamplingLimits, other: SamplingLimits) -> SamplingLimits:
    """The stricter of each cap. A fixed temperature stays, under the cap that now holds."""
    temperatures = [t for t in (limits.max_temperature, other.max_temperature) if t is not None]
    lengths = [n for n in (limits.max_tokens, other.max_tokens) if n is not None]
    return SamplingLimits(
        max_temperature=min(temperatures, default=None),
        max_tokens=min(lengths, default=None),
        temperature=limits.temperature,
    )


def tighten(
    policy: Policy, chosen: Decision, facts: Facts, bans: dict[str, str], trace: Trace
) -> Decision:
    """The decision after every layer that is for this caller; ``bans`` gets theirs too."""
    for layer in policy.layers:
        applies, detail = layer.test(facts)
        if applies:
            chosen = _apply(layer, chosen, facts, bans, trace)
        else:
            for i, rule in layer.rules():
                trace[i] = RuleTrace(rule.id, rule.kind, False, f"not for {detail}")
    return chosen


def _apply(
    layer: Layer, chosen: Decision, facts: Facts, bans: dict[str, str], trace: Trace
) -> Decision:
    doubt = _doubt(layer, facts)
    own: dict[str, str] = {}
    unite_bans(layer.bans, facts, own, trace, doubt)
    for mode, rule_id in own.items():
        bans.setdefault(mode, rule_id)
    if chosen.mode.value in own:
        rule_id = own[chosen.mode.value]
        reason = f"{chosen.mode.value} is banned by {rule_id} of {layer.name}"
        chosen = msgspec.structs.replace(standard(chosen, reason), rule=rule_id)
    chosen = limit(layer.limits, chosen, facts, trace, doubt)
    # Doubt makes an answer slower and shorter; it refuses nobody.
    for i, rule in layer.denies:
        matched, detail = rule.test(facts)
        if matched:
            detail = with_expiry(rule, detail, facts)
        trace[i] = RuleTrace(rule.id, "deny", matched, detail)
        if matched and chosen.deny is None:
            refusal = rule.decision
            chosen = msgspec.structs.replace(
                standard(chosen, refusal.reason), rule=rule.id, deny=refusal.deny
            )
    return chosen


def _doubt(layer: Layer, facts: Facts) -> str:
    """Why the signals that the layer reads cannot be trusted; empty if they can or it reads none."""
    doubt = facts.doubt(layer.signals_read) if layer.signals_read else None
    return doubt.why if doubt is not None else ""
