"""The tables of the decision log, and how a record becomes a row of one.

The JSON document is the record; the other columns are copies of parts of it, for indexes alone, so
they may be cut or cleaned. Nothing here is peculiar to one database. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.audit import document
from gateway.audit.facets import (
    DECISION_COPIES,
    KEY_LENGTH,
    decision_facets,
    distinct,
    outcome_facets,
)
from gateway.audit.record import (
    Addendum,
    DecisionRecord,
    EvidenceEvent,
    Feedback,
    OutcomeRecord,
    PolicyChange,
    Shadow,
)

REVISION = "0007"
"""The newest migration; a test holds it to the migrations themselves."""

metadata = sa.MetaData()

_Sequence = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_Key = sa.String(KEY_LENGTH)
# Ids are compared and searched by prefix byte by byte, whatever the database's own collation is.
_Id = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("created_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("caller", _Key, nullable=False),
    sa.Column("model", _Key, nullable=False),
    sa.Column("domain", _Key, nullable=True),
    sa.Column("mode", sa.String(16), nullable=False),
    sa.Column("rule", _Key, nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.UniqueConstraint("decision_id", name="uq_decisions_decision_id"),
    sa.Index("ix_decisions_writer", "writer"),
)

outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("finished_at", sa.Double(), nullable=False),
    sa.Column("mode", sa.String(16), nullable=True),
    sa.Column("attestation", sa.String(32), nullable=False),
    sa.Column("finish_reason", sa.String(64), nullable=True),
    sa.Column("document", sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint("decision_id", name="pk_outcomes"),
    sa.ForeignKeyConstraint(
        ["decision_id"], ["decisions.decision_id"], name="fk_outcomes_decision_id"
    ),
)

policy_changes = sa.Table(
    "policy_changes",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("changed_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("policy_hash", sa.String(64), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.Index("ix_policy_changes_policy_hash", "policy_hash"),
)

feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("given_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(
        ["decision_id"], ["decisions.decision_id"], name="fk_feedback_decision_id"
    ),
    sa.Index("ix_feedback_decision_id", "decision_id"),
)

texts = sa.Table(
    "texts",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("captured_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("stored", sa.Integer(), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.Column("ciphertext", sa.Text(), nullable=True, info={"erasable": True}),
    sa.ForeignKeyConstraint(
        ["decision_id"], ["decisions.decision_id"], name="fk_texts_decision_id"
    ),
    sa.UniqueConstraint("decision_id", "kind", name="uq_texts_decision_id"),
)
"""Captured texts. No link covers the ciphertext but by its digest in the document, so that it can go;
``stored`` is how many characters of it there were."""

addenda = sa.Table(
    "addenda",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("added_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(
        ["decision_id"], ["decisions.decision_id"], name="fk_addenda_decision_id"
    ),
    sa.Index("ix_addenda_decision_id", "decision_id"),
    sa.Index("ix_addenda_kind", "kind", "added_at"),
)
"""What is recorded of a request after its end: shadow runs, and who was shown its text."""

evidence_events = sa.Table(
    "evidence_events",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("happened_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("cell", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.Index("ix_evidence_events_cell", "cell", "seq"),
)

evidence_snapshots = sa.Table(
    "evidence_snapshots",
    metadata,
    sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
    sa.Column("saved_at", sa.Double(), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint("number", name="pk_evidence_snapshots"),
)
"""One row: what the outcomes up to a position in each chain add up to. No record: it follows from
them, and is kept so that a start need not read them all."""

writers = sa.Table(
    "writers",
    metadata,
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("started_at", sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint("writer", name="pk_writers"),
)
"""The processes that may have decisions open. A clean close takes its row away; a crash cannot."""


seals = sa.Table(
    "seals",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("created_at", sa.Double(), nullable=False),
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("document", sa.Text(), nullable=False),
    sa.Index("ix_seals_kind", "kind"),
)
"""What writers say in their chains about the log itself."""

chain = sa.Table(
    "chain",
    metadata,
    sa.Column("writer", sa.String(32), nullable=False),
    sa.Column("position", _Sequence, nullable=False, autoincrement=False),
    sa.Column("recorded_at", sa.Double(), nullable=False),
    sa.Column("table_name", sa.String(32), nullable=False),
    sa.Column("record", _Id, nullable=False),
    sa.Column("size", sa.Integer(), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("mac", sa.String(64), nullable=False),
    sa.PrimaryKeyConstraint("writer", "position", name="pk_chain"),
    # Kept in the order of the chain, and only once.
    sqlite_with_rowid=False,
)
"""One link a record. That two processes cannot continue one chain, its key sees to."""

facets = sa.Table(
    "facets",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("decision_id", _Id, nullable=False),
    sa.Column("created_at", sa.Double(), nullable=False),
    sa.Column("request_id", _Key, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("caller", _Key, nullable=False),
    sa.Column("team", _Key, nullable=True),
    sa.Column("model", _Key, nullable=False),
    sa.Column("backend", _Key, nullable=False),
    sa.Column("domain", _Key, nullable=True),
    sa.Column("scores", sa.JSON(), nullable=False),
    sa.Column("mode", sa.String(16), nullable=False),
    sa.Column("rule", _Key, nullable=False),
    sa.Column("policy_hash", _Key, nullable=False),
    sa.Column("streamed", sa.Boolean(), nullable=False),
    sa.Column("denied", sa.Boolean(), nullable=False),
    sa.Column("truncated", sa.Boolean(), nullable=False),
    # From here on null while the request runs.
    sa.Column("executed", sa.String(16), nullable=True),
    sa.Column("verifier_class", sa.String(16), nullable=True),
    sa.Column("attestation", sa.String(32), nullable=True),
    sa.Column("finish_reasons", sa.String(128), nullable=True),
    sa.Column("failed", sa.Boolean(), nullable=True),
    sa.Column("interrupted", sa.Boolean(), nullable=True),
    sa.Column("tightened", sa.Boolean(), nullable=True),
    sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
    sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
    sa.Column("draft_tokens", sa.BigInteger(), nullable=True),
    sa.Column("accepted_tokens", sa.BigInteger(), nullable=True),
    sa.Column("gateway_seconds", sa.Double(), nullable=True),
    sa.Column("first_token_seconds", sa.Double(), nullable=True),
    sa.Column("total_seconds", sa.Double(), nullable=True),
    sa.UniqueConstraint("decision_id", name="uq_facets_decision_id"),
    sa.ForeignKeyConstraint(
        ["decision_id"], ["decisions.decision_id"], name="fk_facets_decision_id", ondelete="CASCADE"
    ),
    sa.Index("ix_facets_created_at", "created_at", "seq"),
    sa.Index("ix_facets_caller", "caller", "created_at", "seq"),
    sa.Index("ix_facets_attestation", "attestation", "created_at"),
)
"""What requests are looked for by: copies of parts of their records, one narrow row a request, so
that a search reads no document. Made by `gateway.audit.facets`, and no part of any chain."""


class Logged(NamedTuple):
    """A table of which every row is a link of a chain: append-only, written by the store alone."""

    table: sa.Table
    key: str
    """The column that names a record. Where the database numbers the rows, rows go in singly."""
    kept: bool = False
    """Whether retention leaves the record when it drops the link: there are few, and later
    records cannot be understood without them."""

    @property
    def is_numbered(self) -> bool:
        """Whether the database gives a row its key."""
        return self.table.c[self.key] is self.table.autoincrement_column


LOGGED: Mapping[str, Logged] = {
    str(logged.table.name): logged
    for logged in (
        Logged(decisions, "decision_id"),
        Logged(outcomes, "decision_id"),
        Logged(policy_changes, "seq", kept=True),
        Logged(feedback, "seq"),
        Logged(texts, "seq"),
        Logged(addenda, "seq"),
        Logged(evidence_events, "seq", kept=True),
        Logged(seals, "seq"),
    )
}
"""By name, and in an order in which rows that refer to others come after them."""


class Row(NamedTuple):
    """One row to insert."""

    table: sa.Table
    values: Mapping[str, Any]
    make: Callable[[sa.Connection], Mapping[str, Any] | None] | None = None
    """Gives further values in the transaction that inserts the row, where the database numbers the
    table's rows; None: there is to be no row."""
    facets: Mapping[str, Any] | None = None
    """What the row adds to the facets of its request."""


