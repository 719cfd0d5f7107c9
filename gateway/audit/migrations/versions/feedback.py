"""Feedback."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Spelled out: a migration must not change when the schema does."""
    op.create_table(
        "feedback",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column(
            "decision_id",
            sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("given_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decisions.decision_id"], name="fk_feedback_decision_id"
        ),
    )
    op.create_index("ix_feedback_decision_id", "feedback", ["decision_id"])


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
