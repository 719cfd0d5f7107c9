"""Policy changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Spelled out: a migration must not change when the schema does."""
    op.create_table(
        "policy_changes",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("writer", sa.String(32), nullable=False),
        sa.Column("policy_hash", sa.String(64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
    )
    op.create_index("ix_policy_changes_policy_hash", "policy_changes", ["policy_hash"])


def downgrade() -> None:
    """Refuse: going back would delete the log."""
    raise NotImplementedError("the decision log is never taken back; restore a copy instead")
