"""The chain: what is signed of each record, and how. Knows nothing of databases and files.

Every record that a writer makes durable gets a `Link`: its place in that writer's chain, a digest
of its row, and a code (HMAC-SHA256, RFC 2104) over both and over the code of the link before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from gateway.audit.keys import Key

_DOMAIN = b"draftgate chain 1\n"
"""So that a code made here means nothing anywhere else."""

_encoder = msgspec.json.Encoder()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One record's place in a chain."""

    writer: str
    position: int
    """From 1, without gaps: it, and no clock, is the order of a writer's records."""
    recorded_at: float
    """The writer's clock at the commit, in seconds since the epoch; may jump, even back."""
    table_name: str
    record: str
    """The record's key in its table."""
    size: int
    """Bytes of the row in the form that is digested."""
    digest: str
    """SHA-256 of the row, in hex."""
    key_id: str
    """Which key signed; empty: none did."""
    mac: str = ""

    def code(self, key: Key, previous: str) -> str:
        """What ``mac`` has to be after a link with the code ``previous``, empty for the first."""
        fields = (
            previous,
            self.writer,
            self.position,
            self.recorded_at,
            self.table_name,
            self.record,
            self.size,
            self.digest,
            self.key_id,
        )
        return key.sign(_DOMAIN + _encoder.encode(fields))

    def follows(self, key: Key, previous: str) -> bool:
        """Whether ``mac`` is right after a link with the code ``previous``."""
        return self.code(key, previous) == self.mac


class Head(NamedTuple):
    """The last link of a chain; the zeroth of an empty one."""

    position: int = 0
    mac: str = ""


class Chain:
    """One writer's chain as it grows."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.head = Head()

    def link(
        self, table: sa.Table, record: str, values: Mapping[str, Any], key: Key, at: float
    ) -> Link:
        """Add a record and return its link; the caller puts ``head`` back if that was for nothing."""
        digest, size = digested(table, values)
        bare = Link(
            writer=self.writer,
            position=self.head.position + 1,
            recorded_at=at,
            table_name=str(table.name),
            record=record,
            size=size,
            digest=digest,
            key_id=key.id,
        )
        link = msgspec.structs.replace(bare, mac=bare.code(key, self.head.mac))
        self.head = Head(link.position, link.mac)
        return link


def digested(table: sa.Table, values: Mapping[str, Any]) -> tuple[str, int]:
    """SHA-256 of a row in hex, and how many bytes were digested.

    All columns count, the copies for indexes too, except the number that the database gives to the
    row, and what may be erased. Nulls are left out, so that a migration may add columns; it must not
    fill them in.
    """
    cells = [
        (name, convert(value))
        for name, convert in _columns(table)
        if (value := values.get(name)) is not None
    ]
    text = _encoder.encode((str(table.name), cells))
    return hashlib.sha256(text).hexdigest(), len(text)


@cache
def _columns(table: sa.Table) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """The digested columns in a fixed order, each with the type that every database gives back."""
    return tuple(
        (str(column.name), _conversion(column.type))
        for column in sorted(table.columns, key=lambda column: column.name)
        if column is not table.autoincrement_column and not column.info.get("erasable")
    )


def _conversion(type_: sa.types.TypeEngine[Any]) -> Callable[[Any], Any]:
    if isinstance(type_, sa.Float):
        return float
    return int if isinstance(type_, sa.Integer) else _unchanged


def _unchanged(value: Any) -> Any:
    return value
