"""Run by alembic, in process, on the connection and in the transaction of whoever opens the log."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
