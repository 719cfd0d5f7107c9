"""Captured texts on the command line: shown with a record of who saw them, and erased."""

from __future__ import annotations

import asyncio
import time

from gateway.archive import erasure_reason, open_texts
from gateway.audit.erasure import Erased, Wanted
from gateway.audit.query import DecisionReader
from gateway.audit.record import Access
from gateway.audit.vault import open_vault
from gateway.cli.ledger import open_store
from gateway.config import AuditConfig
from gateway.credentials import text_secrets


def captured_texts(decision_id: str, url: str, audit: AuditConfig, *, by: str) -> dict[str, str]:
    """The captured texts of a request by kind; that they were read is on record before.

    Raises TextLocked, ConfigError, AuditUnavailable.
    """
    access = Access(decision_id=decision_id, added_at=time.time(), by=by, through="command")

    async def run() -> dict[str, str]:
        reader = await DecisionReader.open(url)
        store = await open_store(url, audit)
        try:
            return dict(await open_texts(reader, store, open_vault(text_secrets(audit)), access))
        finally:
            await store.aclose()
            await reader.aclose()

    return asyncio.run(run())


def erase_texts(
    url: str,
    audit: AuditConfig,
    *,
    by: str,
    reason: str,
    caller: str | None,
    before: float | None,
    decision_id: str | None,
) -> Erased:
    """Erase what is wanted. Raises InvalidRequest without a reason, ConfigError, AuditUnavailable."""
    wanted = Wanted(
        by=by,
        reason=erasure_reason(reason),
        caller=caller,
        before=before,
        decision_id=decision_id,
    )

    async def run() -> Erased:
        store = await open_store(url, audit)
        try:
            return await store.erase(wanted)
        finally:
            await store.aclose()

    return asyncio.run(run())
