"""What a verification finds. Knows nothing of how it is found."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

MAX_FAULTS = 100
"""How many faults are described; all are counted."""


class FaultKind(StrEnum):
    """What is wrong with a record."""

    TAMPERED = "tampered"
    """Not what was recorded."""
    TRUNCATED = "truncated"
    """The end of a chain is gone."""
    REMOVED = "removed"
    """Records are gone from elsewhere, without a seal that says so."""
    REORDERED = "reordered"
    INSERTED = "inserted"
    """The log's writers did not write it, or not there."""
    FORKED = "forked"
    """One chain has two histories."""
    MISSING_KEY = "missing_key"
    """The records are signed, and no key was given."""
    UNKNOWN_KEY = "unknown_key"
    """Signed with a key that is not among those given."""
    WRONG_KEY = "wrong_key"
    """The key that was given under this id is not the one that signed."""
    NOT_SIGNED = "not_signed"
    """No key signed them: whoever can write the database can have written them."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and the record at which it shows."""

    kind: FaultKind
    detail: str
    writer: str = ""
    position: int | None = None
    table: str = ""
    record: str = ""
    recorded_at: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and all that was found."""

    verified: bool
    """Whether every record is what its writer wrote, and none is missing as far as can be told."""
    records: Mapping[str, int]
    """By table."""
    chains: int
    keys: Mapping[str, int]
    """Records by the id of the key that signed them; the empty id: by none."""
    anchored: int
    """Lines of the anchor that agreed with the log."""
    dropped: int
    """Records that retention dropped, by what its seals say."""
    first_at: float | None
    last_at: float | None
    fault_count: int
    faults: tuple[Fault, ...]
    """The first ones, in the order of the chains; the very first is the first bad record."""
    notes: tuple[str, ...]
    """What an auditor should know, although it is no fault."""


class Findings:
    """Faults and notes as they come up."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.count = 0
        self.notes: list[str] = []

    def add(self, fault: Fault) -> None:
        """Note a fault."""
        self.count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)
