"""The parts of the backend for other engines, each by itself: no server is asked."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.backends.openai.answer import Answer, Drafted
from gateway.backends.openai.backend import OpenAIBackend
from gateway.backends.openai.breaker import Breaker
from gateway.backends.openai.events import MAX_EVENT_BYTES, EventReader, TooLong
from gateway.backends.openai.failures import of_answer
from gateway.backends.openai.inspection import Finding, Place
from gateway.backends.openai.plan import hybrid_fallback, plan
from gateway.backends.openai.replica import SPECULATIVE, STANDARD, Arm, Replica
from gateway.backends.openai.settings import Arms, ArmSettings, Pace
from gateway.backends.openai.wire import attempt_ids, body_of, headers_of
from gateway.errors import (
    ArmUnavailable,
    BackendFailed,
    ContextLengthExceeded,
    InvalidRequest,
    QueueFull,
    UnsupportedParameter,
)
from gateway.types import (
    ChatRequest,
    Decision,
    DraftSetting,
    FinishReason,
    Grammar,
    Job,
    Message,
    Mode,
    Prompt,
    Sampling,
    Tool,
    ToolCall,
)


def decision(mode: Mode, **changes: Any) -> Decision:
    draft = None if mode is Mode.STANDARD else DraftSetting()
    plain = Decision(mode=mode, rule="r", policy="p", policy_hash="h", draft=draft)
    return msgspec.structs.replace(plain, **changes)


def job(mode: Mode = Mode.STANDARD, request: ChatRequest | None = None, **knobs: Any) -> Job:
    request = request or ChatRequest("twin", (Message("user", "Hello."),))
    request = msgspec.structs.replace(request, sampling=Sampling(**knobs))
    sampling = msgspec.structs.replace(request.sampling, seed=knobs.get("seed", 5))
    first = 4 if mode is Mode.HYBRID else 0
    return Job("req_1", request, decision(mode, standard_first=first), sampling, Prompt(3))


def sent(work: Job, honours: frozenset[str] = frozenset({"seed"}), **given: Any) -> dict[str, Any]:
    return msgspec.json.decode(body_of(work, "served", honours, **given))


def arm(name: str, *, kind: str = "vllm", up: bool = True, replicas: int = 1, **more: Any) -> Arm:
    made = [Replica(f"http://{name}{i}", "twin", None, name, Pace()) for i in range(replicas)]
    for replica in made:
        replica.finding = Finding(up=up, kind=kind)
    return Arm(name, made, **more)


def twins(**fast: Any) -> dict[str, Arm]:
    return {STANDARD: arm(STANDARD), SPECULATIVE: arm(SPECULATIVE, **fast)}


# ---- breaker --------------------------------------------------------------------------------------


def test_a_breaker_opens_after_failures_in_a_row_and_tries_one_request_later() -> None:
    now = [0.0]
    breaker = Breaker(2, 5.0, clock=lambda: now[0])
    breaker.fail()
    breaker.succeed()
    breaker.fail()
    assert breaker.state == "closed"

    breaker.fail()
    assert (breaker.state, breaker.passable) == ("open", False)
    now[0] = 5.0
    assert (breaker.state, breaker.passable) == ("half_open", True)
    breaker.enter()
    assert not breaker.passable

    breaker.fail()
    now[0] = 14.9
    assert breaker.state == "open"
    now[0] = 15.0
    breaker.enter()
    breaker.succeed()
    assert (breaker.state, breaker.passable) == ("closed", True)


def test_a_trial_that_shows_nothing_lets_the_next_one_try() -> None:
    now = [0.0]
    breaker = Breaker(1, 5.0, clock=lambda: now[0])
    breaker.fail()
    now[0] = 6.0
    breaker.enter()
    breaker.leave()

    assert breaker.passable


# ---- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_are_found_however_the_bytes_are_cut(end: bytes) -> None:
    lines = [b": keep-alive", b"", b"event: x", b'data: {"a":1}', b"", b"data: b", b"data:c", b""]
    whole = end.join(lines) + end
    for size in range(1, len(whole) + 1):
        reader = EventReader()
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        assert [event for piece in pieces for event in reader.feed(piece)] == [b'{"a":1}', b"b\nc"]


def test_an_event_without_an_end_is_given_up() -> None:
    reader = EventReader()
    with pytest.raises(TooLong):
        list(reader.feed(b"data: " + b"x" * MAX_EVENT_BYTES))


# ---- answers --------------------------------------------------------------------------------------


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"choices": choices, **more})


def choice(text: str, index: int = 0, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text, **delta}, "finish_reason": reason}


def test_the_usage_of_an_answer_is_the_servers_and_comes_with_the_last_chunks() -> None:
    answer = Answer(ChatRequest("twin", n=2), "there")

    chunks = answer.read(event(choice("Hello "), choice("a", 1)))
    chunks += answer.read(event(choice("there", 0, "stop"), choice("", 1, "length")))
    answer.read(event(usage={"prompt_tokens": 9, "completion_tokens": 12}))

    assert [(c.index, c.text, c.finish_reason) for c in chunks] == [
        (0, "Hello ", None),
        (1, "a", None),
        (0, "there", None),
    ]
    first, second = answer.endings()
    assert (first.finish_reason, second.finish_reason) == (FinishReason.STOP, FinishReason.LENGTH)
    assert (first.usage and first.usage.prompt_tokens) == 9
    assert sum(c.usage.completion_tokens for c in (first, second) if c.usage) == 12


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"[]",
        event(choice("", 5)),
        event(choice("", 0, "abort")),
        event({"index": "x"}),
        msgspec.json.encode({"choices": [3]}),
        msgspec.json.encode({"choices": [], "usage": {"prompt_tokens": "many"}}),
        msgspec.json.encode({"error": {"message": "out of memory"}}),
    ],
)
def test_what_is_no_answer_is_an_error_of_the_backend(data: bytes) -> None:
    with pytest.raises(BackendFailed) as caught:
        Answer(ChatRequest("twin"), "there").read(data)

    assert "there" in caught.value.detail
    assert "there" not in caught.value.message


def test_an_answer_that_stops_without_an_end_is_an_error() -> None:
    answer = Answer(ChatRequest("twin"), "there")
    answer.read(event(choice("Hello")))

    with pytest.raises(BackendFailed):
        answer.endings()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {
                "metrics": {
                    "speculative_decoding": {
                        "num_spec_steps": 3,
                        "num_draft_tokens": 9,
                        "num_accepted_draft_tokens": 4,
                    }
                }
            },
            Drafted(3, 9, 4),
        ),
        ({"timings": {"predicted_n": 5, "draft_n": 8, "draft_n_accepted": 2}}, Drafted(0, 8, 2)),
        ({"timings": {"predicted_n": 5, "draft_n": 0}}, Drafted(0, 0, 0)),
        ({"timings": {"predicted_n": 5}}, None),
        ({"metrics": {"speculative_decoding": {"num_draft_tokens": "x"}}}, None),
        ({"metrics": None}, None),
    ],
)
def test_what_a_server_counted_for_the_request_is_read(
    more: dict[str, Any], expected: Drafted | None
) -> None:
    answer = Answer(ChatRequest("twin"), "there")
    answer.read(event(**more))

    assert answer.drafted == expected


def test_calls_come_as_calls_and_where_one_must_come_as_its_text() -> None:
    start = {"index": 0, "id": "x", "function": {"name": "find", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    second = {"index": 1, "function": {"name": "find", "arguments": "{}"}}
    events = [event(choice("", tool_calls=[start])), event(choice("", tool_calls=[rest, second]))]

    free = Answer(ChatRequest("twin", may_call=True), "there")
    pieces = [piece for data in events for chunk in free.read(data) for piece in chunk.calls]
    assert [(p.index, p.name, p.arguments) for p in pieces] == [
        (0, "find", ""),
        (0, None, '{"a": 1}'),
        (1, "find", ""),
        (1, None, "{}"),
    ]

    must = Answer(ChatRequest("twin", called=("find",)), "there")
    text = "".join(chunk.text for data in events for chunk in must.read(data))
    must.read(event(choice("", 0, "stop")))
    (end,) = must.endings()
    assert text + end.text == '{"name": "find", "arguments": {"a": 1}}'
    assert end.finish_reason is FinishReason.TOOL_CALLS


def call(index: int, name: str | None, arguments: str = "{}") -> dict[str, Any]:
    return {"index": index, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (call(1, "find"), ()),
        (call(-1, "find"), ()),
        (call(0, None), ()),
        (call(0, "other"), ("find",)),
    ],
)
def test_calls_that_are_none_are_an_error_of_the_backend(
    given: dict[str, Any], called: tuple[str, ...]
) -> None:
    answer = Answer(ChatRequest("twin", may_call=True, called=called), "there")

    with pytest.raises(BackendFailed):
        answer.read(event(choice("", tool_calls=[given])))


@pytest.mark.parametrize(("called", "reason"), [(("find",), "stop"), ((), "tool_calls")])
def test_an_answer_that_ends_with_a_call_has_one(called: tuple[str, ...], reason: str) -> None:
    answer = Answer(ChatRequest("twin", may_call=True, called=called), "there")
    answer.read(event(choice("I would rather talk.", 0, reason)))

    with pytest.raises(BackendFailed):
        answer.endings()


def test_a_name_that_is_said_again_begins_no_other_call() -> None:
    answer = Answer(ChatRequest("twin", may_call=True), "there")
    chunks = [
        chunk
        for _ in range(2)
        for chunk in answer.read(event(choice("", tool_calls=[call(0, "find", "1")])))
    ]

    assert [piece.name for chunk in chunks for piece in chunk.calls] == ["find", None, None]


def test_logprobs_of_both_endpoints_are_read() -> None:
    token = {"token": "é", "logprob": -0.25, "bytes": [195, 169]}
    logprobs = {"content": [{**token, "top_logprobs": [token]}]}
    chat = Answer(ChatRequest("twin"), "there")
    (chunk,) = chat.read(event({**choice("é"), "logprobs": logprobs}))
    assert chunk.logprobs is not None
    assert (chunk.logprobs[0].num_characters, chunk.logprobs[0].top[0].logprob) == (1, -0.25)

    old = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -2.0}]}
    plain = Answer(ChatRequest("twin", prompt="x"), "there")
    (chunk,) = plain.read(event({"index": 0, "text": "a", "logprobs": old, "finish_reason": None}))
    assert chunk.logprobs is not None
    assert [top.token for top in chunk.logprobs[0].top] == ["a", "b"]


# ---- bodies ---------------------------------------------------------------------------------------


def test_unknown_fields_keep_their_bytes_and_the_rest_is_as_decided() -> None:
    body = b'{"model":"twin","x_new":{"a":1.50},"temperature":1.9,"stream":false,"max_tokens":99}'
    work = job(request=ChatRequest("twin", (Message("user", "Hi"),), body=body))
    limited = msgspec.structs.replace(work.sampling, temperature=0.5, max_tokens=3)

    raw = body_of(work, "served", frozenset({"seed"}), sampling=limited)

    assert b'"x_new":{"a":1.50}' in raw
    fields = msgspec.json.decode(raw)
    assert (fields["model"], fields["stream"], fields["temperature"]) == ("served", True, 0.5)
    assert (fields["max_tokens"], fields["seed"]) == (3, 5)
    assert fields["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "field",
    [
        "speculative.n_max",
        "speculative",
        "Speculative_config",
        "spec_k",
        "draft_model",
        "disable_spec_decode",
        "vllm_xargs",
        "custom_logit_processor",
        "input_ids",
        "prompt",
        "rid",
        "request_id",
        "priority",
        "data_parallel_rank",
    ],
)
def test_a_client_cannot_tell_a_server_how_to_decode_or_what_nobody_has_judged(field: str) -> None:
    body = msgspec.json.encode({"model": "twin", field: 1})

    assert field not in sent(job(request=ChatRequest("twin", (Message("user", "Hi"),), body=body)))


def test_messages_go_on_as_they_were_judged() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a","content":"b","secret":"c"}]}'
    request = ChatRequest("twin", (Message("user", "b"),), body=body)

    assert sent(job(request=request))["messages"] == [{"role": "user", "content": "b"}]


def past_call(arguments: str) -> ChatRequest:
    turn = Message("assistant", tool_calls=(ToolCall("f", arguments, "c1"),))
    return ChatRequest("twin", (Message("user", "Hi"), turn))


def test_past_arguments_go_on_as_they_were_judged() -> None:
    """Nothing is left behind escapes, nor in a key that comes twice."""
    given = '{"d\\u006fse": 1, "d\\u006fse": ["\\u0061sk", 12345678901234567890123, "\\"\\n"]}'
    request = past_call(given)
    (call,) = sent(job(request=request))["messages"][1]["tool_calls"]

    assert call["function"]["arguments"] == ('{"dose": ["ask", 12345678901234567890123, "\\"\\n"]}')
    assert {"dose", "ask"} <= set(request.messages[1].text.split("\n"))
    (call,) = sent(job(request=past_call("")))["messages"][1]["tool_calls"]
    assert call["function"]["arguments"] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        '["d\\u006fse"]',
        '"d\\u006fse"',
        '{"x": NaN, "y": "d\\u006fse"}',
        '{"x": "\\ud800", "y": "d\\u006fse"}',
        '{"x": ' + "[" * 70 + '"d\\u006fse"' + "]" * 70 + "}",
        '{"d\\u006fse": ' + "9" * 5000 + "}",
        '{"y": "d\\u006fse", "y": NaN}',
    ],
    ids=["list", "text", "no number", "half a character", "deep", "long number", "twice"],
)
async def test_past_arguments_of_any_kind_are_judged_and_no_server_is_sent_but_an_object(
    arguments: str,
) -> None:
    request = past_call(arguments)
    backend = OpenAIBackend(model="twin", arms=Arms(ArmSettings(("http://127.0.0.1:9",))))
    try:
        with pytest.raises(InvalidRequest) as refused:
            await backend.prepare(request)
    finally:
        await backend.aclose()

    assert refused.value.param == "messages[1].tool_calls[0].function.arguments"
    assert "dose" in request.messages[1].text.split("\n")


def test_servers_defaults_of_their_own_are_overruled_where_they_know_the_parameter() -> None:
    plain, known = sent(job()), sent(job(), frozenset({"top_k", "min_p", "repetition_penalty"}))

    assert not {"top_k", "min_p", "repetition_penalty", "seed"} & set(sent(job(), frozenset()))
    assert "top_k" not in plain
    assert (known["top_k"], known["min_p"], known["repetition_penalty"]) == (-1, 0.0, 1.0)


def test_max_completion_tokens_keeps_its_name() -> None:
    body = b'{"model":"twin","max_completion_tokens":50}'
    fields = sent(job(request=ChatRequest("twin", body=body), max_tokens=20))

    assert fields["max_completion_tokens"] == 20
    assert "max_tokens" not in fields


def test_the_beginning_of_an_answer_is_continued() -> None:
    chat = sent(job(), prefix="So ")
    plain = sent(job(request=ChatRequest("twin", prompt="Once ")), prefix="upon ")

    assert chat["messages"][-1] == {"role": "assistant", "content": "So "}
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert plain["prompt"] == "Once upon "


def test_tools_go_on_as_they_were_judged() -> None:
    request = ChatRequest("twin", tools=(Tool("find", "Finds.", '{"type":"object"}'),))

    (tool,) = sent(job(request=request))["tools"]
    assert tool["function"] == {
        "name": "find",
        "description": "Finds.",
        "parameters": {"type": "object"},
    }


def test_no_credential_of_the_client_goes_on() -> None:
    request = ChatRequest("twin", headers={"traceparent": "00-a-b-01", "x-other": "y"})

    headers = headers_of(job(request=request), "key")
    assert headers["authorization"] == "Bearer key"
    assert headers["traceparent"] == "00-a-b-01"
    assert "x-other" not in headers


def test_ids_of_attempts_follow_the_decision_and_not_the_client() -> None:
    ids = attempt_ids(msgspec.structs.replace(job(), decision_id="dec_1"))

    assert [next(ids), next(ids)] == ["dec_1-1", "dec_1-2"]
    assert next(attempt_ids(job())) != next(attempt_ids(job()))


# ---- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "again", "blame"),
    [
        (400, b'{"error": {"message": "bad", "param": "n"}}', InvalidRequest, False, False),
        (
            400,
            b'{"message": "maximum context length is 8"}',
            ContextLengthExceeded,
            False,
            False,
        ),
        (401, b"{}", BackendFailed, True, True),
        (404, b"no such model", BackendFailed, True, True),
        (429, b"", QueueFull, True, False),
        (500, b"\xff", BackendFailed, True, True),
        (503, b"[]", ArmUnavailable, True, True),
        (307, b"", BackendFailed, True, True),
        (405, b"", BackendFailed, True, True),
        (422, b'{"detail": "bad"}', InvalidRequest, False, False),
    ],
)
def test_what_a_server_answers_becomes_an_error_of_ours(
    status: int, body: bytes, kind: type[Exception], again: bool, blame: bool
) -> None:
    failed = of_answer(status, body, {"retry-after": "7"}, "http://inside:1")

    assert type(failed.error) is kind
    assert (failed.again, failed.blame) == (again, blame)
    assert "inside" not in failed.error.message
    assert failed.error.retry_after == (7 if kind in (QueueFull, ArmUnavailable) else None)
    assert failed.by_request is (status == 500)


# ---- plans ----------------------------------------------------------------------------------------


def test_a_standard_decision_is_planned_nowhere_else() -> None:
    arms = {STANDARD: arm(STANDARD, up=False), SPECULATIVE: arm(SPECULATIVE)}

    assert plan(job(), arms).mode is Mode.STANDARD


@pytest.mark.parametrize(
    ("arms", "knobs", "fallback"),
    [
        (twins(), {}, None),
        (twins(up=False), {}, "arm_down"),
        ({STANDARD: arm(STANDARD)}, {}, "no_arm"),
        (twins(kind="unknown"), {"min_p": 0.1}, "unsupported"),
    ],
)
def test_a_speculative_decision_goes_to_the_safer_arm_where_it_must(
    arms: dict[str, Arm], knobs: dict[str, Any], fallback: str | None
) -> None:
    chosen = plan(job(Mode.SPECULATIVE, **knobs), arms)

    assert chosen.fallback == fallback
    assert chosen.mode is (Mode.SPECULATIVE if fallback is None else Mode.STANDARD)


def test_what_no_arm_honours_is_refused_by_name() -> None:
    arms = {STANDARD: arm(STANDARD, kind="unknown")}
    grammar = Grammar("regex", "a+", "guided_regex")
    with pytest.raises(UnsupportedParameter) as caught:
        plan(job(min_p=0.1), arms)
    assert caught.value.param == "min_p"
    with pytest.raises(UnsupportedParameter):
        plan(job(request=ChatRequest("twin", grammar=grammar)), arms)


def test_what_probing_has_seen_counts_more_than_what_is_documented() -> None:
    seen = arm(STANDARD)
    seen.probed = {"min_p": False, "logit_bias": True}
    declared = arm(STANDARD, declared=["min_p"])
    declared.probed = {"min_p": False}

    assert "min_p" not in seen.honours
    assert "min_p" in declared.honours


@pytest.mark.parametrize(
    ("changes", "knobs", "expected"),
    [
        ({}, {}, Mode.HYBRID),
        ({"content_tokens": Mode.STANDARD}, {}, Mode.STANDARD),
        ({"max_entropy": 1.0}, {}, Mode.STANDARD),
        ({}, {"stop": ("x",)}, Mode.STANDARD),
        ({}, {"frequency_penalty": 0.5}, Mode.STANDARD),
        ({"hybrid_fallback": Mode.SPECULATIVE}, {"stop": ("x",)}, Mode.SPECULATIVE),
        (
            {"hybrid_fallback": Mode.SPECULATIVE, "bans": {"speculative": "b"}},
            {"stop": ("x",)},
            Mode.STANDARD,
        ),
    ],
)
def test_a_hybrid_answer_is_continued_only_where_that_changes_nothing(
    changes: dict[str, Any], knobs: dict[str, Any], expected: Mode
) -> None:
    work = job(Mode.HYBRID, **knobs)
    work = msgspec.structs.replace(work, decision=msgspec.structs.replace(work.decision, **changes))

    chosen = plan(work, twins())

    assert chosen.mode is expected
    assert chosen.fallback == (None if expected is Mode.HYBRID else "no_continuation")


@pytest.mark.parametrize("deaf", [STANDARD, SPECULATIVE])
def test_a_hybrid_chat_needs_both_arms_to_continue_it(deaf: str) -> None:
    arms = twins()
    arms[deaf].probed = {"continuation": False}

    assert plan(job(Mode.HYBRID), arms).fallback == "no_continuation"
    assert plan(job(Mode.HYBRID, ChatRequest("twin", prompt="Once ")), arms).fallback is None


def test_a_banned_mode_is_no_fallback() -> None:
    chosen = decision(
        Mode.HYBRID, hybrid_fallback=Mode.SPECULATIVE, bans={"speculative": "medical"}
    )

    assert hybrid_fallback(chosen) is Mode.STANDARD


# ---- arms -----------------------------------------------------------------------------------------


def test_the_least_loaded_replica_answers_and_equal_ones_take_turns() -> None:
    fleet = arm(STANDARD, replicas=3)
    fleet.replicas[0].running = 1

    chosen = [fleet.choose((), lambda: b"") for _ in range(4)]

    assert set(chosen) == set(fleet.replicas[1:])
    assert fleet.choose(fleet.replicas, lambda: b"") is None


def test_a_prompt_stays_at_its_replica_until_that_has_too_much_to_do() -> None:
    fleet = arm(STANDARD, replicas=4, balance="prefix")
    home = fleet.choose((), lambda: b"system prompt")
    assert home is not None
    assert all(fleet.choose((), lambda: b"system prompt") is home for _ in range(5))
    others = {fleet.choose((), lambda i=i: f"prompt {i}".encode()) for i in range(40)}
    assert others == set(fleet.replicas)

    home.running = 3
    assert fleet.choose((), lambda: b"system prompt") is not home


def test_only_the_standard_arm_must_not_speculate() -> None:
    busy = Finding(up=True, kind="vllm", drafted=3.0)
    for name, usable in ((STANDARD, False), (SPECULATIVE, True)):
        fleet = arm(name)
        fleet.replicas[0].finding = busy
        assert fleet.usable is usable


def test_a_url_with_and_without_the_version_is_the_same_place() -> None:
    assert Place.of("http://a:1/x/v1/") == Place.of("http://a:1/x")
    assert Place.of("http://a:1").api == "http://a:1/v1"


@pytest.mark.parametrize(
    "options",
    [
        {"standard": {"urls": []}},
        {"standard": {"urls": ["ftp://a"]}},
        {"speculative": {"urls": ["http://a"]}},
        {"standard": {"urls": ["http://a"]}, "speculative": {"urls": ["http://a"]}},
        {"standard": {"urls": ["http://a", "http://a"]}},
        {"standard": {"urls": ["http://a"], "honours": ["wishes"]}},
        {"standard": {"urls": ["http://a"], "key": "x"}},
        {"standard": {"urls": ["http://a"]}, "fast": {"urls": ["http://b"]}},
    ],
)
def test_arms_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, Arms)


def test_arms_that_do_are_read() -> None:
    arms = msgspec.convert({"standard": {"urls": ["https://a/v1"], "honours": ["min_p"]}}, Arms)

    assert arms == Arms(ArmSettings(("https://a/v1",), honours=("min_p",)))


def test_every_option_is_on_the_page_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "upstreams.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page, re.MULTILINE))
    taken = set(inspect.signature(OpenAIBackend).parameters) - {"name", "arms", "pace"}

    assert taken <= set(rows)
    assert {f"arms.{name}" for name in Arms.__struct_fields__} <= set(rows)
    for field in msgspec.structs.fields(Pace):
        assert rows[f"pace.{field.name}"] == f"`{field.default}`"
