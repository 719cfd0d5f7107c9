"""Grammars: every keyword of a schema that is let through is enforced, and every other one refused."""

import json
import random

import jsonschema
import pytest

from decoders import json_schema
from decoders.constraints import ConstraintError, GrammarError, MinTokens, UnsupportedGrammar
from decoders.grammar import MAX_SOURCE_CHARACTERS, Grammar, GrammarCompiler, GrammarKind
from decoders.json_schema import MAX_DEPTH, MAX_PROPERTIES, calls_schema

END = 256
CLOSING = set(b'"]}')
COMPILER = GrammarCompiler([bytes([byte]) for byte in range(END)] + [b""], [END])


def compiled(schema):
    source = schema if isinstance(schema, str) else json.dumps(schema)
    return COMPILER.compile(Grammar(GrammarKind.JSON_SCHEMA, source))


def takes(grammar, text):
    """Whether ``text`` is an answer."""
    tokens = [*text.encode(), END]
    return grammar.constraint().count_allowed(tokens) == len(tokens)


def walk(grammar, seed, limit=400):
    """An answer that takes a random allowed byte each time, and an end as soon as one is allowed.

    None for one that grows too long.
    """
    chance, constraint, written = random.Random(seed), grammar.constraint(), []
    while len(written) < limit:
        (row,) = constraint.allowed([]).numpy()
        allowed = row.nonzero()[0].tolist()
        assert allowed, f"nothing follows {bytes(written)!r}"
        if END in allowed and (len(allowed) == 1 or chance.random() < 0.5):
            return bytes(written).decode(errors="surrogatepass")
        # What closes is likelier, so that strings and lists come to an end.
        closing = [byte for byte in allowed if byte in CLOSING]
        pool = closing if closing and chance.random() < 0.4 else [b for b in allowed if b != END]
        token = chance.choice(pool)
        constraint.accept([token])
        written.append(token)
    return None


DEFS = {"$defs": {"whole": {"type": "integer", "minimum": 3}, "node": {"$ref": "#/$defs/whole"}}}
CAT = {
    "type": "object",
    "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
    "required": ["kind", "lives"],
}
DOG = {
    "type": "object",
    "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}},
    "required": ["kind"],
}

