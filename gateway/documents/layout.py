"""`laid_out`: a document in its one canonical layout, with every comment kept.

Two spaces a level, keys in the order of the struct's fields, one space after a colon, no more than
one blank line. Values stay as they are written; a value over several lines is moved, not rewrapped.
A comment goes with the key or entry below it, or, at the end of a mapping or list, with that.
"""

from __future__ import annotations

import builtins
import re
import types
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from gateway.documents.conversion import convert
from gateway.documents.document import Document, parse
from gateway.errors import ConfigError, Problem

T = TypeVar("T")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
Lines = list[str]


def laid_out(text: str, path: Path | str, type: type[T]) -> str:
    """The text in canonical layout. Raises ConfigError when it is no valid ``type``.

    Also when it could not be laid out without a change to what it says or to its comments; that is
    checked each time, for a lost comment is a lost reason.
    """
    document = parse(text, path)
    value = convert(document, type)
    if document.root is None:
        return text
    result = _Layout(text, document).render(type)
    before, after = _comments(text), _comments(result)
    if convert(parse(result, path), type) != value or Counter(
        comment for _, comment in before.values()
    ) != Counter(comment for _, comment in after.values()):
        raise ConfigError([Problem("its layout cannot be changed safely", path=path)])
    return result


def _comments(text: str) -> dict[int, tuple[int, str]]:
    """Line → column and text of its comment. What stands between tokens is space or comment."""
    found: dict[int, tuple[int, str]] = {}
    end = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        gap = text[end : token.start_mark.index]
        for match in re.finditer(r"#[^\r\n\x85\u2028\u2029]*", gap):
            before = text[: end + match.start()]
            breaks = list(_BREAK.finditer(before))
            column = len(before) - (breaks[-1].end() if breaks else 0)
            found[len(breaks)] = (column, match[0].rstrip())
        end = max(end, token.end_mark.index)
    return found


