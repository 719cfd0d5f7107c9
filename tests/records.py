"""Builders of decision and outcome records for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.audit.record import DecisionRecord, OutcomeRecord, RequestFacts, Timings
from gateway.execution import Execution
from gateway.types import (
    Caller,
    Decision,
    DraftSetting,
    FinishReason,
    Mode,
    RuleTrace,
    Sampling,
    Signal,
    Signals,
    Usage,
)


def decision_record(number: int = 0, **changes: Any) -> DecisionRecord:
    """The decision record ``dec_NNNNNN`` of a code request, created ``number`` seconds after 1000."""
    record = DecisionRecord(
        decision_id=f"dec_{number:06d}",
        request_id=f"req_{number:06d}",
        created_at=1000.0 + number,
        caller=Caller(id="ada", team="tools"),
        request=RequestFacts(
            endpoint="chat.completions",
            model="small",
            stream=True,
            n=1,
            prompt_tokens=12,
            digest="0" * 64,
            has_tools=False,
            response_format="text",
            requested_mode=None,
        ),
        signals=Signals(
            items=(
                Signal("domain", "code", 0.93, "domain"),
                Signal("domain", "medical", 0.02, "domain"),
            ),
            scored_tokens=9,
            total_tokens=9,
            classifiers={"domain": "c" * 64},
        ),
        decision=Decision(
            mode=Mode.SPECULATIVE,
            rule="code",
            policy="default",
            policy_hash="f" * 64,
            draft=DraftSetting("suffix", 8),
            trace=(
                RuleTrace("medical", "ban", False, "domain medical 0.02 < 0.10"),
                RuleTrace("code", "decide", True, "domain code 0.93 >= 0.60"),
            ),
        ),
        sampling=Sampling(seed=2**63 - 1, logit_bias={7: -1.5}),
        backend="local",
    )
    return msgspec.structs.replace(record, **changes)


def decided(number: int = 0, **changes: Any) -> DecisionRecord:
    """A decision record whose `Decision` has these fields."""
    record = decision_record(number)
    decision = msgspec.structs.replace(record.decision, **changes)
    return msgspec.structs.replace(record, decision=decision)


def outcome_record(number: int = 0, **changes: Any) -> OutcomeRecord:
    """The outcome of ``decision_record(number)``: a good end after 16 draft tokens."""
    record = OutcomeRecord(
        decision_id=f"dec_{number:06d}",
        finished_at=1001.0 + number,
        finish_reasons=(FinishReason.STOP,),
        execution=Execution(
            backend="local",
            model="small",
            mode=Mode.SPECULATIVE,
            verifier="coupled",
            verifier_class="exact",
            usage=Usage(12, 20),
            num_steps=8,
            num_drafts=4,
            num_draft_tokens=16,
            num_accepted_tokens=12,
            longest_draft=4,
            accept_counts=(1, 0, 0, 0, 3),
            drafts_by_source={"suffix": (16, 12)},
            first_draft_position=2,
        ),
        timings=Timings(classify=0.001, record=0.002, first_token=0.05, total=0.4),
        attestation="ok",
    )
    return msgspec.structs.replace(record, **changes)
