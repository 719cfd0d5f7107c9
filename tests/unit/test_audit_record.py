from __future__ import annotations

import hashlib

import msgspec

from gateway.audit.digests import Digests
from gateway.audit.record import RequestFacts
from gateway.types import ChatRequest, Message, Mode


def test_a_record_keeps_the_digest_of_the_body_and_no_text_of_it() -> None:
    body = b'{"messages": [{"role": "user", "content": "pneumonia"}]}'
    request = ChatRequest(
        model="small",
        messages=(Message("user", "pneumonia"),),
        requested_mode=Mode.STANDARD,
        body=body,
    )

    facts = RequestFacts.of(request, 5, Digests().of(body))

    assert hashlib.sha256(body).hexdigest() == facts.digest
    assert b"pneumonia" not in msgspec.json.encode(facts)
    assert (
        facts.endpoint,
        facts.prompt_tokens,
        facts.requested_mode,
    ) == ("chat.completions", 5, "standard")


def test_a_prompt_is_told_from_messages_even_when_it_is_empty() -> None:
    assert (
        RequestFacts.of(ChatRequest(model="m", prompt=""), 0, Digests().of(b"")).endpoint
        == "completions"
    )
