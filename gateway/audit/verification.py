"""Verifies a log: every record is what its writer wrote, in that order, and none is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from gateway.audit.anchor import Anchored
from gateway.audit.chain import digested
from gateway.audit.claims import Claims, gather
from gateway.audit.findings import Fault, FaultKind, Findings, Report
from gateway.audit.holdings import Holdings, Stray
from gateway.audit.keys import Key, Keyring
from gateway.audit.schema import LOGGED
from gateway.audit.seals import handover
from gateway.audit.walk import Walk


def verify(
    holdings: Holdings,
    keys: Keyring,
    *,
    anchor: Iterable[Anchored | None] | None = None,
    allow_unsigned: bool = False,
    has_texts: bool = True,
    found: Iterable[Fault] = (),
    advance: Callable[[], object] = lambda: None,
) -> Report:
    """Read the whole log and report what is wrong with it; in memory are ids of what was erased.

    ``allow_unsigned``: a log that no key signed is no fault by itself; one that some did, is.
    ``has_texts``: a captured text that is gone, and that no seal says was erased, is a fault.
    ``found`` are faults of whatever holds the log. ``advance`` is called after every link.
    """
    findings = Findings()
    for fault in found:
        findings.add(fault)
    claims, genuine = gather(holdings.seals(), anchor or (), keys, findings)
    walk = Walk(keys, claims, findings, has_texts=has_texts)
    for _ in walk.over(holdings.links()):
        advance()
    for fault in _foreign(walk):
        findings.add(fault)
    for fault in _strays(holdings.strays(), claims):
        findings.add(fault)
    for fault in _missing_ends(walk, claims):
        findings.add(fault)
    for fault in _not_signed(walk, claims, allow_unsigned):
        findings.add(fault)
    _check_handovers(claims, keys, findings)
    findings.notes += _notes(walk, claims, keys, has_anchor=anchor is not None)
    return Report(
        verified=not findings.count,
        records=dict(walk.records),
        chains=len(walk.chains),
        keys=dict(walk.keys),
        anchored=genuine,
        dropped=sum(claims.dropped.values()),
        first_at=walk.first_at,
        last_at=walk.last_at,
        fault_count=findings.count,
        faults=tuple(findings.faults),
        notes=tuple(findings.notes),
    )


def _foreign(walk: Walk) -> Iterator[Fault]:
    """What chains with not one right code are: somebody else's, or ours under another key."""
    if walk.proved - {""}:
        detail = "no link of this chain was made with the key that it names"
        for fault in walk.foreign:
            yield msgspec.structs.replace(fault, kind=FaultKind.INSERTED, detail=detail)
    elif walk.foreign:
        names = ", ".join(repr(key_id) for key_id in sorted(set(walk.keys) - {""})) or "no key"
        detail = f"not one link fits the key given: is it the one that signed ({names})?"
        yield msgspec.structs.replace(walk.foreign[0], detail=detail)


def _strays(strays: Iterable[Stray], claims: Claims) -> Iterator[Fault]:
    missing = dict(claims.kept)
    for stray in strays:
        kept = missing.pop((stray.table_name, stray.record), None)
        digest, _ = digested(LOGGED[stray.table_name].table, stray.row)
        if kept is None:
            kind, detail = FaultKind.INSERTED, "no chain has this record"
        elif kept != digest:
            kind, detail = FaultKind.TAMPERED, "it is not what retention kept"
        else:
            continue
        yield Fault(kind=kind, detail=detail, table=stray.table_name, record=stray.record)
    for table, record in missing:
        detail = "retention kept it, and it is gone"
        yield Fault(kind=FaultKind.REMOVED, detail=detail, table=table, record=record)


def _missing_ends(walk: Walk, claims: Claims) -> Iterator[Fault]:
    """Links that were seen and are not there."""
    for writer, seen in claims.seen.items():
        position = max(seen)
        chain = walk.chains.get(writer)
        if claims.is_dropped(writer, position):
            continue
        if chain is None:
            detail = f"the whole chain is gone; {seen[position].source} saw link {position} of it"
            yield Fault(kind=FaultKind.REMOVED, detail=detail, writer=writer, position=1)
        elif chain.expected <= position:
            detail = f"the chain ends here; {seen[position].source} saw link {position} of it"
            yield Fault(
                kind=FaultKind.TRUNCATED, detail=detail, writer=writer, position=chain.expected
            )


def _not_signed(walk: Walk, claims: Claims, allow_unsigned: bool) -> Iterator[Fault]:
    """Unsigned records, except those that a signed opening later vouched for."""
    is_signed = any(key_id for key_id in walk.keys)
    for writer, (first, last) in walk.unsigned.items():
        seen = claims.seen.get(writer, {})
        vouched = max((at for at, claim in seen.items() if claim.is_signed), default=0)
        if vouched >= last or (allow_unsigned and not is_signed):
            continue
        detail = f"no key signed links {max(first, vouched + 1)} to {last} of this chain"
        position = max(first, vouched + 1)
        yield Fault(kind=FaultKind.NOT_SIGNED, detail=detail, writer=writer, position=position)


def _check_handovers(claims: Claims, keys: Keyring, findings: Findings) -> None:
    for key_id, check in claims.handovers.items():
        key: Key | None = keys.get(key_id)
        if key is not None and handover(key).check != check:
            detail = f"the key given as {key_id!r} is not the one that an earlier key introduced"
            findings.add(Fault(kind=FaultKind.WRONG_KEY, detail=detail))


def _notes(walk: Walk, claims: Claims, keys: Keyring, *, has_anchor: bool) -> Iterator[str]:
    signed = [key_id for key_id in walk.keys if key_id]
    if walk.keys and not signed:
        yield (
            "Not signed: the chain shows accidents, and nothing of an adversary who can write "
            "the database."
        )
    elif walk.unsigned and signed:
        count = walk.keys[""]
        yield f"{count} records were not signed when they were recorded, only what followed was."
    introduced = [key_id for key_id in signed if key_id not in claims.handovers]
    if len(introduced) > 1:
        names = ", ".join(map(repr, introduced))
        yield f"No key introduced all but one of these keys: {names}."
    still_open = [
        writer
        for writer, chain in walk.chains.items()
        if not chain.is_closed and chain.expected - 1 not in claims.seen.get(writer, {})
    ]
    if still_open:
        what = "1 chain is" if len(still_open) == 1 else f"{len(still_open)} chains are"
        yield f"{what} not closed: the writer runs, was killed, or the end was cut off."
    if not has_anchor:
        yield "No anchor was given: whether the end of the newest chain was cut off cannot be told."
    if walk.jumps:
        yield f"The clock went back {walk.jumps} times; the order of records is that of the chain."
    if claims.erased:
        yield f"The texts of {len(claims.erased)} requests were erased, as seals say."
    if claims.dropped:
        yield f"Retention dropped {sum(claims.dropped.values())} records, as its seals say."
