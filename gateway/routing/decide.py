"""`decide`: one policy and one request to one decision. Pure and total; the clock is passed in.

1. All bans that match are united, whatever their order.
2. Decide and deny rules are tried in file order; the first that matches and whose mode is not
   banned decides. Where the signals cannot be trusted, only deny rules are tried, and
   ``on_classifier_error``, else ``on_truncated_input``, stands for the rest.
3. Without such a rule, ``default`` decides; where a ban matches, the decision bears the first ban's
   name, because that is why nothing faster came of it. A banned mode from 2. or 3. becomes standard.
4. All limits that match are applied, then the layers of a set that are for this caller; both only
   make the decision stricter.
5. The caller's own wish: standard is always granted; another mode only where the rule that decided
   says ``caller_may_choose`` and no ban matches.
6. Where evidence speaks against what would now run, and nobody has cleared it, standard.
"""

from __future__ import annotations

import datetime

import msgspec

from gateway.routing.demotion import NO_DEMOTIONS, Demotions
from gateway.routing.facts import Facts
from gateway.routing.policy import Policy, Rule
from gateway.routing.tighten import limit, standard, tighten, unite_bans, with_expiry
from gateway.types import (
    Caller,
    ChatRequest,
    Decision,
    DraftSetting,
    Mode,
    RuleTrace,
    Signals,
)

WISHED_STANDARD_FIRST = 10
"""Standard tokens at the start of a hybrid answer that only the caller asked for."""

_Bans = dict[str, str]


def decide(
    policy: Policy,
    signals: Signals,
    request: ChatRequest,
    caller: Caller,
    *,
    prompt_tokens: int,
    now: datetime.datetime,
    demotions: Demotions = NO_DEMOTIONS,
) -> Decision:
    """What the policy chooses for one request, with the trace of every rule. Never raises."""
    facts = Facts(signals, request, caller, prompt_tokens, now)
    trace = [rule.not_reached for rule in policy.rules]
    bans: _Bans = {}
    unite_bans(policy.bans, facts, bans, trace)
    distrust = _distrust(policy, facts)
    rule = _first_match(policy, facts, bans, trace, only_denies=distrust is not None)
    if rule is not None:
        chosen, may_choose = _decided_by(rule, facts)
    elif distrust is not None:
        chosen, may_choose = distrust, False
    else:
        chosen, may_choose = _default(policy, bans), False
    if chosen.mode in bans:
        chosen = standard(chosen, f"{chosen.mode.value} is banned by {bans[chosen.mode]}")
    chosen = limit(policy.limits, chosen, facts, trace)
    if policy.layers:
        chosen = tighten(policy, chosen, facts, bans, trace)
    if request.requested_mode is not None and chosen.deny is None:
        chosen, outcome = _answer_wish(chosen, request.requested_mode, bans, may_choose)
        trace.append(outcome)
    chosen, demoted = demotions.apply(chosen, signals, request)
    if demoted is not None:
        trace.append(demoted)
    return msgspec.structs.replace(chosen, bans=bans, trace=tuple(trace))


def _first_match(
    policy: Policy, facts: Facts, bans: _Bans, trace: list[RuleTrace], *, only_denies: bool
) -> Rule | None:
    for i, rule in policy.choices:
        if only_denies and rule.kind != "deny":
            trace[i] = RuleTrace(rule.id, rule.kind, False, "not tried: signals cannot be trusted")
            continue
        matched, detail = rule.test(facts)
        if not matched:
            trace[i] = RuleTrace(rule.id, rule.kind, False, detail)
            continue
        detail = with_expiry(rule, detail, facts)
        mode = rule.decision.mode
        banned = mode in bans
        if banned:
            detail = f"{detail}; {mode.value} is banned by {bans[mode]}"
        trace[i] = RuleTrace(rule.id, rule.kind, True, detail)
        if not banned:
            return rule
    return None


def _decided_by(rule: Rule, facts: Facts) -> tuple[Decision, bool]:
    """What the rule decides, and whether callers may choose; after its last day, nothing faster
    than standard comes of it, so that the end of a rule never makes an answer faster."""
    if rule.kind == "decide" and rule.expired(facts.today):
        return standard(rule.decision, f"the rule {rule.id} expired on {rule.expires}"), False
    return rule.decision, rule.caller_may_choose


def _default(policy: Policy, bans: _Bans) -> Decision:
    first = next(iter(bans.values()), None)
    if first is None:
        return policy.default
    reason = next(rule.reason for _, rule in policy.bans if rule.id == first)
    return msgspec.structs.replace(policy.default, rule=first, reason=reason)


def _distrust(policy: Policy, facts: Facts) -> Decision | None:
    """The block that replaces the decide rules, with why; None when the signals can be trusted."""
    doubt = facts.doubt(policy.signals_read)
    if doubt is None:
        return None
    block = policy.on_truncated_input if doubt.unread else policy.on_classifier_error
    return msgspec.structs.replace(block, reason=doubt.why)


def _answer_wish(
    chosen: Decision, wish: Mode, bans: _Bans, may_choose: bool
) -> tuple[Decision, RuleTrace]:
    if wish == chosen.mode:
        return chosen, _wish_trace(True, f"{wish.value} is what {chosen.rule} decided")
    if wish is Mode.STANDARD:
        granted = standard(chosen, chosen.reason)
    elif wish in bans:
        return chosen, _wish_trace(False, f"{wish.value} is banned by {bans[wish]}")
    elif not may_choose:
        return chosen, _wish_trace(False, f"{chosen.rule} does not let callers choose {wish.value}")
    else:
        granted = msgspec.structs.replace(
            chosen,
            mode=wish,
            draft=chosen.draft or DraftSetting(),
            standard_first=WISHED_STANDARD_FIRST if wish is Mode.HYBRID else 0,
            content_tokens=Mode.SPECULATIVE,
        )
    granted = msgspec.structs.replace(granted, forced_by="header")
    return granted, _wish_trace(True, f"{wish.value} instead of {chosen.mode.value}")


def _wish_trace(granted: bool, detail: str) -> RuleTrace:
    return RuleTrace("x-draftgate-mode", "request", granted, detail)
