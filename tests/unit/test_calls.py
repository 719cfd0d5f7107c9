"""Calls of functions, told apart from text while they are being written."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.calls import CallFormat, CallReader, format_of

NAMES = ("weather", "time")
TAGGED, BARE = CallFormat.TAGGED, CallFormat.BARE
ONE = '{"name": "weather", "arguments": {"city": "Kraków", "note": "a \\" } ] b"}}'
TWO = '{"name": "time", "arguments": {"zone": {"of": [1, 2]}}}'
CASES = [
    (TAGGED, "Just text.", "Just text.", []),
    (TAGGED, "a < b and <tool", "a < b and <tool", []),
    (TAGGED, f"<tool_call>\n{ONE}\n</tool_call>", "", [ONE]),
    (TAGGED, f"Let me see.\n<tool_call>{ONE}</tool_call>", "Let me see.", [ONE]),
    (TAGGED, f"<tool_call>{ONE}</tool_call>\n<tool_call>{TWO}</tool_call>", "", [ONE, TWO]),
    (TAGGED, "<tool_call>soon</tool_call>", "<tool_call>soon</tool_call>", []),
    (TAGGED, '<tool_call>{"name": "rm"}</tool_call>', '<tool_call>{"name": "rm"}</tool_call>', []),
    (TAGGED, '<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
    (BARE, "Just text, {braces} too.", "Just text, {braces} too.", []),
    (BARE, ONE, "", [ONE]),
    (BARE, ONE.replace("arguments", "parameters"), "", [ONE]),
    (BARE, f"[TOOL_CALLS] [{ONE}, {TWO}]", "", [ONE, TWO]),
    (BARE, f"<|python_tag|>{ONE}; {TWO}", "", [ONE, TWO]),
    (BARE, '{"answer": {"name": "x"}}', '{"answer": {"name": "x"}}', []),
    (BARE, '{"name": "rm", "arguments": {}}', '{"name": "rm", "arguments": {}}', []),
    (BARE, "[1, 2, 3]", "[1, 2, 3]", []),
    (
        BARE,
        '{"parameters": {"a": 1}, "name": "time"}',
        "",
        ['{"name": "time", "arguments": {"a": 1}}'],
    ),
    (BARE, "", "", []),
]


def read(
    form: CallFormat, pieces: list[str], *, several: bool = True
) -> tuple[str, list[str], bool]:
    reader = CallReader(form, NAMES, several=several)
    text, names, arguments = "", [], []
    for number, piece in enumerate([*pieces, ""]):
        said, calls = reader.feed(piece, last=number == len(pieces))
        text += said
        for call in calls:
            if call.name is not None:
                assert call.index == len(names)
                names.append(call.name)
                arguments.append("")
            arguments[call.index] += call.arguments
    written = [
        f'{{"name": "{name}", "arguments": {given}}}'
        for name, given in zip(names, arguments, strict=True)
    ]
    return text, written, reader.complete


@pytest.mark.parametrize(("form", "answer", "text", "calls"), CASES)
def test_what_is_a_call_and_what_is_text(
    form: CallFormat, answer: str, text: str, calls: list[str]
) -> None:
    assert read(form, [answer]) == (text, calls, bool(calls))


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200), max_size=8))
def test_it_is_the_same_however_the_answer_is_cut(
    case: tuple[CallFormat, str, str, list[str]], cuts: list[int]
) -> None:
    form, answer, text, calls = case
    places = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    pieces = [answer[a:b] for a, b in itertools.pairwise(places)]

    assert read(form, pieces) == (text, calls, bool(calls))
    assert read(form, list(answer)) == (text, calls, bool(calls))


@pytest.mark.parametrize("form", CallFormat)
def test_arguments_are_passed_on_as_they_come(form: CallFormat) -> None:
    reader = CallReader(form, NAMES)
    start = "<tool_call>" if form is TAGGED else ""

    _, first = reader.feed(start + '{"name": "weather", "arguments": {"ci')
    _, then = reader.feed('ty": "K')

    assert [(piece.name, piece.arguments) for piece in first] == [("weather", ""), (None, '{"ci')]
    assert [(piece.name, piece.arguments) for piece in then] == [(None, 'ty": "K')]
    assert not reader.complete


def test_a_call_that_was_cut_short_is_not_complete() -> None:
    answer = '<tool_call>{"name": "weather", "arguments": {"city": '

    assert read(TAGGED, [answer]) == ("", ['{"name": "weather", "arguments": {"city": }'], False)


def test_only_the_first_call_is_kept_where_one_is_wanted() -> None:
    answer = f"<tool_call>{ONE}</tool_call><tool_call>{TWO}</tool_call>"

    assert read(TAGGED, [answer], several=False) == ("", [ONE], True)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ tools }} within <tool_call></tool_call> tags", TAGGED),
        ('Respond {"name": function name, "parameters": dictionary}', BARE),
        ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS] [TOOL_CALLS]", BARE),
        ("<tool_call><function=name><parameter=a>", None),
        ("[TOOL_CALLS]name[ARGS]{}", None),
        ("{{ messages }}", None),
    ],
)
def test_the_template_says_how_its_model_writes_calls(
    template: str, form: CallFormat | None
) -> None:
    assert format_of(template) is form
