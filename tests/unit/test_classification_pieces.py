from __future__ import annotations

import pytest

from gateway.classification.pieces import MAX_WORD, UNKNOWN, Pieces

NAMES = ("<unk>", "▁", "▁ibu", "pro", "fen", "a", "▁a")
PIECES = Pieces(NAMES, (0.0, -3.0, -2.0, -2.0, -2.0, -2.5, -2.5))


def names(text: str) -> list[str]:
    return [NAMES[at] for at in PIECES.ids(text)]


def test_words_are_the_likeliest_pieces() -> None:
    assert names("ibuprofen a") == ["▁ibu", "pro", "fen", "▁a"]


def test_a_word_seen_before_has_the_same_pieces() -> None:
    assert PIECES.ids("ibuprofen") == PIECES.ids("ibuprofen")


@pytest.mark.parametrize("text", ["", " ", "   "])
def test_no_word_has_no_piece(text: str) -> None:
    assert PIECES.ids(text) == []


def test_what_no_piece_covers_is_unknown() -> None:
    assert UNKNOWN in PIECES.ids("ж")
    assert UNKNOWN in PIECES.ids("\ud800")


def test_a_long_word_is_cut_so_that_time_stays_linear() -> None:
    assert len(PIECES.ids("a" * (3 * MAX_WORD))) == 3 * MAX_WORD
