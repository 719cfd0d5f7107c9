"""Streamed text is the final text, cut nowhere inside a character or a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.detokenize import Detokenizer, StopStrings


def decode_bytes(token_ids):
    """A byte-level tokenizer: each id is one byte."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def stream(token_ids, decode=decode_bytes):
    detokenizer = Detokenizer(decode)
    return [detokenizer.push(token_id) for token_id in token_ids] + [detokenizer.flush()]


@given(st.text())
def test_text_in_any_script_comes_out_whole_and_never_half(text):
    pieces = stream(text.encode("utf-8", errors="ignore"))

    assert "".join(pieces) == text.encode("utf-8", errors="ignore").decode()
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.binary(max_size=60))
def test_invalid_bytes_give_exactly_what_decoding_all_of_them_gives(raw):
    assert "".join(stream(raw)) == decode_bytes(raw)


def test_garbage_costs_no_more_the_longer_it_gets():
    """The text looked at for each token stays short, whatever comes."""
    longest = 0

    def decode(token_ids):
        nonlocal longest
        longest = max(longest, len(token_ids))
        return decode_bytes(token_ids)

    garbage = [0xFF, 0xC3, 0xF0, 0x9F] * 500 + list("ende 😀".encode())
    pieces = stream(garbage, decode)

    assert "".join(pieces) == decode_bytes(garbage)
    assert longest < 50


def test_an_emoji_split_over_four_tokens_appears_at_the_fourth():
    assert stream("a😀b".encode()) == ["a", "", "", "", "😀", "b", ""]


def test_a_character_cut_by_the_end_is_flushed_as_it_will_be_decoded():
    assert stream("é".encode()[:1]) == ["", "\ufffd"]


def test_a_tokenizer_that_drops_the_first_space_keeps_the_others():
    words = {0: " a", 1: " b", 2: " c"}

    def decode(ids):
        return "".join(words[i] for i in ids).removeprefix(" ")

    assert stream([0, 1, 2], decode) == ["a", " b", " c", ""]


def feed(stop, pieces):
    strings = StopStrings(stop)
    shown = ""
    for piece in pieces:
        text, found = strings.push(piece)
        shown += text
        if found:
            return shown, True
    return shown + strings.flush(), False


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stop_string_is_found_wherever_the_pieces_split_it(cut):
    text = "one STOP two"
    pieces = [text[:cut], text[cut:]]

    assert feed(["STOP"], pieces) == ("one ", True)


def test_what_only_looks_like_a_stop_string_is_shown_in_the_end():
    assert feed(["STOP"], ["a ST", "OX", " ST"]) == ("a STOX ST", False)


def test_the_earliest_of_several_stop_strings_wins():
    assert feed(["two", "e t"], ["one two"]) == ("on", True)


def test_nothing_that_may_begin_a_stop_string_is_shown():
    strings = StopStrings(["\n\n"])

    assert strings.push("line\n") == ("line", False)
    assert strings.push("next") == ("\nnext", False)


def test_overlapping_beginnings_are_held_as_long_as_needed():
    assert feed(["aab"], list("aaab")) == ("a", True)
    assert feed(["aab"], list("aaac")) == ("aaac", False)


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_any_split_shows_the_text_up_to_the_first_stop_string(text, stop, data):
    pieces, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    # Stop strings are looked for as the text grows: the one that is complete first ends it.
    ends = [text.find(s) + len(s) for s in stop if s in text]
    shown, found = feed(stop, list(text))

    assert found == bool(ends)
    if not found:
        assert shown == text
        assert feed(stop, pieces) == (text, False)
