"""Seals: what a writer says in its own chain about the log. Knows nothing of databases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.audit.chain import Head
from gateway.audit.keys import Key
from gateway.audit.schema import Row, seals


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first word of a writer, about all that was there before it."""

    heads: Mapping[str, Head]
    """Where other chains ended: those that grew since an earlier opening spoke of them."""
    adopted: Mapping[str, int] = {}
    """Records by table that were in the log before it had chains, and are in this one now."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """A key introduces the one that signs from here on. It signs this itself."""

    to_key: str
    check: str
    """What the new key makes of its id: says which secret has that name."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the writer's chain is."""

    position: int
    """Of the link before this one."""
    head: str
    """The code of that link."""


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """The last word of a writer: nothing of it may follow."""

    position: int
    head: str


class Kept(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A record that outlives its link."""

    table: str
    record: str
    digest: str


class Pruning(msgspec.Struct, frozen=True, kw_only=True):
    """What retention dropped. The newest one holds all that is needed of the earlier ones."""

    cuts: Mapping[str, Head]
    """Of each writer the last link that is gone, with all before it."""
    along: tuple[tuple[str, str], ...]
    """Table and key of records that are gone although their links are still there: the other
    record of a request whose decision or outcome was dropped."""
    kept: tuple[Kept, ...]
    writer: str
    """Whose links were dropped this time."""
    dropped: Mapping[str, int]
    """How many links by table, this time."""
    first_at: float
    last_at: float
    """Seconds since the epoch: when the first and the last of them were recorded."""
    erased: tuple[str, ...] = ()
    """The decisions in the log whose texts were erased, by erasures that are gone."""


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """Captured texts are gone; their records are not."""

    decision_ids: tuple[str, ...]
    by: str
    """A caller's id, or who ran the command."""
    reason: str
    caller: str | None = None
    """Whose texts were erased, where all of a caller's were."""


Seal = Opening | Handover | Checkpoint | Closing | Pruning | Erasure
_KINDS: Mapping[str, type[Seal]] = {
    "opening": Opening,
    "handover": Handover,
    "checkpoint": Checkpoint,
    "closing": Closing,
    "pruning": Pruning,
    "erasure": Erasure,
}
_NAMES = {type_: name for name, type_ in _KINDS.items()}


def seal_row(seal: Seal, writer: str, at: float) -> Row:
    """The row of a seal."""
    values = {
        "writer": writer,
        "created_at": at,
        "kind": kind_of(type(seal)),
        "document": text_of(seal),
    }
    return Row(seals, values)


def kind_of(type_: type[Seal]) -> str:
    """What the column ``kind`` says of seals of this type."""
    return _NAMES[type_]


def text_of(seal: Seal) -> str:
    """The document of a seal."""
    return msgspec.json.encode(seal).decode()


def read_seal(row: Mapping[str, Any]) -> Seal | None:
    """The seal in a row; None where it is none that this version knows."""
    try:
        return msgspec.json.decode(row["document"], type=_KINDS[row["kind"]])
    except (KeyError, msgspec.DecodeError, ValueError, TypeError):
        return None


def handover(to: Key) -> Handover:
    """What an earlier key says of the key ``to``."""
    return Handover(to_key=to.id, check=to.sign(b"draftgate handover\n" + to.id.encode()))
