"""Which JSON schemas can be enforced exactly, and how they are put to the matcher.

The matcher passes over keywords that it does not know, and over some that it knows, where they
stand beside others. So every keyword is refused that is not known here to be enforced in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from decoders.constraints import GrammarError, UnsupportedGrammar
from decoders.pattern import check_pattern

MAX_DEPTH = 32
MAX_PROPERTIES = 500
MAX_ENUM_VALUES = 1000
MAX_ITEMS = 10_000
MAX_LENGTH = 2_000
MAX_PATTERNS = 50
_MAX_BOUND = 1 << 53

FORMATS = frozenset(
    "email date time date-time duration ipv4 ipv6 hostname uuid uri uri-reference uri-template "
    "json-pointer relative-json-pointer".split()
)
"""Those whose spelling is enforced; whether a date exists is not."""
_ANNOTATIONS = frozenset(
    "title description default examples example $comment deprecated readOnly writeOnly $schema "
    "$defs definitions discriminator".split()
)
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_TYPE_OF: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
Schema = Mapping[str, Any]


def checked(source: str) -> str:
    """The schema as the matcher is to read it.

    Raises GrammarError for what is no schema, UnsupportedGrammar for what cannot be enforced.
    """
    return json.dumps(_Reading(source, "#").root(), ensure_ascii=False)


def calls_schema(functions: Sequence[tuple[str, str]]) -> str:
    """The schema of one call of one of ``functions``, each a name and the schema of its arguments.

    Raises GrammarError for an argument schema that is not an object's, else as `checked` does.
    """
    definitions = {}
    calls = []
    for i, (name, source) in enumerate(functions):
        place = f"#/$defs/arguments_{i}"
        schema = _Reading(source, place).root()
        if schema.get("type") != "object":
            raise GrammarError(f'needs "type": "object" in the parameters of {name!r}')
        definitions[f"arguments_{i}"] = schema
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": place}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return json.dumps({"anyOf": calls, "$defs": definitions}, ensure_ascii=False)


def parse_json(source: str) -> Any:
    """What the JSON says. Raises GrammarError for what is none or is not text throughout."""
    try:
        value = json.loads(source)
        written = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"is not JSON: {error}") from None
    # Escapes can spell what the source itself could not hold.
    check_text(written)
    return value


def check_text(text: str) -> None:
    """Raise GrammarError for half of a surrogate pair, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise GrammarError(f"has half of a surrogate pair, {half}; remove it") from None


