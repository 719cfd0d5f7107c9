"""The chain and its seals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. Spelled out: a migration must not change when the schema does."""
    identity = sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql")
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "seals",
        sa.Column("seq", number, primary_key=True, autoincrement=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("ix_seals_kind", "seals", ["kind"])
    op.create_table(
        "chain",
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("position", number, nullable=False, autoincrement=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("table_name", sa.String(32), nullable=False),
        sa.Column("record", identity, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("mac", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("writer", "position", name="pk_chain"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
