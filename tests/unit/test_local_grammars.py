"""Grammars of requests made ready, and how tools are put to a model; no model is loaded."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from decoders.grammar import GrammarCompiler
from gateway.backends.local import grammars
from gateway.backends.local.grammars import Grammars, described, shown
from gateway.errors import InvalidRequest, QueueFull, Unavailable, UnsupportedParameter
from gateway.types import ChatRequest, Grammar, Tool

END = 256


def loaded(eos_ids: frozenset[int] = frozenset({END})) -> Any:
    tokenizer = SimpleNamespace(
        eos_ids=eos_ids,
        vocabulary=lambda size: [bytes([i]) if i < END else b"" for i in range(size)],
    )
    return SimpleNamespace(tokenizer=tokenizer, model=SimpleNamespace(vocab_size=END + 1))


def takes(compiled: Any, text: str) -> bool:
    tokens = [*text.encode(), END]
    return bool(compiled.constraint().count_allowed(tokens) == len(tokens))


def request(kind: str, source: str) -> ChatRequest:
    return ChatRequest("m", grammar=Grammar(kind, source, "response_format"))


@pytest.mark.parametrize(
    ("kind", "source", "right", "wrong"),
    [
        ("json_object", '{"type":"object"}', '{"a": [1]}', "[1]"),
        ("json_schema", '{"type":"integer"}', "12", '"a"'),
        ("regex", "a{2}", "aa", "a"),
        ("choice", '["yes","no"]', "no", "maybe"),
        ("grammar", 'root ::= "a" | "b"', "b", "c"),
    ],
)
async def test_every_kind_is_made_ready(kind: str, source: str, right: str, wrong: str) -> None:
    ready = Grammars(loaded())

    compiled = await ready.compile(request(kind, source))
    ready.close()

    assert takes(compiled, right)
    assert not takes(compiled, wrong)


async def test_free_text_needs_nothing() -> None:
    ready = Grammars(loaded())

    assert await ready.compile(ChatRequest("m", tools=(Tool("f"),))) is None
    ready.close()


async def test_only_the_tools_that_may_be_called_are_looked_at() -> None:
    good, bad = Tool("good"), Tool("bad", parameters='{"type":"object","minProperties":1}')
    ready = Grammars(loaded())

    compiled = await ready.compile(ChatRequest("m", tools=(bad, good), called=("good",)))
    assert takes(compiled, '{"name": "good", "arguments": {}}')
    with pytest.raises(UnsupportedParameter) as caught:
        await ready.compile(ChatRequest("m", tools=(good, bad), called=("good", "bad")))
    ready.close()

    assert caught.value.param == "tools[1].function.parameters"
    assert "'minProperties'" in caught.value.message


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, the grammar ``slow`` does not get done."""
    event, compile_it = threading.Event(), GrammarCompiler.compile

    def slow(self: GrammarCompiler, grammar: Any) -> Any:
        if grammar.source == "slow":
            event.wait(10)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slow)
    yield event
    event.set()


async def test_a_grammar_that_takes_too_long_is_refused_and_one_behind_it_may_try_again(
    monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    ready = Grammars(loaded())
    await ready.compile(request("regex", "warm"))  # imports the library
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 0.5)

    sources = ["slow"] * grammars._THREADS + ["fast"]
    *slow, behind = await asyncio.gather(
        *(ready.compile(request("regex", source)) for source in sources), return_exceptions=True
    )
    release.set()
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 10)
    again = await ready.compile(request("regex", "fast"))
    ready.close()

    for error in slow:
        assert isinstance(error, InvalidRequest)
        assert "took longer" in error.message
        assert error.param == "response_format"
    assert isinstance(behind, QueueFull)
    assert behind.retry_after == 1
    assert takes(again, "fast")


async def test_one_slow_grammar_does_not_block_the_next(release: threading.Event) -> None:
    ready = Grammars(loaded())
    slow = asyncio.create_task(ready.compile(request("regex", "slow")))
    await asyncio.sleep(0)

    assert takes(await ready.compile(request("regex", "fast")), "fast")
    assert not slow.done()
    release.set()
    await slow
    ready.close()


async def test_after_the_end_grammars_are_unavailable(release: threading.Event) -> None:
    ready = Grammars(loaded())
    held = [
        asyncio.create_task(ready.compile(request("regex", "slow")))
        for _ in range(grammars._THREADS + 1)
    ]
    await asyncio.sleep(0)
    ready.close()

    with pytest.raises(Unavailable):
        await held[-1]
    with pytest.raises(Unavailable):
        await ready.compile(request("regex", "a"))
    release.set()
    await asyncio.gather(*held[:-1])


async def test_a_model_without_an_end_cannot_be_held_to_a_form() -> None:
    ready = Grammars(loaded(frozenset()))

    with pytest.raises(InvalidRequest, match="no token that ends"):
        await ready.compile(request("regex", "a"))
    ready.close()


def test_a_template_without_tools_reads_of_them_in_the_system_message() -> None:
    tool = Tool("f", "Does it.", '{"type":"object"}')
    user = {"role": "user", "content": "Hi."}

    alone = described([user], [tool], demanded=True)
    after = described([{"role": "system", "content": "Be brief."}, user], [tool], demanded=True)
    offered = described([user], [tool], demanded=False)

    assert [turn["role"] for turn in alone] == ["system", "user"]
    assert (
        '{"name":"f","description":"Does it.","parameters":{"type":"object"}}'
        in alone[0]["content"]
    )
    assert after[0]["content"] == "Be brief.\n\n" + alone[0]["content"]
    assert after[1:] == [user]
    # What is only offered is called as `gateway.backends.calls` reads calls.
    assert "<tool_call>" in offered[0]["content"]
    assert "<tool_call>" not in alone[0]["content"]


def test_a_template_with_tools_is_shown_them_as_openai_writes_them() -> None:
    assert shown(Tool("f", "Does it.", '{"type":"object"}')) == {
        "type": "function",
        "function": {"name": "f", "description": "Does it.", "parameters": {"type": "object"}},
    }
