"""Grammars of requests made ready, and how tools are put to a model; no model is loaded."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from decoders.grammar import GrammarCompiler
from gateway.backends.local import grammars
from gateway.backends.local.grammars import Grammars, described, shown
from gateway.errors import InvalidRequest, UnsupportedParameter
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


async def test_a_grammar_that_takes_too_long_is_refused_and_does_not_block_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release, compile_it = threading.Event(), GrammarCompiler.compile

    def slow(self: GrammarCompiler, grammar: Any) -> Any:
        if grammar.source == "slow":
            release.wait(10)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", slow)
    ready = Grammars(loaded())
    await ready.compile(request("regex", "warm"))  # imports the library
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 0.2)

    with pytest.raises(InvalidRequest, match="took longer") as caught:
        await ready.compile(request("regex", "slow"))
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 10)
    assert takes(await ready.compile(request("regex", "fast")), "fast")
    release.set()
    ready.close()

    assert caught.value.param == "response_format"


async def test_a_model_without_an_end_cannot_be_held_to_a_form() -> None:
    ready = Grammars(loaded(frozenset()))

    with pytest.raises(InvalidRequest, match="no token that ends"):
        await ready.compile(request("regex", "a"))
    ready.close()


def test_a_template_without_tools_reads_of_them_in_the_system_message() -> None:
    tool = Tool("f", "Does it.", '{"type":"object"}')
    user = {"role": "user", "content": "Hi."}

    alone = described([user], [tool])
    after = described([{"role": "system", "content": "Be brief."}, user], [tool])

    assert [turn["role"] for turn in alone] == ["system", "user"]
    assert (
        '{"name":"f","description":"Does it.","parameters":{"type":"object"}}'
        in alone[0]["content"]
    )
    assert after[0]["content"] == "Be brief.\n\n" + alone[0]["content"]
    assert after[1:] == [user]


def test_a_template_with_tools_is_shown_them_as_openai_writes_them() -> None:
    assert shown(Tool("f", "Does it.", '{"type":"object"}')) == {
        "type": "function",
        "function": {"name": "f", "description": "Does it.", "parameters": {"type": "object"}},
    }
