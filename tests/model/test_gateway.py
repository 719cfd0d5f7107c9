"""The whole product on the real model, over a real socket: what the README promises."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from gateway.config import AuditConfig, BackendConfig, GatewayConfig
from tests.live import LiveServer
from tests.sse import named

pytestmark = pytest.mark.model

MODEL = "SmolLM2-135M-Instruct"
CODE = (
    "Write a Python function that parses a CSV file and returns the rows as dictionaries, "
    "and a test for it."
)
MEDICAL = "What is the maximum daily dose of ibuprofen for an adult?"
SUPPORT = "My order arrived damaged and I want a refund, can you help me?"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    config = GatewayConfig(
        backends={
            "local": BackendConfig(
                "local", {"dtype": "float32", "device": "cpu", "max_length": 1024, "max_queue": 24}
            )
        },
        audit=AuditConfig(f"sqlite:///{folder / 'decisions.db'}"),
        classifier_timeout_seconds=30,
    )
    with LiveServer(config, seconds=120) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(text: str, **extra: object) -> dict[str, object]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "seed": 7}
    return {**body, "max_tokens": 60, "temperature": 0, **extra}


@pytest.mark.parametrize("text", [CODE, MEDICAL, SUPPORT], ids=["code", "medical", "support"])
def test_every_endpoint_says_the_same_streamed_or_not(live: LiveServer, text: str) -> None:
    """The three texts are decoded in the three modes."""
    shared = {"model": MODEL, "seed": 7, "temperature": 0}
    turns = [{"role": "user", "content": text}]
    chat = live.post({**shared, "messages": turns, "max_tokens": 16}).json()
    said = chat["choices"][0]["message"]["content"]

    response = {**shared, "input": text, "max_output_tokens": 16}
    message = {**shared, "messages": turns, "max_tokens": 16}
    whole = live.post(response, "/v1/responses").json()
    events = named(live.post({**response, "stream": True}, "/v1/responses").content)
    assert whole["output"][0]["content"][0]["text"] == said
    assert "".join(e["delta"] for e in events if "delta" in e) == said
    assert whole["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    whole = live.post(message, "/v1/messages").json()
    events = named(live.post({**message, "stream": True}, "/v1/messages").content)
    assert whole["content"] == [{"type": "text", "text": said}]
    assert "".join(e["delta"].get("text", "") for e in events if "delta" in e) == said


def test_tools_that_may_be_called_do_not_keep_the_model_from_answering(
    client: openai.OpenAI,
) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body = ask("What is the weather in Oslo?", tools=[tool], max_tokens=24)

    (whole,) = client.chat.completions.create(**body).choices
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**body, stream=True)]

    calls = whole.message.tool_calls or []
    assert whole.message.content or calls
    assert "".join(c.delta.content or "" for c in chunks) == (whole.message.content or "")
    assert chunks[-1].finish_reason == whole.finish_reason
    pieces = [piece.function for c in chunks for piece in c.delta.tool_calls or ()]
    assert [p.name for p in pieces if p.name] == [call.function.name for call in calls]
    assert "".join(p.arguments or "" for p in pieces) == "".join(
        call.function.arguments for call in calls
    )


@pytest.mark.parametrize(
    ("text", "mode", "rule"),
    [
        (CODE, "speculative", "code"),
        (MEDICAL, "standard", "medical"),
        (SUPPORT, "hybrid", "support"),
    ],
)
def test_each_question_is_decoded_as_the_policy_says_and_the_records_prove_it(
    live, client, text, mode, rule
):
    raw = client.chat.completions.with_raw_response.create(**ask(text))
    answer = raw.parse()
    entry = live.entry(raw.headers["x-draftgate-decision-id"])
    ran = entry.outcome.execution

    assert (raw.headers["x-draftgate-mode"], raw.headers["x-draftgate-rule"]) == (mode, rule)
    assert (entry.decision.decision.mode, entry.decision.decision.rule) == (mode, rule)
    assert ran.mode == mode
    assert entry.outcome.attestation == "ok"
    assert ran.usage.completion_tokens == answer.usage.completion_tokens > 10
    if mode == "standard":
        assert ran.num_draft_tokens == 0
    if mode == "speculative":
        assert ran.num_accepted_tokens > 0
        assert ran.num_steps < answer.usage.completion_tokens
    if mode == "hybrid" and ran.first_draft_position is not None:
        assert ran.first_draft_position >= 10


def test_the_same_seed_gives_the_same_text_in_the_safer_mode_too(client):
    fast = client.chat.completions.create(**ask(CODE, temperature=0.8))
    raw = client.chat.completions.with_raw_response.create(
        **ask(CODE, temperature=0.8), extra_headers={"X-Draftgate-Mode": "standard"}
    )

    assert raw.headers["x-draftgate-mode"] == "standard"
    assert raw.parse().choices[0].message.content == fast.choices[0].message.content
    assert raw.parse().usage == fast.usage


@pytest.mark.parametrize("text", [CODE, MEDICAL, SUPPORT])
def test_a_stream_is_the_same_answer_in_pieces(client, text):
    whole = client.chat.completions.create(**ask(text))
    chunks = list(
        client.chat.completions.create(
            **ask(text), stream=True, stream_options={"include_usage": True}
        )
    )

    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 5
    assert chunks[-1].usage == whole.usage
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}


def test_choices_have_seeds_of_their_own_and_the_first_is_the_single_answer(client):
    several = client.chat.completions.create(**ask(CODE, temperature=1.0, n=3, max_tokens=16))
    single = client.chat.completions.create(**ask(CODE, temperature=1.0, max_tokens=16))

    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == single.choices[0].message.content
    assert len(set(texts)) == 3
    assert several.usage.completion_tokens == 48


def test_logprobs_spell_the_answer(client):
    answer = client.chat.completions.create(
        **ask("Say hello in Korean: 안녕하세요", max_tokens=12), logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content

    spelled = b"".join(bytes(token.bytes) for token in content).decode(errors="replace")
    assert spelled == answer.choices[0].message.content
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.logprob - 1e-6  # greedy


def test_a_completion_takes_text_and_token_ids(live, client):
    text = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0
    )
    ids = live.post(
        {"model": MODEL, "prompt": [504, 3575, 282, 4649, 314], "max_tokens": 4, "temperature": 0},
        "/v1/completions",
    )

    assert "Paris" in text.choices[0].text
    assert ids.status_code == 200
    assert ids.headers["x-draftgate-mode"] == "standard"


def test_a_stop_string_ends_the_text_before_it(client):
    answer = client.chat.completions.create(**ask("Count: one, two, three, four", stop=["three"]))

    assert "three" not in answer.choices[0].message.content


def test_a_prompt_beyond_the_context_is_refused(live):
    response = live.post(ask("word " * 3000))

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.json()["error"]["param"] == "messages"


def test_bad_token_ids_are_refused_by_name(live):
    biased = live.post(ask("hi", logit_bias={"999999": 1}))
    prompt = live.post({"model": MODEL, "prompt": [999999]}, "/v1/completions")

    assert (biased.status_code, biased.json()["error"]["param"]) == (400, "logit_bias")
    assert (prompt.status_code, prompt.json()["error"]["param"]) == (400, "prompt")


def running(live: LiveServer) -> int:
    backends = live.get("/readyz").json()["backends"]
    return sum(backend["running"] + backend["queued"] for backend in backends.values())


def test_a_client_that_leaves_frees_its_row_at_once_and_is_recorded(live):
    place = urlsplit(live.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    body = ask("Tell a very long story about the sea.", stream=True, max_tokens=900)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    decision = response.headers["x-draftgate-decision-id"]
    for _ in range(20):
        response.readline()
    assert running(live) == 1

    response.close()
    connection.close()

    entry = live.entry(decision, seconds=10)
    assert entry.outcome.finish_reasons == ("cancelled",)
    assert 0 < entry.outcome.execution.usage.completion_tokens < 200
    assert entry.outcome.attestation == "ok"
    assert running(live) == 0


def test_thirty_two_requests_at_once_on_eight_slots_all_finish(live):
    def call(number: int) -> tuple[int, str]:
        response = live.post(ask(f"Name {number} animals.", max_tokens=8, temperature=0.5))
        return response.status_code, response.json()["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(call, range(32)))

    assert [status for status, _ in results] == [200] * 32
    assert {reason for _, reason in results} <= {"stop", "length"}
    assert running(live) == 0


def test_a_full_queue_answers_429_and_says_when_to_come_back(live):
    gate = threading.Barrier(45)
    responses: list[httpx.Response] = []

    def call() -> None:
        gate.wait()
        responses.append(live.post(ask("Write a poem.", max_tokens=24, stream=False)))

    threads = [threading.Thread(target=call) for _ in range(45)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    refused = [response for response in responses if response.status_code == 429]
    assert refused
    assert {response.status_code for response in responses} == {200, 429}
    for response in refused:
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
        decision = response.headers["x-draftgate-decision-id"]
        entry = live.entry(decision)
        assert entry.outcome.execution.num_steps == 0
        assert "queue_full" in entry.outcome.error
    assert running(live) == 0
