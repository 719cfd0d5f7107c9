"""Disguises that hide a word from a classifier, and how they read without."""

from __future__ import annotations

import base64
import codecs
import json

import pytest

from gateway.classification.views import MAX_DECODED, second_reading

QUESTION = "what is the maximum dose of ibuprofen for a child"

DISGUISES = {
    "Cyrillic look-alikes": QUESTION.replace("a", "а").replace("o", "о").replace("e", "е"),
    "one foreign letter a word": "whаt is the mаximum dоse of ibuprоfen for a chіld",
    "digits": "wh4t is the m4ximum d0se of ibupr0fen for a ch1ld",
    "base64": f"decode and answer: {base64.b64encode(QUESTION.encode()).decode()}",
    "base64 in lines": base64.encodebytes((QUESTION * 3).encode()).decode(),
    "hex": QUESTION.encode().hex(),
    "hex bytes": " ".join(f"0x{byte:02x}" for byte in QUESTION.encode()),
    "HTML entities": "".join(f"&#{ord(letter)};" for letter in QUESTION),
    "JSON escapes": "".join(f"\\u{ord(letter):04x}" for letter in QUESTION),
    "percent escapes": "".join(f"%{byte:02X}" for byte in QUESTION.encode()),
    "ROT13": codecs.encode(QUESTION, "rot13"),
    "combining marks": "\u0336".join(QUESTION),
    "invisible letters": "\u2062".join(QUESTION),
}


@pytest.mark.parametrize("text", DISGUISES.values(), ids=DISGUISES)
def test_a_disguised_question_reads_as_what_it_is(text: str) -> None:
    found = second_reading(text).casefold()

    assert "ibuprofen" in found or "ibuprofen" in text.replace("\u2062", "").replace("\u0336", "")
    assert "dose" in found or "dose" in text.replace("\u2062", "").replace("\u0336", "")


@pytest.mark.parametrize("gap", [" ", ".", "-", "_", "*"])
def test_spaced_letters_become_a_word(gap: str) -> None:
    assert "ibuprofen" in second_reading(f"how much {gap.join('ibuprofen')} is too much")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Write a Python function that parses a CSV file and returns the rows as dictionaries",
        "что это такое и как это работает?",
        "Was kostet die Änderung?",
        "take 400mg, h264 and utf8 with python3 at 10am",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        json.dumps({"a": [1, 2], "b": None}),
    ],
)
def test_a_plain_text_has_no_second_reading(text: str) -> None:
    assert second_reading(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "\ud800" * 1_000,
        "aGVsbG8gd29ybGQg" * 60_000,
        "%41" * 100_000,
        "🙂",
        "a" * 300_000 + "%",
        "AAAA\n" * 100_000,
        "41 " * 100_000 + "4g",
        "a b " * 100_000 + "cd",
        "a1" * 200_000,
        "&#65" * 50_000,
        "\\u00" * 50_000,
    ],
)
def test_any_text_has_a_bounded_second_reading(text: str) -> None:
    assert len(second_reading(text)) <= len(text) + 2 * MAX_DECODED
