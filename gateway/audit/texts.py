"""Captured texts as rows: what one says, and whether it is what was recorded. Unlocks nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.audit import document
from gateway.audit.findings import FaultKind
from gateway.audit.record import TextFacts
from gateway.audit.schema import Row, texts


class Captured(NamedTuple):
    """One text, ready to be stored; without a ciphertext where it was dropped."""

    facts: TextFacts
    ciphertext: str | None


def text_row(captured: Captured, writer: str) -> Row:
    """The row of a captured text. Raises ValueError when it cannot be written down."""
    facts, ciphertext = captured
    return Row(
        texts,
        {
            "decision_id": facts.decision_id,
            "kind": facts.kind,
            "captured_at": facts.captured_at,
            "writer": writer,
            "stored": len(ciphertext or ""),
            "document": document.encode(facts),
            "ciphertext": ciphertext,
        },
    )


def ciphertext_digest(ciphertext: str) -> str:
    """SHA-256 of a ciphertext as it is stored, in hex."""
    return hashlib.sha256(ciphertext.encode()).hexdigest()


def bare(table: str, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A row of any table without captured text."""
    if row is None or table != texts.name:
        return row
    return {**row, "ciphertext": None}


def what_is_wrong(row: Mapping[str, Any], *, may_be_gone: bool) -> tuple[FaultKind, str] | None:
    """Why the text in a row, whose record is right, is not what was captured; None: it is."""
    ciphertext = row.get("ciphertext")
    try:
        facts = document.decode_text(row["document"])
    except msgspec.DecodeError as error:
        return FaultKind.TAMPERED, f"its record cannot be read: {error}"
    if ciphertext is not None:
        if ciphertext_digest(ciphertext) == facts.digest:
            return None
        return FaultKind.TAMPERED, "its text is not what was captured"
    if may_be_gone or facts.text_dropped is not None:
        return None
    return FaultKind.REMOVED, "its text is gone, and no seal says that it was erased"
