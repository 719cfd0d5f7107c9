"""A log as a gateway leaves it after a day: every domain and mode, an alarm, shadow runs, hostile text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.audit.keys import keyring
from gateway.audit.record import DecisionRecord, Feedback, OutcomeRecord, Shadow, Timings
from gateway.audit.store import DecisionStore
from gateway.tally import Moments, Tally
from gateway.types import (
    Caller,
    DraftSetting,
    FinishReason,
    Mode,
    RuleTrace,
    Signal,
    Signals,
    Usage,
)
from tests.records import decided, outcome_record

HOSTILE = (
    "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"
)
MODES = {
    "code": Mode.SPECULATIVE,
    "customer_support": Mode.HYBRID,
    "structured_extraction": Mode.SPECULATIVE,
    "medical": Mode.STANDARD,
    "general_chat": Mode.STANDARD,
    "legal": Mode.STANDARD,
}
RULES = {"code": "code", "customer_support": "support", "medical": "medical"}
_WEIGHTS = (9, 5, 3, 4, 8, 1)
_RATES = {Mode.STANDARD: 31.0, Mode.HYBRID: 44.0, Mode.SPECULATIVE: 78.0}


def seed(url: str, policy_hash: str, *, number: int, now: float, key: bytes) -> None:
    """Write so many requests of the last day, oldest first, and what hangs on some of them."""
    asyncio.run(_seed(url, policy_hash, number, now, key))


async def _seed(url: str, policy_hash: str, number: int, now: float, key: bytes) -> None:
    store = await DecisionStore.open(url, keys=keyring([("", key)]))
    dice = random.Random(7)
    for record, outcome in _requests(dice, policy_hash, number, now):
        await store.append_decision(record)
        await store.append_outcome(outcome)
    last = f"dec_{number - 1:06d}"
    await store.append_feedback(
        Feedback(decision_id=last, given_at=now, by=HOSTILE, domains=("code",), note=HOSTILE)
    )
    for at in range(0, number, 9):
        equal = Shadow(decision_id=f"dec_{at:06d}", added_at=now, result="equal", num_tokens=40)
        await store.append_addendum(equal)
    await store.aclose()


def _requests(
    dice: random.Random, policy_hash: str, number: int, now: float
) -> Iterator[tuple[DecisionRecord, OutcomeRecord]]:
    for i in range(number):
        (domain,) = dice.choices(list(MODES), _WEIGHTS)
        # The first requests are plain ones of each domain, so that there is something to compare.
        mode = Mode.STANDARD if i % 11 == 0 else MODES[domain]
        at = now - 86000 * (1 - (i + 1) / number) ** 1.2
        leaks = domain == "structured_extraction" and i > number * 0.6
        caller = HOSTILE if i == number - 1 else dice.choice(["ada", "billing", "helpdesk"])
        yield (
            _decision(dice, i, domain, mode, at, policy_hash, caller),
            _outcome(dice, i, mode, at, leaks),
        )


def _decision(
    dice: random.Random, i: int, domain: str, mode: Mode, at: float, policy_hash: str, caller: str
) -> DecisionRecord:
    score = dice.uniform(0.62, 0.98)
    medical = score if domain == "medical" else dice.uniform(0.0, 0.09)
    rule = RULES.get(domain, "default") if mode is MODES[domain] else "default"
    items = [Signal("domain", domain, score, "domain")]
    for other in ("medical", "legal", "code", "general_chat", "customer_support"):
        if other != domain:
            value = medical if other == "medical" else dice.uniform(0.0, 0.3)
            items.append(Signal("domain", other, value, "domain"))
    items.append(Signal("language", "en", 0.99, "language"))
    trace = (
        RuleTrace("medical", "ban", medical >= 0.1, _compared("medical", medical, 0.1)),
        RuleTrace("code", "decide", rule == "code", _compared("code", score, 0.6)),
        RuleTrace("support", "decide", rule == "support", "domain customer_support is the top one"),
    )
    record = decided(
        i,
        mode=mode,
        rule=rule,
        policy_hash=policy_hash,
        reason="Code repeats its own text, which drafts predict well." if rule == "code" else "",
        draft=None if mode is Mode.STANDARD else DraftSetting("suffix", 8),
        standard_first=10 if mode is Mode.HYBRID else 0,
        trace=trace,
    )
    signals = Signals(tuple(items), 120, 120, {"domain": "c" * 64})
    return msgspec.structs.replace(
        record, created_at=at, caller=Caller(caller, "tools"), signals=signals
    )


def _compared(domain: str, value: float, bar: float) -> str:
    return f"domain {domain} {value:.2f} {'>=' if value >= bar else '<'} {bar:.2f}"


def _outcome(dice: random.Random, i: int, mode: Mode, at: float, leaks: bool) -> OutcomeRecord:
    tokens = dice.randint(40, 260)
    drafted = mode is not Mode.STANDARD
    accept_counts = [0] * 9
    accepted = proposed = drafts = 0
    while drafted and accepted + drafts < tokens * 0.7:
        here = dice.choice([0, 1, 2, 3, 4, 8])
        accept_counts[here] += 1
        accepted, proposed, drafts = accepted + here, proposed + dice.choice([here, 8]), drafts + 1
    seconds = tokens / (_RATES[mode] * dice.uniform(0.9, 1.1))
    first = dice.uniform(0.03, 0.12)
    factor = 3.0 if leaks else dice.gauss(-0.08, 0.3)
    tally = Tally(
        num_tokens=tokens,
        log_factors={"leak": factor, "sharper": factor / 2},
        accepted=Moments(accepted, accepted + dice.gauss(0, 2), tokens * 0.1),
        surprisal=Moments(tokens * 1.2 + dice.gauss(0, 4), tokens * 1.2, tokens * 0.9),
        tail=Moments(tokens * 0.05, tokens * 0.05, tokens * 0.04),
        draft_blind=Moments(tokens * 0.02, tokens * 0.02, tokens * 0.02),
        hedging=Moments(1.0, 1.1, 0.9),
    )
    run: dict[str, Any] = {
        "mode": mode,
        "usage": Usage(dice.randint(20, 400), tokens),
        "num_steps": tokens - accepted,
        "num_drafts": drafts,
        "num_draft_tokens": proposed,
        "num_accepted_tokens": accepted,
        "longest_draft": 8 if drafted else 0,
        "accept_counts": tuple(accept_counts) if drafted else (),
        "drafts_by_source": {"suffix": (proposed, accepted)} if drafted else {},
        "first_draft_position": 2 if drafted else None,
        "why_k": {"limit": drafts, "no_match": max(1, tokens - accepted - drafts)}
        if drafted
        else {},
        "tally": tally,
        "output_digests": ("d" * 64,),
        "output_lengths": (tokens,),
        "queue_seconds": dice.uniform(0, 0.02),
        "prefill_seconds": first,
        "decode_seconds": seconds,
    }
    record = outcome_record(i)
    return msgspec.structs.replace(
        record,
        finished_at=at + first + seconds,
        execution=msgspec.structs.replace(record.execution, **run),
        finish_reasons=(dice.choice([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]),),
        timings=Timings(0.004, 0.0002, 0.002, first, first + seconds),
    )
