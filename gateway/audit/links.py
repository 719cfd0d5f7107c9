"""The links of one request's records: where they stand in their chains, and whether they fit there.

A look at two links and a row each. That no record is missing, `verification` alone can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from gateway.audit.chain import Link, digested
from gateway.audit.keys import UNSIGNED, Keyring
from gateway.audit.schema import chain, decisions, outcomes

LinkState = Literal["verified", "unsigned", "unchecked", "changed"]
_TABLES = {str(table.name): table for table in (decisions, outcomes)}
_LINKS = sa.select(*(chain.c[name] for name in Link.__struct_fields__))


class RecordLink(msgspec.Struct, frozen=True, kw_only=True):
    """The link of one record."""

    table: str
    writer: str
    position: int
    recorded_at: float
    """Seconds since the epoch, UTC."""
    key_id: str
    """Which key signed; empty: none did."""
    state: LinkState
    """``verified``: its key signed this record, after the link before it. ``unsigned``: it fits, and
    no key vouches for it. ``unchecked``: the record fits, its key or the link before is not here.
    ``changed``: the record or its link is not what was written."""


def links_of(connection: sa.Connection, decision_id: str, keys: Keyring) -> tuple[RecordLink, ...]:
    """The links of the decision and of its outcome, where they have one."""
    query = _LINKS.where(chain.c.record == decision_id, chain.c.table_name.in_(_TABLES))
    found = [Link(**row._mapping) for row in connection.execute(query)]
    return tuple(
        RecordLink(
            table=link.table_name,
            writer=link.writer,
            position=link.position,
            recorded_at=link.recorded_at,
            key_id=link.key_id,
            state=_state(link, _row(connection, link), _code_before(connection, link), keys),
        )
        for link in sorted(found, key=lambda link: link.recorded_at)
    )


def _state(
    link: Link, row: Mapping[str, Any] | None, previous: str | None, keys: Keyring
) -> LinkState:
    if row is None or digested(_TABLES[link.table_name], row)[0] != link.digest:
        return "changed"
    key = keys.get(link.key_id)
    if key is None or previous is None:
        return "unchecked"
    if not link.follows(key, previous):
        return "changed"
    return "unsigned" if key is UNSIGNED else "verified"


def _row(connection: sa.Connection, link: Link) -> Mapping[str, Any] | None:
    table = _TABLES[link.table_name]
    row = connection.execute(sa.select(table).where(table.c.decision_id == link.record)).first()
    return None if row is None else row._asdict()


def _code_before(connection: sa.Connection, link: Link) -> str | None:
    """None where retention has dropped the link before."""
    if link.position == 1:
        return ""
    query = sa.select(chain.c.mac).where(
        chain.c.writer == link.writer, chain.c.position == link.position - 1
    )
    code: str | None = connection.scalar(query)
    return code
