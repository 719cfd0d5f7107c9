from __future__ import annotations

import hashlib

import msgspec
import pytest

from gateway.audit.record import RequestFacts, attest
from gateway.types import ChatRequest, Decision, Draft, Execution, Message, Mode


def _decision(mode: Mode, **changes: object) -> Decision:
    decision = Decision(
        mode=mode,
        rule="r",
        policy="p",
        policy_hash="h",
        draft=None if mode is Mode.STANDARD else Draft(),
    )
    return msgspec.structs.replace(decision, **changes)


def _drafted(mode: Mode, position: int, **changes: object) -> Execution:
    execution = Execution(
        mode=mode, verifier="coupled", num_draft_tokens=5, first_draft_position=position
    )
    return msgspec.structs.replace(execution, **changes)


STANDARD = _decision(Mode.STANDARD)
SPECULATIVE = _decision(Mode.SPECULATIVE)
HYBRID = _decision(Mode.HYBRID, standard_first=10)
LOSSY = _decision(Mode.SPECULATIVE, verifier="typical", max_distortion=0.2)
RELAXED = _drafted(Mode.SPECULATIVE, 0, verifier="typical", verifier_class="lossy")


@pytest.mark.parametrize(
    ("decision", "execution", "expected"),
    [
        (STANDARD, Execution(), "ok"),
        (STANDARD, Execution(mode=Mode.STANDARD), "ok"),
        (STANDARD, Execution(mode=Mode.STANDARD, num_draft_tokens=1), "attestation_failed"),
        (STANDARD, Execution(mode=Mode.SPECULATIVE), "attestation_failed"),
        (STANDARD, Execution(mode=Mode.HYBRID), "attestation_failed"),
        (STANDARD, Execution(mode=None, num_draft_tokens=1), "attestation_failed"),
        (SPECULATIVE, Execution(), "ok"),
        (SPECULATIVE, Execution(mode=Mode.SPECULATIVE), "ok"),
        (SPECULATIVE, _drafted(Mode.SPECULATIVE, 0), "ok"),
        (SPECULATIVE, _drafted(Mode.SPECULATIVE, 0, accept_counts=(0,) * 8 + (1,)), "ok"),
        (
            SPECULATIVE,
            _drafted(Mode.SPECULATIVE, 0, accept_counts=(0,) * 9 + (1,)),
            "attestation_failed",
        ),
        (SPECULATIVE, _drafted(Mode.SPECULATIVE, 0, verifier="typical"), "attestation_failed"),
        (SPECULATIVE, _drafted(Mode.SPECULATIVE, 0, verifier=None), "attestation_failed"),
        (SPECULATIVE, Execution(mode=Mode.STANDARD), "attestation_failed"),
        (SPECULATIVE, Execution(mode=Mode.HYBRID), "attestation_failed"),
        (HYBRID, Execution(mode=Mode.HYBRID), "ok"),
        (HYBRID, _drafted(Mode.HYBRID, 10), "ok"),
        (HYBRID, _drafted(Mode.HYBRID, 9), "attestation_failed"),
        (HYBRID, Execution(mode=Mode.SPECULATIVE), "attestation_failed"),
        (LOSSY, msgspec.structs.replace(RELAXED, distortion=0.2), "ok"),
        (LOSSY, msgspec.structs.replace(RELAXED, distortion=0.2 + 1e-12), "ok"),
        (LOSSY, msgspec.structs.replace(RELAXED, distortion=0.21), "attestation_failed"),
        (LOSSY, msgspec.structs.replace(RELAXED, verifier="conservative"), "attestation_failed"),
        (LOSSY, Execution(mode=Mode.SPECULATIVE), "ok"),
        (
            SPECULATIVE,
            _drafted(Mode.SPECULATIVE, 0, verifier_class="lossy"),
            "attestation_failed",
        ),
        (SPECULATIVE, _drafted(Mode.SPECULATIVE, 0, distortion=0.01), "attestation_failed"),
        (
            SPECULATIVE,
            Execution(mode=Mode.SPECULATIVE, verifier="typical", verifier_class="lossy"),
            "attestation_failed",
        ),
    ],
)
def test_attestation_holds_what_ran_against_what_was_decided(
    decision: Decision, execution: Execution, expected: str
) -> None:
    assert expected == attest(decision, execution)


def test_a_record_keeps_the_digest_of_the_body_and_no_text_of_it() -> None:
    body = b'{"messages": [{"role": "user", "content": "pneumonia"}]}'
    request = ChatRequest(
        model="small",
        messages=(Message("user", "pneumonia"),),
        requested_mode=Mode.STANDARD,
        body=body,
    )

    facts = RequestFacts.of(request, prompt_tokens=5)

    assert hashlib.sha256(body).hexdigest() == facts.digest
    assert b"pneumonia" not in msgspec.json.encode(facts)
    assert (
        facts.endpoint,
        facts.prompt_tokens,
        facts.requested_mode,
    ) == ("chat.completions", 5, "standard")


def test_a_prompt_is_told_from_messages_even_when_it_is_empty() -> None:
    assert RequestFacts.of(ChatRequest(model="m", prompt=""), 0).endpoint == "completions"
