"""The log as one file, with its chains, so that it can be verified by itself or brought back.

JSON lines, or Parquet where pyarrow is installed. Believes what it reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gateway.audit.chain import Link
from gateway.audit.findings import Fault, FaultKind
from gateway.audit.holdings import Held, Holdings, Stray, Values
from gateway.audit.keys import Keyring
from gateway.audit.texts import bare
from gateway.errors import ConfigError, Problem

FORMAT = 1
_DOMAIN = b"draftgate archive 1\n"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row, and its link; None where it has none, or where the row is gone."""

    table: str
    record: str
    link: Link | None
    row: Mapping[str, Any] | None


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="end", tag="draftgate"):
    """What is said last, so that a file that was cut off shows."""

    format: int
    links: int
    strays: int
    key_id: str
    mac: str = ""
    texts: bool = False
    """Whether captured texts are in the file, locked as they were."""

    def code(self, keys: Keyring) -> str | None:
        """What ``mac`` has to be; None where the key is not there."""
        key = keys.get(self.key_id)
        said = (self.format, self.links, self.strays, self.key_id)
        counts = msgspec.json.encode((*said, True) if self.texts else said)
        return None if key is None else key.sign(_DOMAIN + counts)


class Sink(Protocol):
    """A file that is being written."""

    def write(self, line: Line) -> None:
        """Add a line."""
        ...

    def finish(self, end: End) -> None:
        """Write the end."""
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class Source(Protocol):
    """A file that was written."""

    def lines(self) -> Iterator[Line | None]:
        """The lines, from the first; None for one that cannot be read."""
        ...

    def end(self) -> End | None:
        """What is said last; None where nothing is."""
        ...


class JsonSink:
    """A `Sink` of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, line: Line) -> None:
        """See `Sink`."""
        self._file.write(msgspec.json.encode(line) + b"\n")

    def finish(self, end: End) -> None:
        """See `Sink`."""
        self._file.write(msgspec.json.encode(end) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


class JsonSource:
    """A `Source` of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> Iterator[Line | None]:
        """See `Source`."""
        with self._path.open("rb") as file:
            for text in file:
                try:
                    yield msgspec.json.decode(text, type=Line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    if end_of(text) is None:
                        yield None

    def end(self) -> End | None:
        """See `Source`."""
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            return end_of(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])


def end_of(text: bytes) -> End | None:
    """The end that a file tells of itself; None where this is none."""
    try:
        return msgspec.json.decode(text, type=End)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class FileHoldings:
    """`Holdings` in a file."""

    def __init__(self, source: Source, *, texts: bool = True) -> None:
        """``texts``: whether to take captured texts from it, if they are there."""
        self._source = source
        end = source.end()
        self.has_texts = texts and end is not None and end.texts
        """Whether captured texts are held where they are not erased."""

    def count(self) -> int:
        """How many links there are, by what the file says."""
        end = self._source.end()
        return 0 if end is None else end.links

    def seals(self) -> Iterator[Values]:
        """See `Holdings`."""
        for line in self._lines():
            if line.table == "seals" and line.row is not None and "writer" in line.row:
                yield {**line.row, "key_id": line.link.key_id if line.link is not None else ""}

    def links(self) -> Iterator[Held]:
        """See `Holdings`."""
        for line in self._lines():
            if line.link is not None:
                yield Held(line.link, line.row if self.has_texts else bare(line.table, line.row))

    def strays(self) -> Iterator[Stray]:
        """See `Holdings`."""
        for line in self._lines():
            if line.link is None and line.row is not None:
                yield Stray(line.table, line.record, line.row)

    def faults(self, keys: Keyring) -> Iterator[Fault]:
        """What is wrong with the file, whatever it holds."""
        links = strays = 0
        for number, line in enumerate(self._source.lines(), 1):
            if line is None:
                detail = f"line {number} of the file cannot be read"
                yield Fault(kind=FaultKind.TAMPERED, detail=detail)
            elif line.link is not None:
                links += 1
            else:
                strays += 1
        end = self._source.end()
        if end is None:
            yield Fault(kind=FaultKind.TRUNCATED, detail="the file has no end: it was cut off")
        elif (code := end.code(keys)) is not None and code != end.mac:
            detail = "the end of the file was changed, or signed with another key"
            yield Fault(kind=FaultKind.TAMPERED, detail=detail)
        elif (links, strays) != (end.links, end.strays):
            detail = f"the file has {links} links and {strays} other records, and says that it has "
            detail += f"{end.links} and {end.strays}"
            is_short = links + strays < end.links + end.strays
            kind = FaultKind.REMOVED if is_short else FaultKind.INSERTED
            yield Fault(kind=kind, detail=detail)

    def _lines(self) -> Iterator[Line]:
        return (line for line in self._source.lines() if line is not None)


def write_archive(
    holdings: Holdings, sink: Sink, keys: Keyring, *, texts: bool = False
) -> Iterator[None]:
    """Write a whole log; gives something for every line, to show how far it is.

    ``texts``: whether to write captured texts too, locked as they are.
    """
    links = strays = 0
    for link, row in holdings.links():
        row = row if texts else bare(link.table_name, row)
        sink.write(Line(table=link.table_name, record=link.record, link=link, row=row))
        links += 1
        yield
    for name, record, values in holdings.strays():
        row = values if texts else bare(name, values)
        sink.write(Line(table=name, record=record, link=None, row=row))
        strays += 1
        yield
    end = End(format=FORMAT, links=links, strays=strays, key_id=keys.signing.id, texts=texts)
    sink.finish(msgspec.structs.replace(end, mac=end.code(keys)))


def open_source(path: Path) -> Source:
    """The file at ``path``, whatever its format. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise ConfigError(
            [Problem(f"cannot be read: {error.strerror or error}", path=path)]
        ) from error
    if not is_parquet:
        return JsonSource(path)
    from gateway.audit.parquet import ParquetSource

    return ParquetSource(path)


def open_sink(path: Path, format: str) -> Sink:
    """A new file in the format ``jsonl`` or ``parquet``. Raises ConfigError."""
    try:
        if format == "jsonl":
            return JsonSink(path)
        from gateway.audit.parquet import ParquetSink

        return ParquetSink(path)
    except OSError as error:
        raise ConfigError(
            [Problem(f"cannot be written: {error.strerror or error}", path=path)]
        ) from error
