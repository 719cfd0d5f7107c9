"""Nothing reaches the chat template that the classifiers have not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.requests import chat_request
from gateway.backends.local import LocalBackend
from gateway.errors import UnsupportedParameter
from gateway.types import ChatRequest
from tests.tiny import build_tiny_model

OURS = ("user", "assistant", "system", "tool", "function")
"""What the gateway itself puts into a message: the roles, and the type of a call."""
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "id", "type", "name", "arguments")
EVERY_FIELD = (
    "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}"
)

text = st.text(max_size=12) | st.sampled_from(["dose of ibuprofen", "Доза?", "{{ 7 * 7 }}", "\x00"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
arguments = text | st.dictionaries(text, anything, max_size=2).map(json.dumps)
function = st.fixed_dictionaries({}, optional={"name": text, "arguments": arguments, "x": anything})
call = st.fixed_dictionaries(
    {}, optional={"id": text, "type": anything, "function": function, "y": anything}
)
part = st.fixed_dictionaries({"type": st.just("text"), "text": text}) | st.fixed_dictionaries(
    {"type": st.just("refusal"), "refusal": text}, optional={"text": text}
)
strangers = dict.fromkeys(
    ("name", "reasoning_content", "thinking", "prefix", "audio", "annotations", "tools"), anything
)
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        "content": text | st.lists(part, max_size=3),
    },
    optional={
        "refusal": st.none() | text,
        "tool_calls": st.none() | st.lists(call, max_size=2),
        "tool_call_id": st.none() | text,
        "function_call": st.none() | function,
        **strangers,
    },
) | st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none()},
    optional={"refusal": text, "tool_calls": st.lists(call, max_size=2), "function_call": function},
)


class Template:
    """Stands before the model's tokenizer and remembers what its chat template was given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.takes_tools = tokenizer.takes_tools
        self.messages: list[Mapping[str, Any]] = []

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        self.messages = list(messages)
        return [1]


@pytest.fixture(scope="module")
def backend(tiny_model: Path) -> Iterator[LocalBackend]:
    made = LocalBackend(
        model=str(tiny_model), device="cpu", dtype="float32", num_slots=1, cost_model="off"
    )
    yield made
    asyncio.run(made.aclose())


@pytest.fixture(scope="module")
def template(backend: LocalBackend) -> Template:
    """In place of the tokenizer of the backend."""
    # Its own chat template would show only the fields that it happens to use.
    made = Template(backend._loaded.tokenizer)
    object.__setattr__(backend._loaded, "tokenizer", made)
    backend._shows_calls = True
    return made


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner)
            if name not in FIELDS:
                yield name
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)


def sent(message: dict[str, Any]) -> str:
    """The content of a message as the client sent it."""
    content = message["content"]
    if isinstance(content, list):
        return "\n".join(part[part["type"]] for part in content)
    return str(content if content is not None else message.get("refusal") or "")


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(message, min_size=1, max_size=3))
def test_every_text_in_the_template_is_text_that_was_judged(
    backend: LocalBackend, template: Template, messages: list[dict[str, Any]]
) -> None:
    request = chat_request({"model": "any", "messages": messages}).request

    asyncio.run(backend.prepare(request))

    judged = request.texts()
    for given_message, rendered, read in zip(messages, template.messages, judged, strict=True):
        role = "system" if given_message["role"] == "developer" else given_message["role"]
        assert rendered["role"] == role
        assert rendered["content"] == sent(given_message)
        for leaf in leaves(rendered):
            assert leaf in read or leaf in OURS
        assert set(rendered) <= {"role", "content", "tool_calls", "tool_call_id"}