class _Reading:
    """One pass over a schema, which is to stand at the pointer ``place`` of a larger one."""

    def __init__(self, source: str, place: str) -> None:
        self._root = parse_json(source)
        self._place = place
        self._num_properties = 0
        self._num_patterns = 0

    def root(self) -> dict[str, Any]:
        """The whole schema."""
        return self._schema(self._root, "#", 0)

    def _schema(self, schema: object, at: str, depth: int) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise GrammarError(f"has no schema at {at}: an object or true is needed")
        if depth > MAX_DEPTH:
            raise GrammarError(f"is nested deeper than {MAX_DEPTH} levels")
        core = {
            key: value
            for key, value in schema.items()
            if key not in _ANNOTATIONS and not key.startswith("x-")
        }
        result = self._core(core, at, depth)
        for group in ("$defs", "definitions"):
            if group in schema:
                result[group] = self._named(schema[group], f"{at}/{group}", depth)
        return result

    def _core(self, core: Schema, at: str, depth: int) -> dict[str, Any]:
        for keyword, read in (
            ("$ref", self._ref),
            ("anyOf", self._any_of),
            ("oneOf", self._one_of),
            ("allOf", self._all_of),
        ):
            if keyword in core:
                _only(core, {keyword}, at)
                return read(core[keyword], f"{at}/{keyword}", depth)
        if "enum" in core or "const" in core:
            return _enum(core, at)
        return self._typed(core, at, depth)

    def _ref(self, ref: object, at: str, depth: int) -> dict[str, Any]:
        self._resolve(ref, at)
        return {"$ref": self._place + str(ref)[1:]}

    def _resolve(self, ref: object, at: str) -> object:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            _unsupported("$ref", at, "only references into the schema itself are, like '#/$defs/a'")
        found: Any = self._root
        for step in ref.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise GrammarError(f"has a reference at {at} that leads nowhere: {ref[:80]!r}")
            found = found[key]
        return found

    def _any_of(self, branches: object, at: str, depth: int) -> dict[str, Any]:
        return {"anyOf": self._list(branches, at, depth)}

    def _one_of(self, branches: object, at: str, depth: int) -> dict[str, Any]:
        read = self._list(branches, at, depth)
        followed = [self._followed(branch, at) for branch in branches]  # type: ignore[attr-defined]
        # Worked out once for each: there are as many pairs as the square of the schemas.
        seen = [(_plain_types(schema), _constants(schema)) for schema in followed]
        if not all(_disjoint(a, b) for i, a in enumerate(seen) for b in seen[:i]):
            _unsupported("oneOf", at, "where its schemas may overlap; use anyOf")
        return {"anyOf": read}

    def _followed(self, schema: Any, at: str) -> Schema:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self._resolve(schema["$ref"], at)
        return schema if isinstance(schema, dict) else {}

    def _all_of(self, branches: object, at: str, depth: int) -> dict[str, Any]:
        if isinstance(branches, list) and len(branches) > 1:
            _unsupported("allOf", at, "with more than one schema")
        return self._list(branches, at, depth)[0]

    def _list(self, schemas: object, at: str, depth: int) -> list[dict[str, Any]]:
        if not isinstance(schemas, list) or not schemas:
            raise GrammarError(f"needs a list of schemas at {at}")
        return [self._schema(s, f"{at}/{i}", depth + 1) for i, s in enumerate(schemas)]

    def _named(self, schemas: object, at: str, depth: int) -> dict[str, Any]:
        if not isinstance(schemas, dict):
            raise GrammarError(f"needs an object of schemas at {at}")
        self._num_properties += len(schemas)
        if self._num_properties > MAX_PROPERTIES:
            raise GrammarError(f"has more than {MAX_PROPERTIES} properties and definitions")
        return {name: self._schema(s, f"{at}/{name}", depth + 1) for name, s in schemas.items()}

    def _typed(self, core: Schema, at: str, depth: int) -> dict[str, Any]:
        if not core:
            return {}
        if "type" not in core:
            _only(core, set().union(*_KEYWORDS.values()), at)
            raise GrammarError(f"needs a type beside {next(iter(core))!r} at {at}")
        types = _types(core["type"], at)
        _only(core, {"type"}.union(*(_KEYWORDS[name] for name in types)), at)
        result = dict(core)
        if "object" in types:
            self._object(result, at, depth)
        if "array" in types:
            self._array(result, at, depth)
        if "string" in types:
            _string(result, at)
            self._num_patterns += "pattern" in core
            if self._num_patterns > MAX_PATTERNS:
                raise GrammarError(f"has more than {MAX_PATTERNS} patterns")
        _bounds(core, at, whole="integer" in types)
        return result

    def _object(self, result: dict[str, Any], at: str, depth: int) -> None:
        properties = self._named(result.get("properties", {}), f"{at}/properties", depth)
        required = result.get("required", [])
        if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
            raise GrammarError(f"needs a list of names at {at}/required")
        if missing := [name for name in required if name not in properties]:
            raise GrammarError(f"requires {missing[0][:80]!r} at {at}, which `properties` lacks")
        others = result.get("additionalProperties", True)
        if "properties" not in result:
            if others is not False:
                place = f"{at}/additionalProperties"
                result["additionalProperties"] = self._schema(others, place, depth + 1) or True
            return
        if others not in (True, False, {}):
            # A key spelled with escapes would pass for another one.
            _unsupported("additionalProperties", at, "as a schema beside `properties`")
        result.update(properties=properties, additionalProperties=False)

    def _array(self, result: dict[str, Any], at: str, depth: int) -> None:
        if isinstance(result.get("items"), list):
            _unsupported("items", at, "as a list; use prefixItems")
        if result.get("items", True) is not False and "items" in result:
            result["items"] = self._schema(result["items"], f"{at}/items", depth + 1)
        if "prefixItems" in result:
            prefix = self._list(result["prefixItems"], f"{at}/prefixItems", depth)
            result["prefixItems"] = prefix
        if result.pop("uniqueItems", False) is not False:
            _unsupported("uniqueItems", at, "as true")
        _counts(result, "minItems", "maxItems", MAX_ITEMS, at)


def _types(wanted: object, at: str) -> list[str]:
    names = wanted if isinstance(wanted, list) else [wanted]
    types = [name for name in names if isinstance(name, str) and name in _KEYWORDS]
    if not types or len(types) < len(names):
        raise GrammarError(f"has a wrong type at {at}; known: {', '.join(_KEYWORDS)}")
    return types


def _enum(core: Schema, at: str) -> dict[str, Any]:
    keyword = "enum" if "enum" in core else "const"
    _only(core, {keyword, "type"}, at)
    values = core["enum"] if keyword == "enum" else [core["const"]]
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ENUM_VALUES:
        raise GrammarError(f"needs 1 to {MAX_ENUM_VALUES} values at {at}/enum")
    types = _types(core["type"], at) if "type" in core else list(_TYPE_OF)
    for value in values:
        if not any(_TYPE_OF[name](value) for name in types):
            raise GrammarError(f"has a value at {at}/{keyword} that is not of its type")
    return {keyword: core[keyword]}


