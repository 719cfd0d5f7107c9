"""Echo, the best of several answers, and the tokens that end one, on a real engine over HTTP."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tokenizers import Tokenizer

from gateway.config import BackendConfig, GatewayConfig
from tests.live import LiveServer

PROMPTS = {"speculative": "a function, a function, a fun", "hybrid": "refund, refund, refund, re"}
EOS = 1


@pytest.fixture(scope="module")
def tiny(
    make_config: Callable[..., GatewayConfig],
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveServer]:
    options = {
        "model": str(tiny_model),
        "device": "cpu",
        "dtype": "float32",
        "num_slots": 4,
        "max_queue": 4,
        "cost_model": "off",
        "cache": str(tmp_path_factory.mktemp("cache")),
        "served_name": "tiny",
    }
    config = make_config()
    with LiveServer(
        msgspec.structs.replace(config, backends={"local": BackendConfig("local", options)})
    ) as live:
        yield live


@pytest.fixture
def client(tiny: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ids(tiny_model: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def letters(ids: Callable[[str], list[int]]) -> dict[str, float]:
    """A bias that leaves the small letters alone, so that a token is a character."""
    kept = set(ids(string.ascii_lowercase))
    return {str(token): -100.0 for token in range(258) if token not in kept}


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in ("stop_token_ids", "ignore_eos") if name in fields}
    given = {"max_tokens": 12, "seed": 3, **fields}
    return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **given)


# -- echo ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS.values())
def test_a_prompt_alone_can_be_scored(
    client: openai.OpenAI, ids: Callable[[str], list[int]], prompt: str
) -> None:
    answer = complete(client, prompt, echo=True, max_tokens=0, logprobs=2)
    choice, logprobs = answer.choices[0], answer.choices[0].logprobs

    assert (choice.text, choice.finish_reason) == (prompt, "length")
    assert logprobs.tokens == list(prompt)
    assert logprobs.text_offset == list(range(len(prompt)))
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    # By their text, so that two halves of a character count as one.
    assert all(1 <= len(top) <= 2 for top in logprobs.top_logprobs[1:])
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 0)
    for at in (1, 7, len(prompt) - 1):  # what the model says of that very token after its prefix
        (forced,) = ids(prompt[at])
        after = complete(
            client, prompt[:at], max_tokens=1, logprobs=0, logit_bias={str(forced): 100.0}
        )
        assert after.choices[0].text == prompt[at]
        expected = after.choices[0].logprobs.token_logprobs[0]
        assert logprobs.token_logprobs[at] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS.values())
@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_begins_with_the_prompt(
    client: openai.OpenAI, letters: dict[str, float], prompt: str, stream: bool
) -> None:
    asked: dict[str, Any] = {"n": 2, "logprobs": 1, "logit_bias": letters}
    plain = complete(client, prompt, **asked).choices
    echoed = complete(client, prompt, echo=True, stream=stream, **asked)
    texts, tokens, offsets = ["", ""], [[], []], [[], []]
    for part in echoed if stream else [echoed]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.tokens
                offsets[choice.index] += choice.logprobs.text_offset

    assert texts == [prompt + choice.text for choice in plain]
    assert ["".join(part) for part in tokens] == texts
    assert offsets == [list(range(len(text))) for text in texts]
    assert len(set(texts)) == 2


def test_a_prompt_of_token_ids_is_echoed_as_text(
    client: openai.OpenAI, ids: Callable[[str], list[int]]
) -> None:
    answer = complete(client, ids("héllo"), echo=True, max_tokens=0)

    assert answer.choices[0].text == "héllo"
    assert answer.choices[0].logprobs is None


# -- the best of several ---------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS.values())
def test_the_best_are_those_with_the_highest_logprob_per_token(
    client: openai.OpenAI, tiny: LiveServer, letters: dict[str, float], prompt: str
) -> None:
    asked: dict[str, Any] = {"logit_bias": letters, "ignore_eos": True, "temperature": 1.2}
    every = complete(client, prompt, n=5, logprobs=0, **asked).choices
    ranked = sorted(every, key=lambda choice: -sum(choice.logprobs.token_logprobs))

    best = complete(client, prompt, n=2, best_of=5, **asked)

    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert all(choice.logprobs is None for choice in best.choices)
    assert (best.usage.prompt_tokens, best.usage.completion_tokens) == (len(prompt), 5 * 12)
    entry = tiny.entry(best.id.removeprefix("cmpl-"))
    assert entry.outcome is not None
    assert entry.outcome.attestation == "ok"
    assert entry.outcome.execution.usage.completion_tokens == 5 * 12
    assert (entry.decision.request.n, entry.decision.request.best_of) == (2, 5)


def test_the_best_answer_may_be_echoed_with_its_logprobs(
    client: openai.OpenAI, letters: dict[str, float]
) -> None:
    answer = complete(client, "ab", best_of=3, echo=True, logprobs=1, logit_bias=letters)

    (choice,) = answer.choices
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.text.startswith("ab")
    assert choice.logprobs.token_logprobs[0] is None


def test_more_answers_than_there_is_room_for_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"'best_of' is 20.* room for 8 answers"):
        complete(client, "ab", best_of=20)


# -- the tokens that end an answer -----------------------------------------------------------------


@pytest.mark.parametrize("mode", PROMPTS)
@pytest.mark.parametrize("own_mode", [True, False])
def test_a_stop_token_ends_the_answer_where_it_comes_first(
    client: openai.OpenAI,
    letters: dict[str, float],
    ids: Callable[[str], list[int]],
    mode: str,
    own_mode: bool,
) -> None:
    asked: dict[str, Any] = {"logit_bias": letters, "temperature": 0, "max_tokens": 24}
    if not own_mode:
        asked["extra_headers"] = {"X-Draftgate-Mode": "standard"}
    whole = complete(client, PROMPTS[mode], **asked).choices[0].text
    last = whole[-1]

    answer = complete(client, PROMPTS[mode], stop_token_ids=ids(last + "é"), **asked)

    assert answer.choices[0].text == whole[: whole.index(last)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == whole.index(last) + 1


@pytest.mark.parametrize("mode", PROMPTS)
def test_an_end_of_sequence_can_be_ignored(client: openai.OpenAI, mode: str) -> None:
    asked: dict[str, Any] = {"logit_bias": {str(EOS): 100.0}, "logprobs": 0, "max_tokens": 5}
    ended = complete(client, PROMPTS[mode], **asked)
    ignored = complete(client, PROMPTS[mode], ignore_eos=True, **asked)
    stopped = complete(client, PROMPTS[mode], ignore_eos=True, stop_token_ids=[EOS], **asked)

    for answer in (ended, stopped):
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == 1
    assert (ignored.choices[0].text, ignored.choices[0].finish_reason) == ("", "length")
    assert ignored.usage.completion_tokens == 5
    assert len(ignored.choices[0].logprobs.tokens) == 5
    assert ignored.choices[0].logprobs.text_offset == [0] * 5


def test_the_chat_endpoint_knows_them_too(client: openai.OpenAI) -> None:
    def ask(**extra: Any) -> Any:
        return client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=4,
            logit_bias={str(EOS): 100},
            extra_body=extra,
        )

    assert ask().usage.completion_tokens == 1
    assert ask(ignore_eos=True).usage.completion_tokens == 4
    assert ask(ignore_eos=True, stop_token_ids=[EOS]).usage.completion_tokens == 1


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"best_of": 0}, "best_of", "integer_below_min_value"),
        ({"best_of": 21}, "best_of", "integer_above_max_value"),
        ({"best_of": "2"}, "best_of", "invalid_type"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "integer_below_min_value"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", "invalid_type"),
        ({"stop_token_ids": 7}, "stop_token_ids", "invalid_type"),
        ({"stop_token_ids": [7] * 65}, "stop_token_ids", "invalid_value"),
        ({"ignore_eos": "yes"}, "ignore_eos", "invalid_type"),
    ],
)
def test_a_bad_value_is_a_400_that_names_the_parameter(
    tiny: LiveServer, fields: dict[str, Any], param: str, code: str
) -> None:
    response = tiny.post({"model": "tiny", "prompt": "a", **fields}, "/v1/completions")

    error = response.json()["error"]
    assert response.status_code == 400
    assert (param, code) == (error["param"], error["code"]), error


def test_what_asks_for_nothing_more_passes(tiny: LiveServer) -> None:
    fields = {"best_of": 2, "n": 2, "echo": None, "ignore_eos": None, "stop_token_ids": []}
    body = {"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 2, **fields}

    assert tiny.post(body, "/v1/completions").status_code == 200


@pytest.mark.parametrize("fields", [{"echo": True}, {"best_of": 2}])
def test_a_conversation_has_no_echo_and_no_best(tiny: LiveServer, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hello"}]

    response = tiny.post({"model": "tiny", "messages": messages, **fields})

    assert response.json()["error"]["param"] in fields
    assert response.json()["error"]["code"] == "unsupported_parameter"
