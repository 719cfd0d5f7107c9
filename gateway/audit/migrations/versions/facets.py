"""Facets, and no more indexes on the wide rows that they replace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_DROPPED = {
    "decisions": ("created_at", "caller", "model", "domain", "mode", "rule"),
    "outcomes": ("mode", "attestation", "finish_reason"),
}


def upgrade() -> None:
    """Create the table. Spelled out: a migration must not change when the schema does.

    Whoever migrates fills it from the records.
    """
    identity = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    text = sa.String(256)
    op.create_table(
        "facets",
        sa.Column("seq", number, primary_key=True, autoincrement=True),
        sa.Column("decision_id", identity, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("request_id", text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("caller", text, nullable=False),
        sa.Column("team", text, nullable=True),
        sa.Column("model", text, nullable=False),
        sa.Column("backend", text, nullable=False),
        sa.Column("domain", text, nullable=True),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("rule", text, nullable=False),
        sa.Column("policy_hash", text, nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("denied", sa.Boolean(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
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
            ["decision_id"],
            ["decisions.decision_id"],
            name="fk_facets_decision_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_facets_created_at", "facets", ["created_at", "seq"])
    op.create_index("ix_facets_caller", "facets", ["caller", "created_at", "seq"])
    op.create_index("ix_facets_attestation", "facets", ["attestation", "created_at"])
    for table, columns in _DROPPED.items():
        for column in columns:
            op.drop_index(f"ix_{table}_{column}", table)


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
