"""Walks the chains link by link, and tells by how a link fails what was done to the log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from gateway.audit.chain import Link, digested
from gateway.audit.claims import Claims
from gateway.audit.findings import Fault, FaultKind, Findings
from gateway.audit.holdings import Held, Values
from gateway.audit.keys import Keyring
from gateway.audit.schema import LOGGED, texts
from gateway.audit.seals import Closing, read_seal
from gateway.audit.texts import what_is_wrong

REACH = 32
"""How many links around a bad one are looked at to tell what happened."""

_replace = msgspec.structs.replace


class Progress:
    """How far one chain is."""

    def __init__(self, first: int, previous: str | None) -> None:
        self.expected = first
        self.previous = previous
        """The code of the link before; None where that link is not there to ask."""
        self.verified = 0
        self.is_closed = False
        self.is_foreign = False
        """No link of it was made with the key of its id."""
        self.recent: dict[int, tuple[str | None, str]] = {}
        """Position → the code before it and its own, of the last few."""
        self.early: dict[int, Held] = {}
        """What came before its turn."""
        self.last_at = float("-inf")

    def move(self, link: Link) -> None:
        """Go past ``link``."""
        self.recent[link.position] = (self.previous, link.mac)
        self.recent.pop(link.position - REACH, None)
        self.expected, self.previous = link.position + 1, link.mac


class Walk:
    """One walk over all chains."""

    def __init__(
        self, keys: Keyring, claims: Claims, findings: Findings, *, has_texts: bool = True
    ) -> None:
        """``has_texts``: whether captured texts are held where they are not erased."""
        self._has_texts = has_texts
        self._keys = keys
        self._claims = claims
        self._findings = findings
        self.chains: dict[str, Progress] = {}
        self.records = Counter[str]()
        self.keys = Counter[str]()
        self.unsigned: dict[str, tuple[int, int]] = {}
        """Writer → first and last position without a signature."""
        self.proved: set[str] = set()
        """Ids of keys that made some code right."""
        self.foreign: list[Fault] = []
        """One a chain of which no code is right; what it means can be told at the end."""
        self.jumps = 0
        """How often a writer's clock was behind its earlier record."""
        self.first_at: float | None = None
        self.last_at: float | None = None
        self._unknown: set[str] = set()

    def over(self, held: Iterator[Held]) -> Iterator[None]:
        """Walk; gives something for every link, to show how far it is."""
        ahead: deque[Held] = deque()
        for item in held:
            ahead.append(item)
            if len(ahead) > REACH:
                self._meet(ahead.popleft(), ahead)
                yield
        while ahead:
            self._meet(ahead.popleft(), ahead)
            yield

    def _meet(self, held: Held, ahead: Sequence[Held]) -> None:
        link = held.link
        chain = self.chains.get(link.writer) or self._begin(link)
        self._count(link, chain)
        if link.position < chain.expected:
            self._repeated(link, chain)
        elif link.position > chain.expected and any(
            other.position == chain.expected for other in _following(link, ahead)
        ):
            self._fault(FaultKind.REORDERED, link, f"it comes before link {chain.expected}")
            chain.early[link.position] = held
        else:
            self._in_turn(held, chain, ahead)
            while (early := chain.early.pop(chain.expected, None)) is not None:
                chain.move(early.link)

    def _begin(self, link: Link) -> Progress:
        chain = Progress(1, "")
        if link.position > 1:
            previous = self._claims.cuts.get(link.writer, {}).get(link.position - 1)
            if previous is None:
                detail = f"links 1 to {link.position - 1} before it are gone, and no seal says so"
                self._fault(FaultKind.REMOVED, link, detail)
            chain = Progress(link.position, previous)
        self.chains[link.writer] = chain
        return chain

    def _count(self, link: Link, chain: Progress) -> None:
        self.records[link.table_name] += 1
        self.keys[link.key_id] += 1
        if not link.key_id:
            first, _ = self.unsigned.get(link.writer, (link.position, 0))
            self.unsigned[link.writer] = (first, link.position)
        at = link.recorded_at
        self.jumps += at < chain.last_at
        chain.last_at = at
        self.first_at = at if self.first_at is None else min(at, self.first_at)
        self.last_at = at if self.last_at is None else max(at, self.last_at)

    def _repeated(self, link: Link, chain: Progress) -> None:
        """A position that was there before."""
        before = chain.recent.get(link.position)
        key = self._keys.get(link.key_id)
        if before is not None and link.mac == before[1]:
            self._fault(FaultKind.INSERTED, link, "it is there twice")
        elif before is not None and before[0] is not None and key and link.follows(key, before[0]):
            self._fault(FaultKind.FORKED, link, "two links, both genuine, have this position")
        else:
            self._fault(FaultKind.INSERTED, link, "another link has this position")

    def _in_turn(self, held: Held, chain: Progress, ahead: Sequence[Held]) -> None:
        link = held.link
        if link.position > chain.expected:
            gone = f"links {chain.expected} to {link.position - 1} before it are gone"
            self._fault(FaultKind.REMOVED, link, gone)
            chain.expected, chain.previous = link.position, None
        is_good = self._check_code(link, chain, ahead)
        if is_good and chain.is_closed:
            self._fault(FaultKind.INSERTED, link, "its writer had closed the chain before")
            is_good = False
        if (
            is_good
            and self._check_row(held)
            and held.row is not None
            and link.table_name == "seals"
        ):
            chain.is_closed = isinstance(read_seal(held.row), Closing)
        claim = self._claims.seen.get(link.writer, {}).get(link.position)
        if claim is not None and claim.mac != link.mac and is_good:
            detail = f"{claim.source} saw another link at this position"
            self._fault(FaultKind.FORKED, link, detail)
        chain.move(link)

    def _check_code(self, link: Link, chain: Progress, ahead: Sequence[Held]) -> bool:
        key = self._keys.get(link.key_id)
        if key is None:
            self._unknown_key(link)
            return True
        if chain.previous is None or chain.is_foreign:
            return True
        if link.follows(key, chain.previous):
            chain.verified += 1
            self.proved.add(link.key_id)
            return True
        following = _following(link, ahead)
        kind, detail = self._what_happened(link, chain.previous, following)
        if kind is None:
            if not chain.verified and not self._any_right(link, following):
                chain.is_foreign = True
                self.foreign.append(self._describe(FaultKind.WRONG_KEY, link, ""))
                return False
            kind, detail = FaultKind.TAMPERED, "its code does not fit it, or not the link before it"
        self._fault(kind, link, detail)
        return False

    def _unknown_key(self, link: Link) -> None:
        if link.key_id in self._unknown:
            return
        self._unknown.add(link.key_id)
        if self._keys:
            detail = f"the key {link.key_id!r} is not among those given"
            self._fault(FaultKind.UNKNOWN_KEY, link, detail)
        else:
            detail = f"signed with the key {link.key_id!r}, and no key is given"
            self._fault(FaultKind.MISSING_KEY, link, detail)

    def _what_happened(
        self, link: Link, previous: str, following: Sequence[Link]
    ) -> tuple[FaultKind | None, str]:
        """What can be told from the links around one whose code is wrong."""
        before = link.mac
        for other in following:
            key = self._keys.get(other.key_id)
            if key is None:
                continue
            fitting = _replace(other, position=link.position).code(key, previous)
            there = f"what belongs here is at position {other.position}"
            if fitting == link.mac:
                return FaultKind.REORDERED, there
            if fitting == other.mac:
                last = other.mac if other.position == link.position + 1 else before
                swapped = _replace(link, position=other.position).follows(key, last)
                return (FaultKind.REORDERED if swapped else FaultKind.INSERTED), there
            before = other.mac
        if following and (key := self._keys.get(following[0].key_id)) is not None:
            after = following[0]
            for gone in range(1, REACH):
                if _replace(after, position=after.position + gone).follows(key, link.mac):
                    return FaultKind.REMOVED, f"{gone} before it are gone, the rest was renumbered"
        return None, ""

    def _any_right(self, link: Link, following: Sequence[Link]) -> bool:
        """Whether any of the next links has a right code after the one before it."""
        return any(
            (key := self._keys.get(after.key_id)) is not None and after.follows(key, before.mac)
            for before, after in pairwise((link, *following))
        )

    def _check_row(self, held: Held) -> bool:
        link, row = held
        logged = LOGGED.get(link.table_name)
        if logged is None:
            detail = f"there is no table {link.table_name!r} in this version"
        elif row is None:
            if (link.table_name, link.record) in self._claims.along:
                return True
            self._fault(FaultKind.REMOVED, link, "its record is gone")
            return False
        elif digested(logged.table, row) == (link.digest, link.size):
            return logged.table is not texts or self._check_text(link, row)
        else:
            detail = "its record is not what was recorded"
        self._fault(FaultKind.TAMPERED, link, detail)
        return False

    def _check_text(self, link: Link, row: Values) -> bool:
        may_be_gone = not self._has_texts or row["decision_id"] in self._claims.erased
        fault = what_is_wrong(row, may_be_gone=may_be_gone)
        if fault is not None:
            self._fault(fault[0], link, fault[1])
        return fault is None

    def _fault(self, kind: FaultKind, link: Link, detail: str) -> None:
        self._findings.add(self._describe(kind, link, detail))

    @staticmethod
    def _describe(kind: FaultKind, link: Link, detail: str) -> Fault:
        return Fault(
            kind=kind,
            detail=detail,
            writer=link.writer,
            position=link.position,
            table=link.table_name,
            record=link.record,
            recorded_at=link.recorded_at,
        )


def _following(link: Link, ahead: Sequence[Held]) -> Sequence[Link]:
    """The next links of the same chain, as far as one looks ahead."""
    return [other.link for other in ahead if other.link.writer == link.writer]