# A schema, an answer that fits it, and some that do not.
ENFORCED = {
    "properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        '{"a": 1}',
        ['{"a": "x"}', "1", "[]"],
    ),
    "required": (
        {"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "required": ["b"]},
        '{"b": null}',
        ["{}", '{"a": 1}'],
    ),
    "additionalProperties false": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        "{}",
        ['{"b": 1}', '{"\\u0061": 1}'],
    ),
    "additionalProperties": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        '{"x": 1, "y": 2}',
        ['{"x": "y"}'],
    ),
    "items": ({"type": "array", "items": {"type": "boolean"}}, "[true, false]", ["[1]", "true"]),
    "minItems": ({"type": "array", "items": {"type": "null"}, "minItems": 2}, "[null, null]", ["[null]"]),
    "maxItems": ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, "[null]", ["[null, null]"]),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
        "[1, null]",
        ["[null, 1]", "[1, null, 2]"],
    ),
    "minLength": ({"type": "string", "minLength": 2}, '"éé"', ['"a"', '"é"', '"\t\t"', '"\\n"']),
    "maxLength": ({"type": "string", "maxLength": 2}, '"🙂🙂"', ['"abc"']),
    "pattern": ({"type": "string", "pattern": "^[a-c]+[^c]$"}, '"abz"', ['"abc"', '"z"', '"a\\""']),
    "minimum": ({"type": "integer", "minimum": -3}, "-3", ["-4"]),
    "maximum": ({"type": "integer", "maximum": 12}, "12", ["13", "112"]),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, "4", ["3"]),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 3, "minimum": 0}, "2", ["3", "-1"]),
    "minimum of a number": ({"type": "number", "minimum": 2.5}, "2.5", ["2.4", "2", "-3"]),
    "maximum of a number": ({"type": "number", "maximum": 2.5, "minimum": 0}, "2.49", ["2.51", "3"]),
    "exclusiveMinimum of a number": ({"type": "number", "exclusiveMinimum": 0}, "0.1", ["0", "0.0", "-1"]),
    "exclusiveMaximum of a number": ({"type": "number", "exclusiveMaximum": 1.5}, "1.4", ["1.5", "2"]),
    "enum": ({"enum": ["a", 1, None, {"b": [1]}]}, '"a"', ['"b"', "2", '""']),
    "enum with its type": ({"type": "string", "enum": ["é\n", "b"]}, '"é\\n"', ['"c"']),
    "const": ({"const": "only"}, '"only"', ['"other"']),
    "type": ({"type": ["integer", "null"]}, "null", ['"a"', "1.5", "true"]),
    "integer": ({"type": "integer"}, "-12", ["1.5", "01", '"1"']),
    "number": ({"type": "number"}, "-1.5e+3", ["01", ".5", "1.", "NaN"]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", ['"a"', "true"]),
    "oneOf by type": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', ["null"]),
    "oneOf by a constant": (
        {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {"cat": CAT, "dog": DOG}},
        '{"kind": "cat", "lives": 9}',
        ['{"kind": "cow"}', '{"kind": "cat"}', '{"kind": "dog", "lives": 1}'],
    ),
    "allOf of one": ({"allOf": [{"type": "integer", "maximum": 5}], "title": "n"}, "5", ["6"]),
    "$ref": ({"type": "array", "items": {"$ref": "#/$defs/node"}, **DEFS}, "[3, 44]", ["[2]"]),
    "$ref to the whole": (
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        '{"next": {"next": null}}',
        ['{"next": 1}'],
    ),
    "no keyword": ({}, '{"a": [1, {"b": null}]}', ["[", "nul"]),
    "any object": ({"type": "object"}, '{"a": {"b": [1, "c"]}}', ["1", "[1]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_a_keyword_that_is_let_through_is_enforced(name):
    schema, right, wrong = ENFORCED[name]
    grammar = compiled(schema)

    assert takes(grammar, right)
    jsonschema.validate(json.loads(right), schema)
    for text in wrong:
        assert not takes(grammar, text), text


@pytest.mark.parametrize("name", ENFORCED)
def test_whatever_a_schema_allows_is_json_that_fits_it(name):
    """Against a validator of somebody else's, along many walks through the grammar."""
    schema = ENFORCED[name][0]
    grammar = compiled(schema)
    answers = {walk(grammar, seed) for seed in range(60)} - {None}

    assert answers
    for text in answers:
        jsonschema.validate(json.loads(text), schema)
        assert "\n" not in text


@pytest.mark.parametrize(
    ("format", "wrong"),
    [
        ("email", "ab"), ("date", "2024-13-01"), ("time", "25:00:00Z"), ("date-time", "x"),
        ("duration", "x"), ("ipv4", "1.2.3.999"), ("ipv6", "zz"), ("hostname", "-"), ("uuid", "1"),
        ("uri", "no uri"), ("uri-reference", "\\\\"), ("uri-template", "{"), ("json-pointer", "a"),
        ("relative-json-pointer", "a"),
    ],
)  # fmt: skip
def test_the_spelling_of_a_known_format_is_enforced(format, wrong):
    grammar = compiled({"type": "string", "format": format})

    assert not takes(grammar, json.dumps(wrong))
    for seed in range(20):
        text = walk(grammar, seed)
        assert text is None or isinstance(json.loads(text), str)


def tagged(values):
    return {"type": "object", "properties": {"tag": {"enum": values}}, "required": ["tag"]}


def nullable(schema):
    return {**schema, "type": ["object", "null"]}


ONE_OF_THAT_MAY_OVERLAP = {
    "null fits both": [nullable(CAT), nullable(DOG)],
    "one number": [tagged([1]), tagged([1.0])],
    "one number further down": [tagged([{"a": [1]}]), tagged(["b", {"a": [1.0]}])],
}


def test_one_of_looks_at_each_branch_once(monkeypatch):
    looked_at = []
    known = json_schema._constants
    monkeypatch.setattr(
        json_schema, "_constants", lambda schema: looked_at.append(schema) or known(schema)
    )

    compiled({"oneOf": [tagged([number]) for number in range(12)]})

    assert len(looked_at) == 12


@pytest.mark.parametrize("name", ONE_OF_THAT_MAY_OVERLAP)
def test_one_of_is_refused_where_a_value_fits_both(name):
    with pytest.raises(UnsupportedGrammar, match="may overlap"):
        compiled({"oneOf": ONE_OF_THAT_MAY_OVERLAP[name]})


def test_true_and_1_are_different_constants():
    assert takes(compiled({"oneOf": [tagged([1]), tagged([True])]}), '{"tag": true}')
    assert takes(compiled({"oneOf": [tagged(["1", 0]), tagged([1, False])]}), '{"tag": 0}')


REFUSED = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "minContains": {"type": "array", "minContains": 1},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "minProperties": {"type": "object", "minProperties": 1},
    "maxProperties": {"type": "object", "maxProperties": 1},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "a"}},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {}}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "additionalProperties": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    },
    "not": {"not": {"type": "integer"}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 3}},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "$ref": {"$ref": "https://example.org/schema"},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$id": {"$id": "https://example.org/schema"},
    "format": {"type": "string", "format": "regex"},
    "pattern": {"type": "string", "pattern": "^a+$", "maxLength": 3},
    "minimum": {"anyOf": [{"type": "integer"}], "minimum": 3},
    "properties": {"$ref": "#/$defs/a", "properties": {}, "$defs": {"a": {}}},
    "minLength": {"type": "integer", "minLength": 3},
    "exclusiveMinimum": {"type": "integer", "minimum": 1, "exclusiveMinimum": 2},
    "exclusiveMaximum": {"type": "integer", "exclusiveMaximum": 2.5},
    "nullable": {"type": "string", "nullable": True},
    "invented": {"type": "string", "invented": 1},
}


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_any_other_keyword_is_refused_by_name(keyword, nested):
    schema = REFUSED[keyword]
    if nested:
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        schema = {"type": "object", "properties": {"x": {"type": "array", "items": schema}}}
        schema |= definitions

    with pytest.raises(UnsupportedGrammar, match=rf"'{keyword.replace('$', '[$]')}[:' ]"):
        compiled(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 50_000, "is not JSON"),
        ("[]", "no schema at #"),
        ("false", "no schema"),
        ({"type": "thing"}, "wrong type"),
        ({"type": []}, "wrong type"),
        ({"minimum": 3}, "needs a type beside 'minimum'"),
        ({"type": "object", "required": ["z"]}, "requires 'z'"),
        ({"type": "object", "properties": []}, "object of schemas"),
        ({"type": "array", "items": [{}]}, "prefixItems"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "above its maxItems"),
        ({"type": "array", "maxItems": 10**7}, "0 to 10000"),
        ({"type": "string", "minLength": -1}, "0 to 2000"),
        ({"type": "string", "minLength": True}, "0 to 2000"),
        ({"type": "integer", "minimum": "3"}, "a number"),
        ({"type": "number", "minimum": 1e300}, "a number of at most"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "cannot be used"),
        ({"enum": []}, "1 to 1000 values"),
        ({"enum": list(range(2000))}, "1 to 1000 values"),
        ({"type": "string", "enum": ["a", 1]}, "not of its type"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#"}, "cannot be used"),
        ({"anyOf": []}, "list of schemas"),
        ({"type": "object", "properties": {f"p{i}": {} for i in range(MAX_PROPERTIES + 1)}}, "more than"),
        ('{"type":"array","items":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1), "deeper than"),
        ({"type": "string", "pattern": ".*x?" * 40}, "80 quantifiers"),
        ({"type": "string", "pattern": "a{1,20000}"}, "repeats {1,20000}"),
        ({"enum": [{}], "anyOf": [{"type": "string", "pattern": "a"}] * 60}, "beside|patterns"),
        (json.dumps({"const": "x" * MAX_SOURCE_CHARACTERS}), "characters; the limit"),
    ],
)  # fmt: skip
def test_what_is_no_schema_or_too_large_is_refused_with_a_reason(schema, says):
    with pytest.raises(GrammarError, match=says):
        compiled(schema)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON_SCHEMA, r'{"const": "\ud800"}'),
        (GrammarKind.JSON_SCHEMA, r'{"type": "object", "properties": {"\udc00": {"x": 1}}}'),
        (GrammarKind.JSON_SCHEMA, '{"const": "\ud800"}'),
        (GrammarKind.CHOICE, r'["a", "\ud800"]'),
        (GrammarKind.REGEX, "a\ud800"),
        (GrammarKind.EBNF, 'root ::= "\ud800"'),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(kind, source):
    with pytest.raises(GrammarError, match=r"half of a surrogate pair, '\\ud[8c]00'") as caught:
        COMPILER.compile(Grammar(kind, source))
    str(caught.value).encode()


