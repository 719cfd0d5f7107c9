from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from gateway.classification import features

GOLDEN_LATIN = [89604, 286418, 414775, 480554, 621144, 810077, 1741673, 1799538, 2051397]
GOLDEN_IDEOGRAPHS = [135030, 301508, 442665, 847665, 2056313]


def test_buckets_are_the_same_on_every_machine() -> None:
    """Golden values: shipped weights are worthless if these change, so raise FEATURES_VERSION with them."""
    assert sorted(features.buckets("go on").tolist()) == GOLDEN_LATIN
    assert sorted(features.buckets("用药").tolist()) == GOLDEN_IDEOGRAPHS


def test_buckets_do_not_depend_on_the_hash_seed() -> None:
    code = "from gateway.classification.features import buckets; print(sum(buckets('naïve dose')))"
    sums = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(sums) == 1
    assert b"" not in sums


def test_character_and_word_buckets_do_not_meet() -> None:
    found = features.buckets("the daily dose")
    words = found[found >= features.CHARACTER_BUCKETS]

    assert len(words) == 5, "three words and two pairs"
    assert found.max() < features.NUM_BUCKETS
    assert found.min() >= 0


def test_character_ngrams_do_not_reach_across_words() -> None:
    apart = features.buckets("ab cd")
    turned = features.buckets("cd ab")

    characters = apart < features.CHARACTER_BUCKETS
    assert sorted(apart[characters]) == sorted(turned[turned < features.CHARACTER_BUCKETS])


@pytest.mark.parametrize("text", ["", " ", "\x00", "\u200b"])
def test_a_text_of_nothing_normalises_to_nothing(text: str) -> None:
    assert features.normalise(text) == ""


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("ＩＢＵＰＲＯＦＥＮ", "ibuprofen"),
        ("Straße", "strasse"),
        ("ibu\u200bpro\u00adfen", "ibuprofen"),
        ("a\x00\n\t b", "a b"),
        ("ﬁne", "fine"),
    ],
)
def test_case_width_and_invisible_characters_do_not_hide_a_word(text: str, folded: str) -> None:
    assert folded == features.normalise(text)


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 17, 18, 19, 100, 101])
def test_windows_cover_the_whole_text_and_overlap(length: int) -> None:
    text = "".join(chr(0x4E00 + at) for at in range(length))
    pieces = list(features.windows(text, 10, 7))

    assert set(text) == set("".join(pieces))
    assert all(len(piece) == min(10, length) for piece in pieces)
    assert all(
        text.index(after[0]) - text.index(before[0]) <= 7
        for before, after in itertools.pairwise(pieces)
    )


def test_a_lone_surrogate_is_a_character_like_any_other() -> None:
    assert not np.array_equal(features.buckets("a\ud800b"), features.buckets("a\ud801b"))