def _string(result: dict[str, Any], at: str) -> None:
    _counts(result, "minLength", "maxLength", MAX_LENGTH, at)
    shapes = [name for name in ("pattern", "format") if name in result]
    lengths = [name for name in ("minLength", "maxLength") if name in result]
    if shapes and len(shapes + lengths) > 1:
        _unsupported(shapes[0], at, f"beside {(shapes[1:] + lengths)[0]!r}")
    if "pattern" in result:
        if not isinstance(result["pattern"], str):
            raise GrammarError(f"needs a string at {at}/pattern")
        check_pattern(result["pattern"], in_json=True)
    if "format" in result and result["format"] not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        _unsupported("format", at, f"with the value {str(result['format'])[:80]!r}; known: {known}")
    if lengths:
        # The matcher's own counting lets control characters through, which JSON has to escape.
        low, high = result.pop("minLength", 0), result.pop("maxLength", "")
        result["pattern"] = f'^[^"\\\\\\x00-\\x1f]{{{low},{high}}}$'


def _bounds(core: Schema, at: str, *, whole: bool) -> None:
    names = [name for name in core if name in _KEYWORDS["number"]]
    for name in names:
        value = core[name]
        if not _TYPE_OF["number"](value) or not abs(value) <= _MAX_BOUND:
            raise GrammarError(f"needs a number of at most 2^53 at {at}/{name}")
        if whole and value != int(value):
            _unsupported(name, at, "as a fraction beside the type integer")
    for plain in ("minimum", "maximum"):
        exclusive = f"exclusiveM{plain[1:]}"
        if plain in core and exclusive in core:
            _unsupported(exclusive, at, f"beside {plain!r}")


def _counts(core: Schema, low: str, high: str, limit: int, at: str) -> None:
    for name in (low, high):
        value = core.get(name, 0)
        if type(value) is not int or not 0 <= value <= limit:
            raise GrammarError(f"needs a whole number from 0 to {limit} at {at}/{name}")
    if core.get(low, 0) > core.get(high, limit):
        raise GrammarError(f"has a {low} above its {high} at {at}")


_Told = tuple[frozenset[str] | None, dict[str, frozenset[str]]]
"""What a schema tells of its values: `_plain_types` and `_constants`."""


def _disjoint(a: _Told, b: _Told) -> bool:
    """Whether it is plain that no value fits both: by type, or by a required property's constant."""
    (types, values), (other_types, other_values) = a, b
    if types is not None and other_types is not None and types.isdisjoint(other_types):
        return True
    return any(
        name in other_values and texts.isdisjoint(other_values[name])
        for name, texts in values.items()
    )


def _plain_types(schema: Schema) -> frozenset[str] | None:
    """The types of its values, whole numbers being numbers; None where they are not said."""
    if "type" not in schema:
        return None
    names = _types(schema["type"], "oneOf")
    return frozenset("number" if name == "integer" else name for name in names)


def _constants(schema: Schema) -> dict[str, frozenset[str]]:
    """The values of required properties that have only some; none where not all is an object."""
    found: dict[str, frozenset[str]] = {}
    if schema.get("type") not in ("object", ["object"]):
        return found
    for name in schema.get("required", []):
        prop = schema.get("properties", {}).get(name, {})
        if isinstance(prop, dict) and ("const" in prop or "enum" in prop):
            values = [prop["const"]] if "const" in prop else prop["enum"]
            found[name] = frozenset(map(_canonical, values))
    return found


def _canonical(value: Any) -> str:
    """One spelling for what JSON Schema holds equal: 1 and 1.0 are one value, true is another."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> int | float:
    exact = Decimal(text)
    return int(exact) if exact == int(exact) else float(text)


def _only(core: Schema, known: set[str], at: str) -> None:
    """Raise UnsupportedGrammar for a keyword that would be passed over."""
    unknown = [key for key in core if key not in known]
    if unknown:
        anywhere = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "type"}.union(
            *_KEYWORDS.values()
        )
        beside = f"beside {', '.join(sorted(known & set(core)))}"
        known_here = unknown[0] in anywhere and known & set(core)
        _unsupported(unknown[0], at, beside if known_here else "")


def _unsupported(keyword: str, at: str, why: str = "") -> NoReturn:
    raise UnsupportedGrammar(
        f"uses the keyword {keyword[:80]!r} at {at[:80]}, which is not supported{why and ' ' + why}"
    )
