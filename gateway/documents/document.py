"""`Document`: YAML nodes with their positions, and a parser that refuses what is a trap in YAML.

PyYAML keeps the last of duplicate keys, reads ``on:`` as a boolean and expands aliases without
limit; here each of these is a problem with a line and a column. Knows nothing of types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.errors import ConfigError, Problem

At = tuple[str | int, ...]
"""Where a value is inside a document: ``("rules", 0, "when")``."""

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 32
YAML_TAG = "tag:yaml.org,2002:"
INVALID_TAG = f"{YAML_TAG}invalid"
"""Of a node whose problem the document has noted already."""


class Document(msgspec.Struct, frozen=True):
    """One parsed file: its nodes with their positions."""

    path: str
    root: Any
    """The root `yaml.Node`, or None for an empty file."""
    problems: tuple[Problem, ...] = ()
    """What YAML allows and we do not; whoever converts the document reports them with the rest."""

    def problem(self, message: str, at: At = (), *, key: bool = False, hint: str = "") -> Problem:
        """A problem at the value, or at the key, that ``at`` leads to (or its nearest ancestor)."""
        node = self._key(at) if key else self._node(at)
        return problem_at(self.path, node, message, hint)

    def has(self, at: At) -> bool:
        """Whether something is written there."""
        node = self.root
        for step in at:
            node = child_at(node, step)
        return node is not None

    def word(self, at: At) -> str | None:
        """The single value there as it is written; None where there is none."""
        node = self._node(at) if self.has(at) else None
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def length(self, at: At) -> int:
        """How many entries the list there has; 0 where there is none."""
        node = self._node(at) if self.has(at) else None
        return len(node.value) if isinstance(node, yaml.SequenceNode) else 0

    def without_value(self) -> Iterator[At]:
        """Where a key or an entry has no value, as above lines that were commented out."""
        yield from _without_value(self.root, ())

    def _node(self, at: At) -> Any:
        node = self.root
        for step in at:
            child = child_at(node, step)
            if child is None:
                break
            node = child
        return node

    def _key(self, at: At) -> Any:
        parent = self._node(at[:-1])
        pairs = parent.value if isinstance(parent, yaml.MappingNode) else []
        return next((key for key, _ in pairs if at and key.value == at[-1]), self._node(at))


def read(path: Path) -> str:
    """The text of a file. Raises ConfigError when it is missing, unreadable or not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError([Problem("no such file", path=path, hint="check the path")]) from None
    except OSError as error:
        raise ConfigError(
            [Problem(f"cannot be read: {error.strerror or error}", path=path)]
        ) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if len(data) > 4 * MAX_CHARACTERS:  # the cut may have split a character
            return data.decode(errors="replace")
        line, column = _place(data[: error.start].decode())
        hint = "save the file as UTF-8"
        raise ConfigError(
            [Problem("not UTF-8 text", path=path, line=line, column=column, hint=hint)]
        ) from None


