"""A call taken apart as it is written, and put together again as clients do it."""

import json

import msgspec
import pytest

from gateway.api.render import Choice, Fold
from gateway.api.tool_calls import ToolCallRendering, read_call
from gateway.chunk import CallPiece, Chunk
from gateway.reply import Receipt
from gateway.types import FinishReason, Usage
from tests.records import decision_record

RECEIPT = Receipt(
    request_id="req_1",
    decision_id="dec_0123",
    created_at=1000.0,
    decision=decision_record().decision,
    prompt_tokens=3,
)
TEXT = '{"name": "look_up", "arguments": {"what": "a \\"}\\" b", "more": {}}}'
ARGUMENTS = '{"what": "a \\"}\\" b", "more": {}}'


def chunks(text, size, reason):
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    last = Chunk(0, finish_reason=reason, usage=Usage(0, len(pieces)))
    return [*(Chunk(0, piece) for piece in pieces), last]


def streamed(given):
    """What a client makes of the stream: the calls by index, and the finish reason."""
    rendering, choice = ToolCallRendering("m", 1), Choice()
    events = list(rendering.opening(RECEIPT))
    for chunk in given:
        events += rendering.events(RECEIPT, chunk, choice)
        choice.add(chunk)
    calls, reason = {}, None
    for event in events:
        (part,) = event["choices"]
        reason = part["finish_reason"] or reason
        for delta in part["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            call["arguments"] += delta["function"]["arguments"]
            for key in ("id", "type"):
                assert key not in call or key not in delta, "sent twice"
                call |= {key: delta[key]} if key in delta else {}
            call |= {"name": delta["function"]["name"]} if "name" in delta["function"] else {}
    return calls, reason


def whole(given):
    fold = Fold(RECEIPT, 1)
    for chunk in given:
        fold.add(chunk)
    return ToolCallRendering("m", 1).whole(RECEIPT, fold)["choices"][0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 25, 40, 100])
def test_a_stream_and_an_object_hold_the_same_call(size):
    given = chunks(TEXT, size, FinishReason.TOOL_CALLS)
    calls, reason = streamed(given)
    choice = whole(given)

    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look_up", "arguments": ARGUMENTS}
    assert call["type"] == "function"
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == reason == "tool_calls"
    assert calls == {
        0: {"id": call["id"], "type": "function", "name": "look_up", "arguments": ARGUMENTS}
    }
    json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("length", range(len(TEXT) + 1))
@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_call_cut_short_gives_as_much_as_there_is_either_way(length, reason):
    given = chunks(TEXT[:length], 4, reason)
    calls, streamed_reason = streamed(given)
    choice = whole(given)

    assert choice["finish_reason"] == streamed_reason == reason.value
    head = TEXT.index("{", 1)
    if length < head:
        assert not calls
        assert "tool_calls" not in choice["message"]
    else:
        (call,) = choice["message"]["tool_calls"]
        assert (
            call["function"]["arguments"] == TEXT[head:-1][: length - head] == calls[0]["arguments"]
        )


def test_choices_have_calls_with_ids_of_their_own():
    fold = Fold(RECEIPT, 2)
    for index in range(2):
        fold.add(Chunk(index, TEXT, finish_reason=FinishReason.TOOL_CALLS))

    body = ToolCallRendering("m", 2).whole(RECEIPT, fold)

    first, second = (choice["message"]["tool_calls"][0]["id"] for choice in body["choices"])
    assert first != second
    msgspec.json.encode(body)


def test_nothing_is_read_before_the_name_is_whole():
    assert read_call('{"name": "look_up"', None) is None
    assert read_call("", FinishReason.LENGTH) is None


def test_calls_are_told_apart_by_their_numbers_wherever_these_begin():
    choice = Choice()
    for piece in (CallPiece(1, "a", "{"), CallPiece(3, "b"), CallPiece(1, arguments="}")):
        choice.add(Chunk(calls=(piece,)))

    assert choice.calls == [CallPiece(1, "a", "{}"), CallPiece(3, "b")]