_ONLY_ROW = sa.select(sa.table("alembic_version", sa.column("version_num")))


def take_turns(connection: sa.Connection) -> None:
    """Let no other writer that asks for it too go on before this transaction has ended."""
    connection.execute(_ONLY_ROW.with_for_update())


def decision_row(record: DecisionRecord, writer: str) -> Row:
    """The row of a decision record. Raises ValueError when the record cannot be written down."""
    made = decision_facets(record)
    copies = {name: made[name] for name in DECISION_COPIES}
    values = {**copies, "writer": writer, "document": document.encode(record)}
    return Row(decisions, values, facets=made)


def outcome_row(record: OutcomeRecord) -> Row:
    """The row of an outcome record. Raises ValueError when the record cannot be written down."""
    made = outcome_facets(record)
    return Row(
        outcomes,
        {
            "decision_id": record.decision_id,
            "finished_at": record.finished_at,
            "mode": made["executed"],
            "attestation": made["attestation"],
            "finish_reason": distinct(record.finish_reasons) or None,
            "document": document.encode(record),
        },
        facets=made,
    )


def change_row(record: PolicyChange, writer: str) -> Row:
    """The row of a policy change. Raises ValueError when the record cannot be written down."""
    return Row(
        policy_changes,
        {
            "changed_at": record.changed_at,
            "writer": writer,
            "policy_hash": record.policy_hash,
            "document": document.encode(record),
        },
    )


def feedback_row(record: Feedback, writer: str) -> Row:
    """The row of feedback. Raises ValueError when it cannot be written down."""
    return Row(
        feedback,
        {
            "decision_id": record.decision_id,
            "given_at": record.given_at,
            "writer": writer,
            "document": document.encode(record),
        },
    )


def addendum_row(record: Addendum, writer: str) -> Row:
    """The row of an addendum. Raises ValueError when it cannot be written down."""
    return Row(
        addenda,
        {
            "decision_id": record.decision_id,
            "added_at": record.added_at,
            "writer": writer,
            "kind": "shadow" if isinstance(record, Shadow) else "access",
            "document": document.encode(record),
        },
    )


def event_row(record: EvidenceEvent, writer: str) -> Row:
    """The row of an evidence event. Raises ValueError when it cannot be written down.

    There is none where the cell's last event was of the same kind, or a clearing has nothing to
    clear: gateways that share a log meet the same evidence, and each says so.
    """
    cell = record.cell.id

    def is_news(connection: sa.Connection) -> Mapping[str, Any] | None:
        # Two gateways that met the same evidence must not both find it new.
        take_turns(connection)
        query = (
            sa.select(evidence_events.c.kind)
            .where(evidence_events.c.cell == cell)
            .order_by(evidence_events.c.seq.desc())
            .limit(1)
        )
        return None if (connection.scalar(query) or "clearing") == record.kind else {}

    values = {
        "happened_at": record.happened_at,
        "writer": writer,
        "cell": cell,
        "kind": record.kind,
        "document": document.encode(record),
    }
    return Row(evidence_events, values, is_news)
