"""Converts a `Document` to structs, noting every problem instead of stopping at the first."""

from __future__ import annotations

import builtins
import difflib
import functools
import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from gateway.documents.document import INVALID_TAG, YAML_TAG, At, Document, child_at, problem_at
from gateway.errors import ConfigError, Problem

T = TypeVar("T")

_SEQUENCES: Mapping[Any, type[Any]] = {list: list, tuple: tuple, Sequence: tuple}


class Check:
    """An extra test of one value, for ``Annotated[str, Check(test)]``.

    ``test`` raises ValueError(message) or ValueError(message, hint).
    """

    def __init__(self, test: Callable[[Any], object]) -> None:
        self.test = test


class _Invalid:
    """Stands for a value whose problem has been noted."""


_INVALID = _Invalid()


def convert(document: Document, type: type[T]) -> T:
    """The document as ``type``; an empty one counts as an empty mapping.

    Raises ConfigError with every unknown or missing field, wrong type and value out of range, and
    with what `parse` noted.
    """
    root = document.root
    if root is None:
        mark = yaml.Mark(document.path, 0, 0, 0, "", 0)
        root = yaml.MappingNode(f"{YAML_TAG}map", [], mark, mark)
    converter = _Converter(document.path)
    value = converter.value(root, type, ())
    noted = {(problem.line, problem.column) for problem in document.problems}
    followed = (p for p in converter.problems if (p.line, p.column) not in noted)
    if problems := [*document.problems, *followed]:
        raise ConfigError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return value  # type: ignore[no-any-return]


def suggestion(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not one of ``known``: the closest one, or all of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words) or 'none'}"


