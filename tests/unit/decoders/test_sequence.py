"""A sequence ends exactly where token-by-token decoding would end it."""

import pytest

from decoders.params import FinishReason, SamplingParams
from decoders.sequence import TokenLogprob, TokenSequence
from decoders.testing import CharacterTokenizer

ALPHABET = "abcdefgh."
EOS = 8


def sequence(prompt="ab", max_length=64, **params):
    tokenizer = CharacterTokenizer(ALPHABET, eos_ids=[EOS])
    return TokenSequence(
        tokenizer.encode(prompt),
        SamplingParams(**params),
        decode=tokenizer.decode,
        eos_ids=tokenizer.eos_ids,
        max_length=max_length,
    )


def extend(row, text, logprobs=()):
    return row.extend([ALPHABET.index(c) for c in text], logprobs)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("params", "text", "reason", "kept"),
    [
        ({}, "abc.def", FinishReason.STOP, 4),
        ({"max_tokens": 3}, "abcdef", FinishReason.LENGTH, 3),
        ({"stop": ("cd",)}, "abcdefg", FinishReason.STOP, 4),
        ({"stop": ("cd",), "max_tokens": 3}, "abcdef", FinishReason.LENGTH, 3),
        ({"stop": ("cd",), "max_tokens": 4}, "abcdef", FinishReason.STOP, 4),
        ({"max_tokens": 3}, "ab.", FinishReason.STOP, 3),
        ({"stop": ("x",)}, "aabb.", FinishReason.STOP, 5),
        ({"stop_token_ids": (EOS,)}, "ab.cd", FinishReason.STOP, 3),
        ({"ignore_eos": True, "max_tokens": 5}, "ab.cdef", FinishReason.LENGTH, 5),
        ({"ignore_eos": True, "stop_token_ids": (EOS,)}, "ab.cd", FinishReason.STOP, 3),
        ({"ignore_eos": True, "stop": ("bc",)}, "ab.cd", FinishReason.STOP, 4),
    ],
)
def test_a_block_is_cut_where_single_tokens_would_stop(block, params, text, reason, kept):
    row = sequence(**params)
    shown = ""
    for start in range(0, len(text), block):
        piece, _ = extend(row, text[start : start + block])
        shown += piece.text
        if piece.finish_reason:
            break

    assert row.finish_reason == reason
    assert row.num_output_tokens == kept
    expected = text[:kept].replace(".", "")
    if reason == FinishReason.STOP and "stop" in params and params["stop"][0] in expected:
        expected = expected[: expected.index(params["stop"][0])]
    assert shown == expected


@pytest.mark.parametrize("block", [1, 3, 8])
@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        (("fg", "cd"), "abcdefg", "cd"),
        (("fg", "cde"), "abcdefg", "cde"),
        (("x",), "abc.", None),
        ((), "abc.", None),
    ],
)
def test_the_stop_string_that_ended_the_answer_is_known(block, stop, text, found):
    row = sequence(stop=stop)
    for start in range(0, len(text), block):
        if row.finish_reason is None:
            extend(row, text[start : start + block])

    assert row.finish_reason is FinishReason.STOP
    assert row.stop == found


def test_text_held_for_a_stop_string_is_shown_when_the_length_limit_comes():
    row = sequence(stop=("cdx",), max_tokens=4)

    pieces = [extend(row, c)[0].text for c in "abcd"]

    assert pieces == ["a", "b", "", "cd"]


def test_the_context_limits_the_answer():
    row = sequence("abc", max_length=5)

    piece, emitted = extend(row, "defg")

    assert (piece.finish_reason, emitted, piece.text) == (FinishReason.LENGTH, 2, "de")


def test_an_end_token_in_the_middle_leaves_nothing_behind_it():
    row = sequence()

    piece, emitted = extend(row, "a.bc")

    assert (piece.text, emitted, row.token_ids[-1]) == ("a", 2, EOS)


@pytest.mark.parametrize("block", [1, 2, 6])
def test_a_stop_token_ends_the_answer_and_has_no_text(block):
    row = sequence(stop_token_ids=(ALPHABET.index("c"), ALPHABET.index("e")))
    text, tokens = "", []
    for start in range(0, 6, block):
        part = "abdcfe"[start : start + block]
        piece, _ = extend(row, part, entries(part))
        text += piece.text
        tokens += [ALPHABET[entry.token_id] for entry in piece.logprobs]
        if piece.finish_reason:
            break

    assert (text, tokens, row.num_output_tokens) == ("abd", list("abd"), 4)
    assert row.finish_reason is FinishReason.STOP


def entries(text):
    return tuple(TokenLogprob(ALPHABET.index(c), -1.0) for c in text)


@pytest.mark.parametrize("block", [1, 2, 7])
def test_logprobs_cover_exactly_the_tokens_of_the_text(block):
    row = sequence(stop=("ef",))
    text, tokens = "", []
    for start in range(0, 7, block):
        part = "abcdefg"[start : start + block]
        piece, _ = extend(row, part, entries(part))
        text += piece.text
        tokens += [ALPHABET[entry.token_id] for entry in piece.logprobs]
        if piece.finish_reason:
            break

    assert text == "abcd"
    assert tokens == list("abcd")


def test_logprobs_wait_with_the_text_they_belong_to():
    row = sequence(stop=("cdx",))

    first, _ = extend(row, "abc", entries("abc"))
    second, _ = extend(row, "a", entries("a"))

    assert (first.text, len(first.logprobs)) == ("ab", 2)
    assert (second.text, len(second.logprobs)) == ("ca", 2)
