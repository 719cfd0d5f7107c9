"""One name for every set of wildcard patterns that a name can match."""

import fnmatch
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing import globs
from gateway.routing.globs import TooManyPatterns, witnesses


def matched(patterns: list[str], text: str) -> tuple[bool, ...]:
    return tuple(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text("ab*?", min_size=1, max_size=4)
        | st.sampled_from(("[ab]", "[!a]b", "[b", "a[a-c]*", "[]", "[!]", "[]a]", "[!]b", "a[]b")),
        min_size=1,
        max_size=3,
    )
)
def test_every_set_of_patterns_that_some_short_text_matches_has_a_witness(
    patterns: list[str],
) -> None:
    found = {matched(patterns, text) for text in witnesses(patterns)}
    short = (
        "".join(letters) for n in range(1, 6) for letters in itertools.product("abc[]", repeat=n)
    )

    assert found >= {matched(patterns, text) for text in short}
    assert len(found) == len(list(witnesses(patterns)))


@pytest.mark.parametrize(
    "pattern",
    ["my model", " ", "🦙-7b", "\U0010ffff", "\t", "m[]", "m[!]", "[ -~]", "[🦙-🦛]", "[]!]"],
)
def test_every_pattern_has_a_text_that_matches_it(pattern: str) -> None:
    assert (True,) in {matched([pattern], text) for text in witnesses([pattern])}


def test_a_pattern_that_cannot_match_without_another_gives_no_name_of_its_own() -> None:
    found = {matched(["llama-*", "llama-3*"], text) for text in witnesses(["llama-*", "llama-3*"])}

    assert found == {(False, False), (True, False), (True, True)}


def test_too_many_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globs, "MAX_STATES", 3)

    with pytest.raises(TooManyPatterns, match="2 wildcard patterns"):
        list(witnesses(["abc", "bcd"]))
