"""Bodies that come from a file or from the log: of which API they are, and what they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.audit.digests import Digest
from gateway.audit.record import RequestFacts
from gateway.cli.request_file import parse_request
from gateway.errors import ConfigError
from gateway.types import Message

TURN = {"role": "user", "content": "Hello."}
MESSAGE = {"model": "m", "max_tokens": 9, "system": "Be short.", "messages": [TURN]}
RESPONSE = {"model": "m", "instructions": "Be short.", "input": "Hello."}
TURNS = (Message("system", "Be short."), Message("user", "Hello."))


def parse(body: Any, endpoint: str | None = None) -> Any:
    return parse_request(msgspec.json.encode(body), Path("body.json"), endpoint)


@pytest.mark.parametrize(
    ("body", "endpoint", "turns"),
    [
        (MESSAGE, "messages", TURNS),
        (RESPONSE, "responses", TURNS),
        ({"model": "m", "messages": [TURN]}, "chat.completions", TURNS[1:]),
        ({"model": "m", "prompt": "Hello."}, "completions", ()),
    ],
)
def test_a_logged_body_is_read_by_the_api_it_was_sent_to(
    body: Any, endpoint: str, turns: tuple[Message, ...]
) -> None:
    request = parse(body, endpoint)

    assert request.messages == turns
    assert RequestFacts.of(request, 1, Digest("d")).endpoint == endpoint


def test_without_one_the_fields_tell() -> None:
    assert parse(RESPONSE).messages == TURNS
    assert parse({"messages": [TURN]}).messages == TURNS[1:]


@pytest.mark.parametrize("endpoint", [None, "responses"])
def test_a_response_without_its_conversation_is_refused(endpoint: str | None) -> None:
    with pytest.raises(ConfigError, match="previous_response_id"):
        parse({**RESPONSE, "previous_response_id": "resp_1"}, endpoint)


def test_a_body_of_another_api_than_the_log_names_is_refused() -> None:
    with pytest.raises(ConfigError):
        parse(RESPONSE, "messages")
    with pytest.raises(ConfigError, match="needs one of"):
        parse(RESPONSE, "of another version")
