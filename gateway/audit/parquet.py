"""The log as a Parquet file: the columns of the chain, and the row as JSON text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.audit.archive import End, Line, end_of
from gateway.audit.chain import Link
from gateway.errors import ConfigError, Problem

try:
    import pyarrow as pa
    from pyarrow import parquet as pq
except ImportError as error:
    raise ConfigError(
        [
            Problem(
                "Parquet files need pyarrow, which is not installed",
                path="parquet",
                hint="pip install 'draftgate[parquet]', or use --format jsonl",
            )
        ]
    ) from error

_ROWS = 1000
_END = "draftgate"
_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("record", pa.string()),
        ("writer", pa.string()),
        ("position", pa.int64()),
        ("recorded_at", pa.float64()),
        ("size", pa.int32()),
        ("digest", pa.string()),
        ("key_id", pa.string()),
        ("mac", pa.string()),
        ("row", pa.string()),
    ]
)
_LINK = ("writer", "position", "recorded_at", "size", "digest", "key_id", "mac")


class ParquetSink:
    """See `gateway.audit.archive.Sink`."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        self._rows: list[dict[str, object]] = []

    def write(self, line: Line) -> None:
        """See `Sink`."""
        row = None if line.row is None else msgspec.json.encode(line.row).decode()
        link = {} if line.link is None else {name: getattr(line.link, name) for name in _LINK}
        self._rows.append({"table": line.table, "record": line.record, **link, "row": row})
        if len(self._rows) >= _ROWS:
            self._flush()

    def finish(self, end: End) -> None:
        """See `Sink`."""
        self._flush()
        self._writer.add_key_value_metadata({_END: msgspec.json.encode(end).decode()})

    def close(self) -> None:
        """See `Sink`."""
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=_SCHEMA))
        self._rows = []


class ParquetSource:
    """See `gateway.audit.archive.Source`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is not whole."""
        self._path = path
        try:
            with pq.ParquetFile(path) as file:
                self._metadata = file.metadata.metadata or {}
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(
                [Problem(f"this is no whole Parquet file: {error}", path=path)]
            ) from error

    def lines(self) -> Iterator[Line | None]:
        """See `Source`."""
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                for cells in batch.to_pylist():
                    yield _line(cells)

    def end(self) -> End | None:
        """See `Source`."""
        text = self._metadata.get(_END.encode())
        return None if text is None else end_of(text)


def _line(cells: dict[str, object]) -> Line | None:
    try:
        fields: dict[str, object] = {"table": cells["table"], "record": cells["record"]}
        fields["link"] = None
        if cells["writer"] is not None:
            link = {name: cells[name] for name in _LINK}
            link |= {"table_name": cells["table"], "record": cells["record"]}
            fields["link"] = msgspec.convert(link, Link)
        row = cells["row"]
        fields["row"] = msgspec.json.decode(row) if isinstance(row, str) else None
        return msgspec.convert(fields, Line)
    except (KeyError, msgspec.DecodeError):
        return None