def parse(text: str, path: Path | str) -> Document:
    """Parse YAML.

    Raises ConfigError on bad syntax, a second document, and nesting deeper than `MAX_DEPTH`.
    Duplicate keys, anchors, aliases, tags, merge keys and keys that are not text are noted in the
    document, and `convert` raises for them.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"too large: more than {MAX_CHARACTERS:,} characters"
        raise ConfigError([Problem(message, path=path, hint="split the file")])
    noted: list[Problem] = []
    problems: list[Problem] = []
    root = None
    try:
        root = _Composer(text, str(path), noted).get_single_node()
    except yaml.reader.ReaderError as error:
        line, column = _place(text[: error.position])
        problems.append(
            Problem(
                f"character U+{ord(text[error.position]):04X} is not allowed",
                path=path,
                line=line,
                column=column,
                hint="remove it",
                source=_line_of(text, error.position - column + 1),
            )
        )
    except yaml.MarkedYAMLError as error:
        problems.append(_syntax_problem(str(path), error))
    except (ValueError, OverflowError):  # PyYAML hands an escape such as \\Uffffffff to chr()
        message = "an escape sequence or a directive in it is not valid YAML"
        problems.append(Problem(message, path=path))
    if problems:
        problems += noted
        raise ConfigError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return Document(str(path), root, tuple(noted))


class _Composer(yaml.SafeLoader):
    """Composes nodes and notes what YAML allows but a file that people review must not have."""

    def __init__(self, text: str, path: str, problems: list[Problem]) -> None:
        super().__init__(text)
        self._path = path
        self._problems = problems
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self._note(event, f"alias *{event.anchor} is not allowed", "repeat the value")
            self.get_event()  # type: ignore[no-untyped-call]
            return _placeholder(event)
        if event.anchor is not None:
            self._note(event, f"anchor &{event.anchor} is not allowed", "remove it")
            event.anchor = None
        if event.tag is not None:
            self._note(event, f"tag {event.tag} is not allowed", "remove it")
            event.tag = None
        if any("\ud800" <= character <= "\udfff" for character in getattr(event, "value", "")):
            self._note(event, "text with half of a surrogate pair is not allowed", "remove it")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        return node

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Note the keys that are traps, and leave them out, so that each is a problem but once."""
        seen: dict[str, int] = {}
        kept = []
        for key, child in node.value:
            if key.tag == INVALID_TAG:
                continue
            if key.tag == f"{YAML_TAG}merge":
                self._note(key, "merge key << is not allowed", "repeat the keys")
            elif not isinstance(key, yaml.ScalarNode):
                self._note(key, "a key must be text", "use a plain word")
            elif key.tag != f"{YAML_TAG}str":
                kind = key.tag.removeprefix(YAML_TAG)
                hint = f'write "{key.value}" in quotes if it is meant as text'
                self._note(key, f"YAML reads the key {key.value!r} as {kind}, not as text", hint)
            elif key.value in seen:
                first = f"first on line {seen[key.value]}"
                self._note(key, f"duplicate key {key.value!r}, {first}", "keep one of them")
            else:
                seen[key.value] = key.start_mark.line + 1
                kept.append((key, child))
        node.value = kept

    def _note(self, where: Any, message: str, hint: str) -> None:
        self._problems.append(problem_at(self._path, where, message, hint))


def _placeholder(event: Any) -> yaml.ScalarNode:
    return yaml.ScalarNode(INVALID_TAG, "", event.start_mark, event.end_mark)


def child_at(node: Any, step: str | int) -> Any:
    """The child at a key or index, or None."""
    if isinstance(node, yaml.MappingNode):
        return next((child for key, child in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _without_value(node: Any, at: At) -> Iterator[At]:
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            yield from _without_value(child, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            yield from _without_value(child, (*at, i))
    elif node is not None and node.tag == f"{YAML_TAG}null":
        yield at


def problem_at(path: str, where: Any, message: str, hint: str) -> Problem:
    """A problem at the start of a node or event; where None is the start of the file."""
    return _problem_at_mark(path, where.start_mark if where else None, message, hint)


def _syntax_problem(path: str, error: yaml.MarkedYAMLError) -> Problem:
    message = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "one document a file" if "single document" in message else ""
    return _problem_at_mark(path, error.problem_mark or error.context_mark, message, hint)


def _problem_at_mark(path: str, mark: yaml.Mark | None, message: str, hint: str) -> Problem:
    line, column, source = 0, 0, ""
    if mark is not None:
        line, column = mark.line, mark.column
        # PyYAML keeps the text with every place in it when it was given a string.
        source = _line_of(mark.buffer or "", mark.pointer - column)
    return Problem(message, path=path, line=line + 1, column=column + 1, hint=hint, source=source)


def _line_of(text: str, start: int) -> str:
    """The line that begins at ``start``."""
    return re.split("[\0\r\n\x85\u2028\u2029]", text[max(start, 0) :], maxsplit=1)[0]


def _place(before: str) -> tuple[int, int]:
    """Line and column, both from 1, of what follows ``before``."""
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