class _Converter:
    """Walks nodes and types side by side, noting problems instead of stopping at the first."""

    def __init__(self, path: str) -> None:
        self.problems: list[Problem] = []
        self._path = path

    def value(self, node: Any, type: Any, at: At) -> Any:
        """The node as ``type``, or `_INVALID` with at least one problem noted."""
        if node.tag == INVALID_TAG:
            return _INVALID
        origin = get_origin(type)
        if origin is Annotated:
            return self._annotated(node, type, at)
        if origin in (Union, types.UnionType):
            return self._union(node, get_args(type), at)
        if _is_struct(type):
            return self._struct(node, type, at)
        if origin in _SEQUENCES:
            return self._sequence(node, origin, get_args(type), at)
        if origin in (dict, Mapping):
            return self._mapping(node, get_args(type), at)
        return self._leaf(node, type, at)

    def note(self, node: Any, message: str, at: At, hint: str = "") -> _Invalid:
        """Record one problem."""
        where = f"{_dotted(at)}: " if at else ""
        self.problems.append(problem_at(self._path, node, where + message, hint))
        return _INVALID

    def _annotated(self, node: Any, type: Any, at: At) -> Any:
        inner, *metas = get_args(type)
        if not any(isinstance(meta, Check) or _restricts(meta) for meta in metas):
            return self.value(node, inner, at)
        plain = isinstance(node, yaml.ScalarNode) and not _is_nested(inner)
        value = self._leaf(node, type, at) if plain else self.value(node, inner, at)
        if value is _INVALID:
            return value
        for meta in metas:
            if isinstance(meta, Check):
                try:
                    meta.test(value)
                except ValueError as error:
                    return self._refused(node, error, at)
            elif not plain and (wrong := _wrong_length(meta, len(value))):
                return self.note(node, wrong, at)
        return value

    def _union(self, node: Any, members: tuple[Any, ...], at: At) -> Any:
        is_null = node.tag == f"{YAML_TAG}null"
        if is_null and types.NoneType in members:
            return None
        members = tuple(member for member in members if member is not types.NoneType)
        if len(members) == 1:
            return self.value(node, members[0], at)
        structs = [member for member in members if _is_struct(_bare(member))]
        if isinstance(node, yaml.MappingNode):
            if len(structs) > 1:
                return self._tagged(node, structs, at)
            fits = structs or [m for m in members if get_origin(_bare(m)) in (dict, Mapping)]
        elif isinstance(node, yaml.SequenceNode):
            fits = [m for m in members if get_origin(_bare(m)) in _SEQUENCES]
        else:
            fits = [m for m in members if not _is_nested(_bare(m))]
        if not fits:
            wanted = " or ".join(map(_type_name, members))
            return self.note(node, f"expected {wanted}, got {_node_name(node)}", at)
        if len(fits) == 1:
            return self.value(node, fits[0], at)
        return self._leaf(node, functools.reduce(operator.or_, fits), at)

    def _tagged(self, node: yaml.MappingNode, structs: Sequence[Any], at: At) -> Any:
        field = _bare(structs[0]).__struct_config__.tag_field
        known = {str(_bare(struct).__struct_config__.tag): _bare(struct) for struct in structs}
        tag = child_at(node, field)
        if tag is None:
            choices = ", ".join(sorted(known))
            return self.note(node, f"missing field {field!r}", at, f"one of: {choices}")
        if tag.value not in known:
            hint = suggestion(str(tag.value), known)
            return self.note(tag, f"unknown value {tag.value!r}", (*at, field), hint)
        return self._struct(node, known[tag.value], at)

    def _struct(self, node: Any, type: Any, at: At) -> Any:
        if not isinstance(node, yaml.MappingNode):
            return self.note(node, f"expected a mapping, got {_node_name(node)}", at)
        fields = {field.encode_name: field for field in msgspec.structs.fields(type)}
        config = type.__struct_config__
        values: dict[str, Any] = {}
        for key, child in node.value:
            if key.value in fields:
                field = fields[key.value]
                values[field.name] = self.value(child, field.type, (*at, key.value))
            elif key.value != config.tag_field and self._note_unknown(key, type, at):
                values[key.value] = _INVALID
        missing = [n for n, field in fields.items() if field.required and field.name not in values]
        for name in missing:
            self.note(node, f"missing field {name!r}", at, "add it")
        if missing or _INVALID in values.values():
            return _INVALID
        try:
            return type(**values)
        except (TypeError, ValueError) as error:  # what the struct's own __post_init__ refuses
            return self._refused(node, error, at)

    def _note_unknown(self, key: Any, type: Any, at: At) -> bool:
        """Whether the struct says, in a class variable ``refused``, why the field is not its own."""
        why = getattr(type, "refused", {}).get(key.value)
        if why is not None:
            self.note(key, f"{key.value!r} does not belong here", at, why)
        else:
            fields = (field.encode_name for field in msgspec.structs.fields(type))
            self.note(key, f"unknown field {key.value!r}", at, suggestion(key.value, fields))
        return why is not None

    def _refused(self, node: Any, error: Exception, at: At) -> _Invalid:
        words = [str(argument) for argument in error.args]
        return self.note(node, words[0] if words else "not valid", at, *words[1:2])

    def _sequence(self, node: Any, origin: Any, args: tuple[Any, ...], at: At) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            hint = (
                f"write [{node.value}]" if isinstance(node, yaml.ScalarNode) and node.value else ""
            )
            return self.note(node, f"expected a list, got {_node_name(node)}", at, hint)
        fixed = origin is tuple and not (len(args) == 2 and args[1] is Ellipsis)
        if fixed and len(node.value) != len(args):
            return self.note(node, f"expected {len(args)} entries, got {len(node.value)}", at)
        values = [
            self.value(child, args[i] if fixed else args[0], (*at, i))
            for i, child in enumerate(node.value)
        ]
        return _INVALID if _INVALID in values else _SEQUENCES[origin](values)

    def _mapping(self, node: Any, args: tuple[Any, ...], at: At) -> Any:
        if not isinstance(node, yaml.MappingNode):
            return self.note(node, f"expected a mapping, got {_node_name(node)}", at)
        pairs = [
            (self.value(key, args[0], at), self.value(child, args[1], (*at, key.value)))
            for key, child in node.value
        ]
        return _INVALID if any(_INVALID in pair for pair in pairs) else dict(pairs)

    def _leaf(self, node: Any, type: Any, at: At) -> Any:
        try:
            raw = _plain(node)
            return msgspec.convert(raw, type, dec_hook=_path_hook)
        except msgspec.ValidationError as error:
            message, hint = _explain(node, raw, type, str(error))
            return self.note(node, message, at, hint)
        except ValueError as error:
            message, hint = str(error), "put it in quotes if it is meant as text"
            if _bare(type) is date:
                message, hint = _no_date(node)
            elif _bare(type) in (int, float, bool):
                hint = ""
            return self.note(node, message, at, hint)


