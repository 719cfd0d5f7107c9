"""Captured texts, and what is recorded of a request after its end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. Spelled out: a migration must not change when the schema does."""
    identity = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "texts",
        sa.Column("seq", number, primary_key=True, autoincrement=True),
        sa.Column("decision_id", identity, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("captured_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("stored", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("ciphertext", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decisions.decision_id"], name="fk_texts_decision_id"
        ),
        sa.UniqueConstraint("decision_id", "kind", name="uq_texts_decision_id"),
    )
    op.create_table(
        "addenda",
        sa.Column("seq", number, primary_key=True, autoincrement=True),
        sa.Column("decision_id", identity, nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decisions.decision_id"], name="fk_addenda_decision_id"
        ),
    )
    op.create_index("ix_addenda_decision_id", "addenda", ["decision_id"])
    op.create_index("ix_addenda_kind", "addenda", ["kind", "added_at"])


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
