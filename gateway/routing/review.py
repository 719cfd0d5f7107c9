"""`review`: a decision looked at again, by the same policy, with a second opinion of the domains.

It can only find that the decided mode is not allowed; what else would be decided is not asked.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from gateway.routing.decide import decide
from gateway.routing.policy import Policy
from gateway.types import Caller, ChatRequest, Decision, Mode, Signal, Signals


def review(
    policy: Policy,
    signals: Signals,
    request: ChatRequest,
    caller: Caller,
    decided: Decision,
    scores: Mapping[str, float],
    *,
    prompt_tokens: int,
    now: datetime.datetime,
) -> str | None:
    """The rule by which ``policy`` would not have allowed the decided mode; None where it would.

    Of each domain that a rule makes stricter by, the higher of the two probabilities counts. The
    others stay as they are: a second opinion about what pays is not asked for.
    """
    if decided.mode is Mode.STANDARD:
        return None
    second = tuple(
        Signal("domain", domain, score, "review")
        for domain, score in scores.items()
        if domain in policy.restricting_domains
    )
    united = msgspec.structs.replace(signals, items=signals.items + second)
    again = decide(policy, united, request, caller, prompt_tokens=prompt_tokens, now=now)
    if decided.mode in again.bans:
        return again.bans[decided.mode]
    refused = again.deny is not None or again.mode is Mode.STANDARD
    return again.rule if refused else None
