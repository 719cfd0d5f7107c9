"""Decisions, outcomes and writers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the three tables. Spelled out: a migration must not change when the schema does."""
    identity = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    op.create_table(
        "decisions",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("decision_id", identity, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("caller", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("domain", sa.String(256), nullable=True),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("rule", sa.String(256), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.UniqueConstraint("decision_id", name="uq_decisions_decision_id"),
    )
    op.create_index("ix_decisions_created_at", "decisions", ["created_at"])
    op.create_index("ix_decisions_writer", "decisions", ["writer"])
    for column in ("caller", "model", "domain", "mode", "rule"):
        op.create_index(f"ix_decisions_{column}", "decisions", [column, "created_at"])
    op.create_table(
        "outcomes",
        sa.Column("decision_id", identity, nullable=False),
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
    for column in ("mode", "attestation", "finish_reason"):
        op.create_index(f"ix_outcomes_{column}", "outcomes", [column])
    op.create_table(
        "writers",
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("writer", name="pk_writers"),
    )


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