def test_half_of_a_surrogate_pair_is_refused_in_the_parameters_of_a_function():
    with pytest.raises(GrammarError, match="half of a surrogate pair"):
        calls_schema([("f", r'{"type": "object", "properties": {"a": {"const": "\ud800"}}}')])


@pytest.mark.parametrize(
    "pattern",
    [
        "a^b", "a$b", "(^a)", "(a$)", r"\bword", r"\Aa\Z", r"(a)\1", r"\p{L}", "(?i)a", "(?=a)b",
        "(?!a)b", "(?P<x>a)", "(?#c)a", "[[:alpha:]]", "\\", r"\cA", r"\0",
    ],
)  # fmt: skip
def test_a_pattern_that_would_be_read_otherwise_is_refused(pattern):
    for grammar in (
        Grammar(GrammarKind.REGEX, pattern),
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "string", "pattern": pattern})),
    ):
        with pytest.raises(UnsupportedGrammar, match="of a pattern"):
            COMPILER.compile(grammar)


@pytest.mark.parametrize(
    "pattern", ['^"$', r"\"", r"\\", r"\x22", r"\u005c", r"\n", '["a]', r"[\\]"]
)
def test_a_pattern_that_json_would_have_to_escape_is_refused_there_only(pattern):
    COMPILER.compile(Grammar(GrammarKind.REGEX, pattern))

    with pytest.raises(UnsupportedGrammar, match="escape"):
        compiled({"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    "pattern", [r"^[^\"\\]+$", "^.+$", r"^\S\W\D$", "^[ -~]$", r"^[\s\S]*$", "^(?:a|b){2}$", "[^a]"]
)
def test_a_set_inside_a_json_string_leaves_out_what_json_escapes(pattern):
    grammar = compiled({"type": "string", "pattern": pattern})

    for seed in range(60):
        text = walk(grammar, seed)
        assert text is None or isinstance(json.loads(text), str)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("a|bc", ["a", "bc"], ["ab", "", "xa", "ax"]),
        ("^[0-9]{3}-[a-z]+$", ["123-a"], ["12-a", "123-", "x123-a"]),
        (r"\d\w\s", ["5x ", "0_\t"], ["٣x ", "5é "]),
        (r"\"\\\n", ['"\\\n'], ['"']),
        (r"(?:é|\u4f60)+?", ["é你"], ["e"]),
    ],
)
def test_a_pattern_holds_for_the_whole_answer(pattern, right, wrong):
    grammar = COMPILER.compile(Grammar(GrammarKind.REGEX, pattern))

    assert [takes(grammar, text) for text in right] == [True] * len(right)
    assert [takes(grammar, text) for text in wrong] == [False] * len(wrong)