class _Layout:
    """Renders nodes from the lines that they were written in."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._root = document.root
        self._lines = _BREAK.split(text)
        self._comments = _comments(text)
        self._dashes = [
            token.start_mark
            for token in yaml.scan(text, Loader=yaml.SafeLoader)
            if isinstance(token, yaml.BlockEntryToken)
        ]

    def render(self, type: Any) -> str:
        if self._root.flow_style:
            lines = [self._inline(self._root, type)]
        else:
            lines, _ = self._mapping(self._root, type, 0, 0, len(self._lines), -1)
        text = "\n".join(line.rstrip() if not line.strip() else line for line in lines)
        return re.sub("\n{3,}", "\n\n", text).strip("\n") + "\n"

    def _block(
        self, node: Any, type: Any, indent: int, start: int, end: int, outside: int
    ) -> tuple[Lines, int]:
        """The lines of a block collection and of the comments at its end.

        ``start`` and ``end`` are the lines that it may take comments from; ``outside`` is the column
        of what it is in. Returns also the first line that it has not taken.
        """
        render = self._mapping if isinstance(node, yaml.MappingNode) else self._sequence
        return render(node, type, indent, start, end, outside)

    def _mapping(
        self, node: Any, type: Any, indent: int, start: int, end: int, outside: int
    ) -> tuple[Lines, int]:
        chunks: list[tuple[str, Lines, Lines]] = []
        position = start
        for i, (key, value) in enumerate(node.value):
            later = node.value[i + 1 :]
            limit = later[0][0].start_mark.line if later else end
            lead = self._between(position, key.start_mark.line, indent)
            body, position = self._entry(key, value, _field_type(type, key.value), indent, limit)
            chunks.append((key.value, lead, body))
        header: Lines = []
        if outside < 0:  # what stands above a file's first key is about the file
            name, header, body = chunks[0]
            chunks[0] = (name, [], body)
        order = _key_order(type)
        chunks.sort(key=lambda chunk: order.get(chunk[0], len(order)))
        lines = [line for _, lead, body in chunks for line in (*lead, *body)]
        tail, position = self._tail(position, end, node.start_mark.column, outside, indent)
        return header + lines + tail, position

    def _sequence(
        self, node: Any, type: Any, indent: int, start: int, end: int, outside: int
    ) -> tuple[Lines, int]:
        lines: Lines = []
        position, inner = start, _entry_type(type)
        dashes = [self._dash(child) for child in node.value]
        for i, child in enumerate(node.value):
            limit = dashes[i + 1].line if i + 1 < len(dashes) else end
            lines += self._between(position, dashes[i].line, indent)
            item, position = self._item(child, inner, dashes[i], indent, limit)
            lines += item
        tail, position = self._tail(position, end, node.start_mark.column, outside, indent)
        return lines + tail, position

    def _item(
        self, node: Any, type: Any, dash: yaml.Mark, indent: int, limit: int
    ) -> tuple[Lines, int]:
        lead: Lines = []
        if node.start_mark.line > dash.line and dash.line in self._comments:
            lead = [" " * indent + self._comments[dash.line][1]]
        if isinstance(node, yaml.ScalarNode) or node.flow_style:
            prefix = f"{' ' * indent}- "
            above = self._between(dash.line + 1, node.start_mark.line, indent)
            lines, position = self._value(node, type, prefix, indent - dash.column)
            return lead + above + lines, position
        start = dash.line + (node.start_mark.line > dash.line)
        lines, position = self._block(node, type, indent + 2, start, limit, dash.column)
        # A comment above what is now the first key stands above the dash.
        first = next(i for i, line in enumerate(lines) if line.strip() and line.strip()[0] != "#")
        above = [" " * indent + line.strip() for line in lines[:first] if line.strip()]
        lines = [f"{' ' * indent}- {lines[first].strip()}", *lines[first + 1 :]]
        return lead + above + lines, position

    def _entry(self, key: Any, value: Any, type: Any, indent: int, limit: int) -> tuple[Lines, int]:
        line = key.start_mark.line
        written = " " * indent + self._source(key)
        if isinstance(value, yaml.ScalarNode) or value.flow_style:
            above = self._between(line + 1, value.start_mark.line, indent)
            if value.start_mark.line > line and line in self._comments:
                above = [" " * indent + self._comments[line][1], *above]
            shift = indent - key.start_mark.column
            lines, position = self._value(value, type, f"{written}: ", shift)
            return above + lines, position
        head = f"{written}:"
        if line in self._comments:
            head += f"  {self._comments[line][1]}"
        lines, position = self._block(
            value, type, indent + 2, line + 1, limit, key.start_mark.column
        )
        return [head, *lines], position

    def _value(self, node: Any, type: Any, prefix: str, shift: int) -> tuple[Lines, int]:
        """A scalar or flow collection after its key or dash, and the line after it."""
        first, last = node.start_mark.line, self._last_line(node)
        if first == last:
            text = prefix + self._inline(node, type)
            if last in self._comments and self._comments[last][0] > node.start_mark.column:
                text += f"  {self._comments[last][1]}"
            return [text], last + 1
        lines = [prefix + self._lines[first][node.start_mark.column :]]
        for line in self._lines[first + 1 : last + 1]:
            space = len(line) - len(line.lstrip(" "))
            lines.append(" " * max(0, space + shift) + line[space:] if line.strip() else line)
        return lines, last + 1

    def _last_line(self, node: Any) -> int:
        last: int = node.end_mark.line
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            last -= node.end_mark.column == 0
            while last > node.start_mark.line and not self._lines[last].strip():
                last -= 1
        return last

    def _inline(self, node: Any, type: Any) -> str:
        if isinstance(node, yaml.ScalarNode):
            return self._source(node)
        if isinstance(node, yaml.SequenceNode):
            return f"[{', '.join(self._inline(child, _entry_type(type)) for child in node.value)}]"
        order = _key_order(type)
        pairs = sorted(node.value, key=lambda pair: order.get(pair[0].value, len(order)))
        written = (
            f"{self._source(key)}: {self._inline(value, _field_type(type, key.value))}"
            for key, value in pairs
        )
        return f"{{{', '.join(written)}}}"

    def _source(self, node: Any) -> str:
        return self._text[node.start_mark.index : node.end_mark.index].strip()

    def _dash(self, node: Any) -> yaml.Mark:
        before = (mark for mark in self._dashes if mark.index < node.start_mark.index)
        last: yaml.Mark = max(before, key=lambda mark: mark.index)
        return last

    def _between(self, start: int, end: int, indent: int) -> Lines:
        """The comments and blank lines from one line up to another."""
        lines = []
        for line in range(start, end):
            if line in self._comments:
                lines.append(" " * indent + self._comments[line][1])
            elif not self._lines[line].strip():
                lines.append("")
        return lines

    def _tail(
        self, start: int, end: int, column: int, outside: int, indent: int
    ) -> tuple[Lines, int]:
        """The comments at the end of a collection: those that are indented as far as it is."""
        last = start
        for line in range(start, end):
            if line in self._comments:
                if self._comments[line][0] < column or self._comments[line][0] <= outside:
                    break
                last = line + 1
        return self._between(start, last, indent), last


def _members(type: Any) -> tuple[Any, ...]:
    """The types that a value of this type may have, without what is only said about them."""
    origin = get_origin(type)
    if origin is Annotated:
        return _members(get_args(type)[0])
    if origin in (Union, types.UnionType):
        return tuple(inner for member in get_args(type) for inner in _members(member))
    return (type,)


def _struct(type: Any) -> Any:
    return next(
        (
            m
            for m in _members(type)
            if isinstance(m, builtins.type) and issubclass(m, msgspec.Struct)
        ),
        None,
    )


def _key_order(type: Any) -> dict[str, int]:
    struct = _struct(type)
    if struct is None:
        return {}
    names = (field.encode_name for field in msgspec.structs.fields(struct))
    return {name: i for i, name in enumerate(dict.fromkeys((*_written_first(struct), *names)))}


def _written_first(struct: Any) -> tuple[str, ...]:
    """Keys that a struct wants first although it inherits others before them."""
    first: tuple[str, ...] = getattr(struct, "written_first", ())
    return first


def _field_type(type: Any, key: str) -> Any:
    struct = _struct(type)
    if struct is not None:
        return next(f.type for f in msgspec.structs.fields(struct) if f.encode_name == key)
    return next((get_args(m)[1] for m in _members(type) if len(get_args(m)) == 2), None)


def _entry_type(type: Any) -> Any:
    return next((get_args(m)[0] for m in _members(type) if get_args(m)), None)
