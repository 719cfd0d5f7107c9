import contextlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway import documents
from gateway.documents import Check
from gateway.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Limits(msgspec.Struct, frozen=True):
    tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5


class Square(msgspec.Struct, frozen=True, tag_field="shape", tag="square"):
    side: int


class Circle(msgspec.Struct, frozen=True, tag_field="shape", tag="circle"):
    radius: float


def _even(value: int) -> None:
    if value % 2:
        raise ValueError(f"{value} is odd", "use an even number")


def _upper(value: str) -> None:
    if not value.isupper():
        raise ValueError(f"{value!r} is not in capitals")


class Pair(msgspec.Struct, frozen=True):
    low: int = 0
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high", "swap them")


class Settings(msgspec.Struct, frozen=True):
    name: str
    colour: Colour = Colour.RED
    size: Literal["small", "large"] = "small"
    limits: Limits | None = None
    shapes: tuple[Square | Circle, ...] = ()
    named: dict[str, Limits] = {}
    words: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=2)] = ("a",)
    bound: int | Pair = 1
    even: Annotated[int, Check(_even)] | None = None
    folder: Path | None = None
    numbers: dict[Annotated[str, Check(_upper)], Annotated[int, Check(_even)]] = {}
    options: dict[str, Any] = {}
    reserved: bool = msgspec.field(name="is", default=False)


