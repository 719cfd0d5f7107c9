"""A PostgreSQL server that stops and comes back, with a gateway in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.audit.holdings import open_holdings
from gateway.audit.keys import Key, Keyring
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify
from gateway.errors import AuditUnavailable, ConfigError
from tests.databases import PostgresqlServer
from tests.records import decision_record, outcome_record

KEYS = Keyring([Key("k", b"k" * 32)])


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresqlServer]:
    """Not the one that other tests use at the same time."""
    server = PostgresqlServer(f"{os.getpid()}-away")
    yield server
    with suppress(RuntimeError):
        server.stop()


async def test_requests_are_refused_while_the_server_is_away_and_taken_when_it_is_back(
    own_server: PostgresqlServer,
) -> None:
    url = own_server.database().url
    store = await DecisionStore.open(url, keys=KEYS)
    await store.append_decision(decision_record(1))
    await store.append_decision(decision_record(2))

    await asyncio.to_thread(own_server.server.stop)
    with pytest.raises(AuditUnavailable, match="cannot be written"):
        await store.append_decision(decision_record(3))
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        await DecisionStore.open(url, keys=KEYS)
    await asyncio.to_thread(own_server.server.start)

    await store.append_outcome(outcome_record(1))
    await store.append_decision(decision_record(4))
    # It is alive again for others as well: its open decisions are left alone.
    second = await DecisionStore.open(url, keys=KEYS)
    assert second.interrupted == 0
    await second.aclose()
    await store.append_outcome(outcome_record(4))
    await store.aclose()

    third = await DecisionStore.open(url, keys=KEYS)
    assert third.interrupted == 1
    await third.aclose()
    with open_holdings(url) as holdings:
        report = verify(holdings, KEYS)
    assert report.verified, report.faults
    assert report.records["decisions"] == report.records["outcomes"] == 3


async def test_a_wrong_database_is_a_configuration_error_and_shows_no_password(
    own_server: PostgresqlServer,
) -> None:
    url = own_server.database().url.replace("postgres:@", "postgres:secret@")
    name = url.partition("?")[0].rpartition("/")[2]
    with pytest.raises((ConfigError, AuditUnavailable), match="does not exist") as caught:
        await DecisionStore.open(url.replace(name, "nowhere"))
    assert "secret" not in str(caught.value)
