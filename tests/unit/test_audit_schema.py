from __future__ import annotations

import io
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql

import gateway.audit
from gateway.audit import database, schema
from gateway.audit.sqlite import SqliteFile
from gateway.audit.store import DecisionStore
from gateway.errors import ConfigError

MIGRATIONS = Path(gateway.audit.__file__).parent / "migrations"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = SqliteFile(tmp_path / "decisions.db").connect(1.0, writable=True)
    yield engine
    engine.dispose()


def test_the_migrations_make_exactly_the_schema(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        database.migrate(connection, SqliteFile(Path("x.db")))
        differences = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    assert differences == []


def test_the_schema_knows_its_newest_migration() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == schema.REVISION


def test_migrating_twice_changes_nothing(engine: sa.Engine) -> None:
    dumps = []
    for _ in range(2):
        with engine.begin() as connection:
            database.migrate(connection, SqliteFile(Path("x.db")))
            dumps.append(
                connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()
            )
    assert dumps[0] == dumps[1]


def test_a_migration_that_does_not_reach_its_end_leaves_no_half_of_a_schema(
    engine: sa.Engine,
) -> None:
    def migrate_and_fail() -> None:
        with engine.begin() as connection:
            database.migrate(connection, SqliteFile(Path("x.db")))
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        migrate_and_fail()
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == []


async def test_a_log_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "decisions.db"
    store = await DecisionStore.open(f"sqlite:///{path}")
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match="a newer version wrote the decision log"):
        await DecisionStore.open(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM alembic_version").fetchone() == ("9999",)


def test_migrating_leaves_the_logging_of_the_program_alone(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (root.level, tuple(root.handlers), logging.getLogger("alembic").level)
    with engine.begin() as connection:
        database.migrate(connection, SqliteFile(Path("x.db")))
    assert before == (root.level, tuple(root.handlers), logging.getLogger("alembic").level)
    assert capfd.readouterr() == ("", "")


def test_schema_and_migrations_are_the_same_on_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    wanted = [
        str(sa.schema.CreateTable(table).compile(dialect=dialect))
        for table in schema.metadata.sorted_tables
    ] + [
        str(sa.schema.CreateIndex(index).compile(dialect=dialect))
        for table in schema.metadata.sorted_tables
        for index in table.indexes
    ]
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect=dialect, opts={"as_sql": True, "output_buffer": output}
    )
    with Operations.context(context):
        for script in reversed(list(ScriptDirectory(str(MIGRATIONS)).walk_revisions())):
            script.module.upgrade()
    made = [statement.strip() for statement in output.getvalue().split(";") if statement.strip()]
    assert sorted(_squeezed(wanted)) == sorted(_without_dropped(_squeezed(made)))


def _without_dropped(statements: list[str]) -> list[str]:
    dropped = {words[2] for s in statements if (words := s.split())[:2] == ["DROP", "INDEX"]}
    return [s for s in statements if not dropped & set(s.split()[2:3])]


def _squeezed(statements: list[str]) -> list[str]:
    return [" ".join(statement.split()) for statement in statements]