def convert(text: str) -> Settings:
    return documents.convert(documents.parse(text, "f.yaml"), Settings)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        convert(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_whole_document_becomes_structs() -> None:
    text = """
name: "x"
colour: blue
size: large
limits: {tokens: 3, share: 1}
shapes: [{shape: square, side: 2}, {shape: circle, radius: 1.5}]
named: {a: {tokens: 1}}
words: [p, q]
bound: {low: 1, high: 2}
even: 4
folder: some/where
options: {deep: [1, {x: 2.5}]}
is: true
"""
    expected = Settings(
        name="x",
        colour=Colour.BLUE,
        size="large",
        limits=Limits(3, 1.0),
        shapes=(Square(2), Circle(1.5)),
        named={"a": Limits(1)},
        words=("p", "q"),
        bound=Pair(1, 2),
        even=4,
        folder=Path("some/where"),
        options={"deep": [1, {"x": 2.5}]},
        reserved=True,
    )

    assert expected == convert(text)


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
colour: green
limits:
  tokens: 65
  tokns: 3
shapes: [{shape: squre}, {}, {shape: square}]
named: {a: 3, b: {share: 2.0}}
bound: {low: 3, high: 2}
even: 3
words: []
numbers: {A: 2, b: 2, C: 3}
"""

    assert problems(text) == [
        "f.yaml:1:1: missing field 'name' (add it)",
        "f.yaml:1:9: colour: unknown value 'green' (known: blue, red)",
        "f.yaml:3:11: limits.tokens: expected int <= 64, got 65",
        "f.yaml:4:3: limits: unknown field 'tokns' (did you mean 'tokens'?)",
        "f.yaml:5:18: shapes[0].shape: unknown value 'squre' (did you mean 'square'?)",
        "f.yaml:5:26: shapes[1]: missing field 'shape' (one of: circle, square)",
        "f.yaml:5:30: shapes[2]: missing field 'side' (add it)",
        "f.yaml:6:12: named.a: expected a mapping, got 3",
        "f.yaml:6:26: named.b.share: expected float <= 1.0, got 2.0",
        "f.yaml:7:8: bound: low is above high (swap them)",
        "f.yaml:8:7: even: 3 is odd (use an even number)",
        "f.yaml:9:8: words: expected at least 1 in it, got 0",
        "f.yaml:10:17: numbers: 'b' is not in capitals",
        "f.yaml:10:26: numbers.C: 3 is odd (use an even number)",
    ]


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert Limits() == documents.convert(documents.parse("", "f.yaml"), Limits)
    assert Limits() == documents.convert(documents.parse("# nothing\n", "f.yaml"), Limits)
    assert problems("") == ["f.yaml:1:1: missing field 'name' (add it)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b", "f.yaml:2:1: duplicate key 'name', first on line 1"),
        ("named: {a: {tokens: 1, tokens: 2}}", "f.yaml:1:24: duplicate key 'tokens'"),
        ("name: &x a", "f.yaml:1:7: anchor &x is not allowed"),
        ("name: *x", "f.yaml:1:7: alias *x is not allowed"),
        ("*x : 1", "f.yaml:1:1: alias *x is not allowed"),
        ("<<: {name: a}", "f.yaml:1:1: merge key << is not allowed"),
        ("name: !!python/object:os.system x", "f.yaml:1:7: tag tag:yaml.org,2002:python"),
        ("name: ! x", "f.yaml:1:7: tag ! is not allowed"),
        ("on: 1", "f.yaml:1:1: YAML reads the key 'on' as bool"),
        ("No: 1", "f.yaml:1:1: YAML reads the key 'No' as bool"),
        ("1: 1", "f.yaml:1:1: YAML reads the key '1' as int"),
        ("~: 1", "f.yaml:1:1: YAML reads the key '~' as null"),
        ("? [a]\n: 1", "f.yaml:1:3: a key must be text"),
        ("name: a\n---\nname: b", "f.yaml:2:1: expected a single document"),
        ("name: [a", "f.yaml:1:9: while parsing a flow sequence"),
        ("name: a\n\tx: 1", "f.yaml:2:1: while scanning"),
        ("name: a\n  x: 1", "f.yaml:2:4: mapping values are not allowed here"),
        ("name: \x00", "f.yaml:1:7: character U+0000 is not allowed"),
        ("a: b\nname: \x1b[0m", "f.yaml:2:7: character U+001B is not allowed"),
        ('name: "\\ud800"', "f.yaml:1:7: text with half of a surrogate pair"),
        ('name: "\\Uffffffff"', "f.yaml: an escape sequence or a directive"),
        ("[" * 50_000, "f.yaml:1:33: nested more than 32 levels deep"),
        ("x: " + "a" * (1 << 20), "f.yaml: too large"),
    ],
)
def test_what_yaml_allows_but_a_reviewed_file_must_not_have(text: str, expected: str) -> None:
    assert any(problem.startswith(expected) for problem in problems(text))


def test_traps_are_reported_together_with_what_is_wrong_beside_them() -> None:
    assert problems("name: a\nname: b\nwords: &x [p]\nsize: huge\nlimits: *x\n") == [
        "f.yaml:2:1: duplicate key 'name', first on line 1 (keep one of them)",
        "f.yaml:3:8: anchor &x is not allowed (remove it)",
        "f.yaml:4:7: size: unknown value 'huge' (known: large, small)",
        "f.yaml:5:9: alias *x is not allowed (repeat the value)",
    ]


def test_traps_in_one_file_are_all_named() -> None:
    assert len(problems("on: 1\nname: &a x\nname: *a\noff: !!str y")) == 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: no", 'name: expected text, got no (write "no")'),
        ("name: 12", 'name: expected text, got 12 (write "12")'),
        ("name: 2026-01-31", 'name: expected text, got 2026-01-31 (write "2026-01-31")'),
        ("name:", "name: expected text, got nothing (give a value or remove the key)"),
        ("name: 10:30", "name: YAML reads '10:30' as a base-60 number (put it in quotes"),
        ("name: 2026-99-99", "name: '2026-99-99' is no valid timestamp (put it in quotes"),
        ("name: =", "name: '=' is no valid value"),
        ("name: [a]", "name: expected text, got a list"),
        ("name: {a: b}", "name: expected text, got a mapping"),
        ("name: a\nlimits: {share: .nan}", "limits.share: '.nan' is not a finite number"),
        ("name: a\nlimits: {share: -.inf}", "limits.share: '-.inf' is not a finite number"),
        ("name: a\nlimits: {share: 1e-3}", "limits.share: expected float, got 1e-3 (a number nee"),
        ("name: a\nlimits: {tokens: true}", "limits.tokens: expected int, got true"),
        ("name: a\nlimits: {tokens: '3'}", "limits.tokens: expected int, got 3"),
        ("name: a\nlimits: {tokens: 3.5}", "limits.tokens: expected int, got 3.5"),
        (f"name: a\nlimits: {{tokens: {'9' * 5000}}}", "limits.tokens: '9999999999"),
        ("name: a\nlimits: 3", "limits: expected a mapping, got 3"),
        ("name: a\nlimits: []", "limits: expected a mapping, got a list"),
        ("name: a\nwords: b", "words: expected a list, got b (write [b])"),
        ("name: a\nwords: [a, b, c]", "words: expected at most 2 in it, got 3"),
        ("name: a\nbound: []", "bound: expected int or a mapping, got a list"),
        ("- name: a", "expected a mapping, got a list"),
        ("a", "expected a mapping, got a"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_how_to_fix_it(text: str, expected: str) -> None:
    message = problems(text)[0]

    assert message.partition(": ")[2].startswith(expected)


def test_text_in_quotes_is_taken_as_it_is() -> None:
    assert convert('name: "10:30"').name == "10:30"
    assert convert("name: 'no'").name == "no"
    assert convert('name: "药 💊 דוגמה"').name == "药 💊 דוגמה"


def test_a_problem_can_be_placed_at_a_key_a_value_or_the_nearest_ancestor() -> None:
    document = documents.parse("rules:\n  - id: a\n    when: {x: 1}\n", "f.yaml")

    assert str(document.problem("m", ("rules", 0, "when"))) == "f.yaml:3:11: m"
    assert str(document.problem("m", ("rules", 0, "when"), key=True)) == "f.yaml:3:5: m"
    assert str(document.problem("m", ("rules", 0, "nope", 3))) == "f.yaml:2:5: m"
    assert str(documents.parse("", "f.yaml").problem("m", ("x",))) == "f.yaml:1:1: m"


def test_keys_without_a_value_are_found() -> None:
    document = documents.parse("a:\nb: [~, 1]\nc: {d: }\n", "f.yaml")

    assert list(document.without_value()) == [("a",), ("b", 0), ("c", "d")]


def test_a_file_that_cannot_be_read_is_one_clear_problem(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: x\nnäme: y".encode("latin-1"))

    for path, expected in [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (latin, "latin.yaml:2:2: not UTF-8 text"),
    ]:
        with pytest.raises(ConfigError) as caught:
            documents.load(path, Settings)
        assert expected in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_huge_file_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 32)

    with pytest.raises(ConfigError, match="too large"):
        documents.load(huge, Settings)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nsize: large\r\n")

    assert Settings(name="x", size="large") == documents.load(path, Settings)


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:[]{}-,&*!|>'\"%@#?\n\t \\0x\ud800é"), max_size=60))
@example('"\\Uffffffff"')
@example("%YAML 1.1\n%YAML 1.1\n---\na")
@example("%TAG ! tag:\n---\n!x a")
@example("? ")
@example("- !<a> b")
def test_any_text_is_either_a_document_or_problems(text: str) -> None:
    with contextlib.suppress(ConfigError):
        convert(text)
