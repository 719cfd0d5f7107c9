"""The official client, as most people will meet the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=HELLO)

    assert answer.choices[0].message.content == "The answer is short."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 5


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "The answer is short."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_the_stream_helper_with_several_choices(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=HELLO, n=3) as stream:
        final = stream.get_final_completion()

    assert [choice.message.content for choice in final.choices] == ["The answer is short."] * 3


def test_the_headers_are_there_in_a_raw_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="scripted", messages=[{"role": "user", "content": "write a function"}]
    )

    assert raw.headers["x-draftgate-mode"] == "speculative"


def test_completions_and_models(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="scripted", prompt="hello")
    parts = list(client.completions.create(model="scripted", prompt="hello", stream=True))

    assert whole.choices[0].text == "The answer is short."
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts)
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"


def test_errors_are_the_exceptions_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="scripted", messages=HELLO, temperature=5)
    with pytest.raises(openai.PermissionDeniedError) as denied:
        client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "forbidden"}]
        )

    assert unknown.value.code == "model_not_found"
    assert (bad.value.param, bad.value.code) == ("temperature", "decimal_above_max_value")
    assert denied.value.code == "policy_denied"


def test_a_failure_midway_is_an_api_error(start: Callable[..., Any]) -> None:
    live = start({"fail_after": 2})
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIError, match="script says") as caught,
    ):
        list(client.chat.completions.create(model="scripted", messages=HELLO, stream=True))

    assert caught.value.code == "backend_failed"


async def test_many_at_once_with_the_async_client(server: Any) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

        async def one(stream: bool) -> str:
            if not stream:
                whole = await client.chat.completions.create(model="scripted", messages=HELLO)
                return whole.choices[0].message.content or ""
            chunks = await client.chat.completions.create(
                model="scripted", messages=HELLO, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        texts = await asyncio.gather(*(one(number % 2 == 0) for number in range(32)))

    assert {"The answer is short."} == set(texts)