def test_calls_and_their_answers_reach_the_template_once_and_as_they_were_sent(
    backend: LocalBackend, template: Template
) -> None:
    arguments = '{"what": "d\\u006fse"}'
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    older = {"name": "g", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call], "function_call": older},
        {"role": "tool", "tool_call_id": "c1", "content": "42", "name": "f"},
    ]
    request = chat_request({"model": "any", "messages": messages}).request

    asyncio.run(backend.prepare(request))

    read = {"name": "f", "arguments": {"what": "dose"}}
    assert template.messages == [
        {"role": "user", "content": "Hi."},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [
                {**call, "function": read},
                {"id": "", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    # What the model reads without its escape, the classifiers read without it as well.
    assert request.texts() == ("Hi.", f"Wait.\nf\n{arguments}\ndose\nc1\ng\n{{}}", "42\nc1")


async def test_a_template_that_renders_every_field_shows_no_unread_one(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(EVERY_FIELD)
    secret = "the dose for my child"
    hidden = dict.fromkeys(
        ("name", "reasoning_content", "thinking", "text", "tool_call_id"), secret
    )
    messages = [{"role": "user", "content": "Sort a list.", **hidden, "audio": {"id": secret}}]
    request = chat_request(json.loads(json.dumps({"model": "any", "messages": messages}))).request
    backend = LocalBackend(
        model=str(folder), device="cpu", dtype="float32", num_slots=1, cost_model="off"
    )

    prompt = await backend.prepare(request)
    rendered = backend._loaded.tokenizer.decode(prompt.payload)
    await backend.aclose()

    assert rendered == "role=user;content=Sort a list.;"
    assert secret not in "".join(request.texts())


HERMES = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
JOINED = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        (HERMES, '{"city":  "Kraków"}', '"arguments": {"city": "Kraków"}}'),
        (HERMES, "no JSON", '"arguments": "no JSON"}'),
        (HERMES, "[1]", '"arguments": "[1]"}'),
        (HERMES, '{"x": "\\ud800"}', '"arguments": "{\\"x\\": \\"\\\\ud800\\"}"}'),
        (HERMES, '{"x": 1e999}', '"arguments": "{\\"x\\": 1e999}"}'),
        (HERMES, '{"x": ' + "[" * 70 + "]" * 70 + "}", "[[[["),
        (JOINED, '{"city":  "Kraków"}', 'f({"city":  "Kraków"})'),
        (
            PLAIN,
            '{"city":  "Kraków"}',
            'Wait.\n<tool_call>{"name": "f", "arguments": {"city": "Kraków"}}</tool_call>',
        ),
        (PLAIN, "no", '<tool_call>{"name": "f", "arguments": no}</tool_call>'),
    ],
    ids=[
        *("object", "text", "list", "half a character", "infinity", "deep", "joined as text"),
        *("text alone", "text alone of no JSON"),
    ],
)
async def test_past_arguments_are_written_once(
    tmp_path: Path, template: str, arguments: str, expected: str
) -> None:
    """Templates write the object that they are; what is none stays the text that it was."""
    folder = build_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Wait.", "tool_calls": calls},
    ]
    request = chat_request({"model": "any", "messages": messages}).request
    backend = LocalBackend(
        model=str(folder), device="cpu", dtype="float32", num_slots=1, cost_model="off"
    )

    prompt = await backend.prepare(request)
    rendered = backend._loaded.tokenizer.decode(prompt.payload)
    await backend.aclose()

    assert expected in rendered


OTHER = "{% if tools %}<function=name>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"


async def test_tools_are_offered_in_the_templates_way_or_in_ours_but_not_by_guessing(
    tmp_path: Path, backend: LocalBackend, template: Template
) -> None:
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi."}], "tools": tools}
    request = chat_request(body).request
    folder = build_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(OTHER)
    other = LocalBackend(
        model=str(folder), device="cpu", dtype="float32", num_slots=1, cost_model="off"
    )

    await backend.prepare(request)
    with pytest.raises(UnsupportedParameter, match="'required'"):
        await other.prepare(request)
    await other.aclose()

    system, user = template.messages
    assert user["content"] == "Hi."
    assert "look_up" in system["content"]
    assert "<tool_call>" in system["content"]


def test_text_of_a_plain_message_is_its_content() -> None:
    messages = [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": None}]
    request: ChatRequest = chat_request({"model": "any", "messages": messages}).request

    assert request.texts() == ("a\nb", "")