def test_choices_are_taken_letter_by_letter():
    texts = ['"quoted"\\', "zwei\nZeilen", "你好 🙂", "plain"]
    grammar = COMPILER.compile(Grammar(GrammarKind.CHOICE, json.dumps(texts)))

    assert all(takes(grammar, text) for text in texts)
    assert not any(takes(grammar, text) for text in ("plai", "plains", "", "你好"))


@pytest.mark.parametrize("source", ["", "{", "[]", "[1]", '"a"', '["a", null]'])
def test_choices_that_are_no_texts_are_refused(source):
    with pytest.raises(GrammarError):
        COMPILER.compile(Grammar(GrammarKind.CHOICE, source))


@pytest.mark.parametrize("source", ["", "root ::= x", 'start: "a"', 'a ::= "b"', "root ::= ("])
def test_a_broken_grammar_is_refused_without_the_librarys_own_paths(source):
    with pytest.raises(GrammarError, match="cannot be used") as caught:
        COMPILER.compile(Grammar(GrammarKind.EBNF, source))

    assert ".cc" not in str(caught.value)


def test_a_call_has_one_of_the_names_and_its_arguments():
    city = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/name"}},
        "required": ["city"],
        "$defs": {"name": {"enum": ["Oslo", "Rome"]}},
    }
    functions = [("weather", json.dumps(city)), ("now", '{"type": "object", "properties": {}}')]
    grammar = compiled_calls(functions)

    assert takes(grammar, '{"name": "weather", "arguments": {"city": "Rome"}}')
    assert takes(grammar, '{"name": "now", "arguments": {}}')
    assert not takes(grammar, '{"name": "now", "arguments": {"city": "Rome"}}')
    assert not takes(grammar, '{"name": "weather", "arguments": {}}')
    with pytest.raises(GrammarError, match="parameters of 'f'"):
        calls_schema([("f", '{"type": "string"}')])


def compiled_calls(functions):
    # As the compiler's caller does it: what comes out is itself a schema that can be enforced.
    return COMPILER.compile(Grammar(GrammarKind.JSON_SCHEMA, calls_schema(functions)))


def test_a_tokenizer_without_an_end_is_refused():
    with pytest.raises(GrammarError, match="no token that ends"):
        GrammarCompiler([b"a"], [])


def test_what_is_not_allowed_is_not_accepted():
    constraint = COMPILER.compile(Grammar(GrammarKind.REGEX, "ab")).constraint()
    constraint.accept(b"a")

    with pytest.raises(ConstraintError):
        constraint.accept(b"a")
    with pytest.raises(ConstraintError, match="min_tokens"):
        MinTokens(2, [END], END + 1).accept([0, END])
