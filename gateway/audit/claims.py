"""What seals and anchor say of the chains, gathered before the chains are walked.

A seal that was forged or changed is a fault by itself when its own link is reached, so that what
it says may be believed until then. That of chains without a key is not, where there are keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.audit.anchor import Anchored
from gateway.audit.chain import Head, digested
from gateway.audit.findings import Fault, FaultKind, Findings
from gateway.audit.holdings import Values
from gateway.audit.keys import Keyring
from gateway.audit.schema import seals
from gateway.audit.seals import Erasure, Handover, Opening, Pruning, Seal, read_seal


class Claim(NamedTuple):
    """Somebody saw a link of a chain."""

    mac: str
    source: str
    is_signed: bool


class Claims:
    """All that was said."""

    def __init__(self, is_signed: bool) -> None:
        self._is_signed = is_signed
        self.seen: dict[str, dict[int, Claim]] = {}
        """Writer → position → what was seen there."""
        self.cuts: dict[str, dict[int, str]] = {}
        """Writer → last position that retention dropped → its code."""
        self.along: set[tuple[str, str]] = set()
        self.kept: dict[tuple[str, str], str] = {}
        """Table and key → digest."""
        self.handovers: dict[str, str] = {}
        """Key id → the check that another key gave of it."""
        self.dropped: dict[tuple[str, int], int] = {}
        self.erased: set[str] = set()
        """Decisions whose texts may be gone."""

    def hear(self, seal: Seal | None, writer: str, key_id: str) -> None:
        """Take in what a seal says."""
        believed = bool(key_id) or not self._is_signed
        if isinstance(seal, Opening):
            for other, head in seal.heads.items():
                source = f"the opening of {writer}"
                self._saw(other, head, Claim(head.mac, source, bool(key_id)))
        elif isinstance(seal, Pruning) and believed:
            for other, cut in seal.cuts.items():
                self.cuts.setdefault(other, {})[cut.position] = cut.mac
            self.along.update(seal.along)
            self.kept.update({(kept.table, kept.record): kept.digest for kept in seal.kept})
            through = seal.cuts[seal.writer].position if seal.writer in seal.cuts else 0
            self.dropped[seal.writer, through] = sum(seal.dropped.values())
            self.erased.update(seal.erased)
        elif isinstance(seal, Erasure) and believed:
            self.erased.update(seal.decision_ids)
        elif isinstance(seal, Handover) and believed:
            self.handovers[seal.to_key] = seal.check

    def saw_anchored(self, line: Anchored) -> None:
        """Take in a line of the anchor that was found to be genuine."""
        link = line.link
        claim = Claim(link.mac, "the anchor", bool(link.key_id))
        self._saw(link.writer, Head(link.position, link.mac), claim)
        self.hear(read_seal(line.row), link.writer, link.key_id)

    def is_dropped(self, writer: str, position: int) -> bool:
        """Whether retention dropped that link."""
        return position <= max(self.cuts.get(writer, {}), default=0)

    def _saw(self, writer: str, head: Head, claim: Claim) -> None:
        seen = self.seen.setdefault(writer, {})
        if head.position not in seen or claim.is_signed:
            seen[head.position] = claim


def gather(
    rows: Iterable[Values],
    anchor: Iterable[Anchored | None],
    keys: Keyring,
    findings: Findings,
) -> tuple[Claims, int]:
    """What the seals of a log and its anchor say, and how many lines of the anchor are genuine."""
    said = [(read_seal(row), str(row["writer"]), str(row["key_id"])) for row in rows]
    claims = Claims(is_signed=bool(keys) or any(key_id for _, _, key_id in said))
    for seal, writer, key_id in said:
        claims.hear(seal, writer, key_id)
    genuine = 0
    for line in _genuine(anchor, keys, findings):
        claims.saw_anchored(line)
        genuine += 1
    return claims, genuine


def _genuine(
    anchor: Iterable[Anchored | None], keys: Keyring, findings: Findings
) -> Iterator[Anchored]:
    for number, line in enumerate(anchor, 1):
        if line is None:
            detail = f"line {number} of the anchor cannot be read"
            findings.add(Fault(kind=FaultKind.TAMPERED, detail=detail))
            continue
        key = keys.get(line.link.key_id)
        if key is None:
            continue  # said of the log's own records
        has_row = digested(seals, line.row) == (line.link.digest, line.link.size)
        if has_row and line.link.follows(key, line.previous):
            yield line
            continue
        findings.add(
            Fault(
                kind=FaultKind.TAMPERED,
                detail=f"line {number} of the anchor was changed, or signed with another key",
                writer=line.link.writer,
                position=line.link.position,
            )
        )