def _restricts(meta: msgspec.Meta) -> bool:
    """Whether it limits values, and does not only describe them."""
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
    return any(getattr(meta, name) is not None for name in names)


def _wrong_length(meta: Any, length: int) -> str:
    low, high = getattr(meta, "min_length", None), getattr(meta, "max_length", None)
    if low is not None and length < low:
        return f"expected at least {low} in it, got {length}"
    if high is not None and length > high:
        return f"expected at most {high} in it, got {length}"
    return ""


def _plain(node: Any) -> Any:
    """The node as plain Python. Raises ValueError for what YAML 1.1 reads as nobody expects."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(child) for key, child in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child) for child in node.value]
    kind = node.tag.removeprefix(YAML_TAG)
    if kind in ("int", "float") and ":" in node.value:
        raise ValueError(f"YAML reads {node.value!r} as a base-60 number")
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, yaml.YAMLError):
        raise ValueError(f"{node.value[:40]!r} is no valid {kind}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{node.value!r} is not a finite number")
    return value


def _explain(node: Any, raw: Any, type: Any, message: str) -> tuple[str, str]:
    """msgspec's message with the value that was found, and how to fix it."""
    base = _bare(type)
    if base is date:
        return _no_date(node)
    message = message.replace("`str`", "text")
    if message.startswith("Invalid enum value") and isinstance(raw, str):
        return f"unknown value {raw!r}", suggestion(raw, _choices(type))
    message = message[0].lower() + message[1:].replace("`", "")
    message = f"{message.split(', got ')[0]}, got {_node_name(node)}"
    if base is str and isinstance(node, yaml.ScalarNode) and not isinstance(raw, str):
        return message, f'write "{node.value}"' if node.value else "give a value or remove the key"
    if base in (int, float, bool) and node.style and re.fullmatch(r"[-+\d.]+|true|false", str(raw)):
        return message, "remove the quotes"
    if base is float and isinstance(raw, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", raw, re.I):
        return message, "a number needs a decimal point before the exponent: 1.0e-3"
    return message, ""


def _no_date(node: Any) -> tuple[str, str]:
    return f"expected a date, got {_node_name(node)}", "write a day such as 2026-12-31"


def _choices(type: Any) -> tuple[str, ...]:
    base = _bare(type)
    if get_origin(base) is Literal:
        return tuple(str(value) for value in get_args(base))
    if get_origin(base) in (Union, types.UnionType):
        return tuple(word for member in get_args(base) for word in _choices(member))
    if isinstance(base, builtins.type) and issubclass(base, Enum):
        return tuple(str(member.value) for member in base)
    return ()


def _path_hook(type: Any, value: Any) -> Any:
    if type is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"no conversion to {type}")


def _bare(type: Any) -> Any:
    return get_args(type)[0] if get_origin(type) is Annotated else type


def _is_struct(type: Any) -> bool:
    return isinstance(type, builtins.type) and issubclass(type, msgspec.Struct)


def _is_nested(type: Any) -> bool:
    return _is_struct(type) or get_origin(type) in (dict, Mapping, *_SEQUENCES)


def _type_name(type: Any) -> str:
    base = _bare(type)
    if _is_struct(base) or get_origin(base) in (dict, Mapping):
        return "a mapping"
    return "a list" if get_origin(base) in _SEQUENCES else getattr(base, "__name__", str(base))


def _node_name(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return node.value[:40] if node.tag != f"{YAML_TAG}null" else "nothing"


def _dotted(at: At) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in at)
    return "".join(steps).removeprefix(".")
