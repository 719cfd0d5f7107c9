"""Evidence."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. Spelled out: a migration must not change when the schema does."""
    op.create_table(
        "evidence_events",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("happened_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("cell", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("ix_evidence_events_cell", "evidence_events", ["cell", "seq"])
    op.create_table(
        "evidence_snapshots",
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_evidence_snapshots"),
    )


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
