"""What masks find, what they leave, and that nothing is stored where one fails."""

import json
import random
from collections.abc import Mapping

import msgspec
import pytest

from gateway import extensions
from gateway.errors import ConfigError
from gateway.excerpt import MaskFailed, of_body, of_texts
from gateway.masking import BUILT_IN, Masked, PatternMasker, is_card, is_iban


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("to ann.o'neil+x@mail.example.co.uk, now", "to [email], now"),
        ("jürgen@müller.example", "[email]"),
        ("card 4111 1111 1111 1111 12/27", "card [card] 12/27"),
        ("4111-1111-1111-1111 and 378282246310005", "[card] and [card]"),
        ("pay DE89 3704 0044 0532 0130 00 NOW", "pay [iban] NOW"),
        ("gb82west12345698765432.", "[iban]."),
        ("+49 (0)89 123456-78 or (212) 555-0199", "[phone] or [phone]"),
        ("089/1234567, 010-1234-5678", "[phone], [phone]"),
        ("at 192.168.0.1, 2001:db8::1. and fe80::1", "at [ip], [ip]. and [ip]"),
        ("ssn 123-45-6789", "ssn [ssn]"),
        ("key sk-abcdefghijklmnop1234", "key [secret]"),
    ],
)
def test_what_has_a_form_is_found(text: str, masked: str) -> None:
    found = PatternMasker().mask(text)

    assert found.text == masked
    assert sum(found.counts.values()) == masked.count("[")


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # no card: the check digit is wrong
        "DE88 AAAA BBBB CCCC DDDD 00",
        "on 2026-01-31 at 12:30:45",
        "in 1999-2005, version 1.2.3",
        "std::vector<a::b> x = a[1];",
        "pi = 3.14159265358979",
        "666-12-3456 and 000-12-3456"[:11],
        "a @ b, c@d",
    ],
)
def test_what_only_looks_so_stays(text: str) -> None:
    assert PatternMasker().mask(text).text == text


def test_check_digits_are_checked() -> None:
    valid = "4539578763621486"
    assert is_card(valid)
    assert not any(is_card(valid[:-1] + str(d)) for d in range(10) if str(d) != valid[-1])
    assert is_iban("FR1420041010050500013M02606")
    assert not is_iban("FR1420041010050500013M02607")


def test_only_chosen_patterns_mask_and_own_ones_come_first() -> None:
    masker = PatternMasker(built_in=("email",), own={"ticket": r"TCK-[0-9]+"})

    assert masker.mask("TCK-77 ann@example.com 123-45-6789") == Masked(
        "[ticket] [email] 123-45-6789", {"ticket": 1, "email": 1}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"built_in": ["mail"]}, "unknown pattern 'mail'; known: secret"),
        ({"own": {"x": "(?=a)"}}, "the pattern 'x' is none that RE2 reads"),
        ({"colour": 1}, "no option colour"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_configuration(
    options: Mapping[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match="(?s)" + said.replace("(", "\\(")):
        extensions.build("maskers", "patterns", options)


def test_no_text_makes_a_built_in_pattern_raise() -> None:
    masker, draw = PatternMasker(), random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices("a1 .:-@+()/DE0f٣é\n\0😀", k=60))
        masker.mask(text)
    assert set(BUILT_IN) >= {"email", "phone", "iban", "card", "ip", "ssn"}


BODY = b'{"model": "m",  "messages": [{"role": "user", "content": "Hello"}], "seed": 12}'
MASKERS = [PatternMasker()]


def test_a_body_without_anything_to_mask_is_kept_byte_for_byte() -> None:
    assert of_body(BODY, MASKERS, 1000) == (BODY, {}, False)


def test_strings_are_masked_as_they_read_and_not_as_they_are_escaped() -> None:
    body = (
        b'{"messages": [{"content": "\\nann\\u0040example.com"}], "ann@b.example": 1, '
        b'"id": 4111111111111111}'
    )

    text, masked, truncated = of_body(body, MASKERS, 1000)

    assert json.loads(text) == {
        "messages": [{"content": "\n[email]"}],
        "[email]": 1,
        "id": "[card]",
    }
    assert (masked, truncated) == ({"email": 2, "card": 1}, False)


def test_a_long_text_is_cut_after_it_was_masked() -> None:
    text, masked, truncated = of_texts(["x" * 90 + " ann@example.com " + "y" * 5000], MASKERS, 100)

    assert len(text) <= 100
    assert b"ann" not in text
    assert (masked["email"], truncated) == (1, True)
    assert of_texts(["ab", ""], MASKERS, 100) == (b'["ab",""]', {}, False)


def test_a_cut_never_splits_a_character() -> None:
    for size in range(1, 20):
        text, _, truncated = of_texts(["äöü🙂" * 4], [], size)
        text.decode()
        assert truncated


def test_a_mask_that_says_nothing_of_what_it_took_is_heeded_all_the_same() -> None:
    class Silent:
        def mask(self, text: str) -> Masked:
            return Masked(text.replace("Hello", "-"), {})

    assert b"Hello" not in of_body(BODY, [Silent()], 1000).text


class Broken:
    def mask(self, text: str) -> Masked:
        raise ValueError(text)


@pytest.mark.parametrize(
    ("body", "maskers"),
    [
        (BODY, [Broken()]),
        (b"{", MASKERS),
        (b"\xff", MASKERS),
        (b'{"prompt": [1, 2, 3]}', MASKERS),
        (b'{"prompt": [[1, 2], [3]]}', MASKERS),
    ],
)
def test_what_cannot_be_masked_is_not_given(body: bytes, maskers: list[object]) -> None:
    with pytest.raises(MaskFailed):
        of_body(body, maskers, 1000)  # type: ignore[arg-type]


def test_token_ids_are_kept_where_nothing_is_to_be_masked() -> None:
    body = msgspec.json.encode({"prompt": [1, 2, 3]})
    assert of_body(body, [], 1000).text == body
