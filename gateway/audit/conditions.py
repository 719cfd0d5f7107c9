"""`Filters` as conditions on the facets of requests, in any database."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa

from gateway.audit.facets import key
from gateway.audit.filters import Filters, Likely
from gateway.audit.schema import facets, feedback
from gateway.errors import InvalidRequest

Condition = sa.ColumnElement[bool]

_has_feedback = sa.exists().where(feedback.c.decision_id == facets.c.decision_id)
_FLAGS: Mapping[str, Condition] = {
    "attestation_failed": facets.c.attestation == "attestation_failed",
    "tightened": facets.c.tightened.is_(True),
    "interrupted": facets.c.interrupted.is_(True),
    "error": facets.c.failed.is_(True),
    "lossy": facets.c.verifier_class == "lossy",
    "truncated": facets.c.truncated.is_(True),
    "denied": facets.c.denied.is_(True),
    "feedback": _has_feedback,
    "streamed": facets.c.streamed.is_(True),
    "open": facets.c.attestation.is_(None),
}
# A text column is no JSON to PostgreSQL before it is told; SQLite would make a number of it.
_JSON = sa.JSON().with_variant(sa.Text(), "sqlite")


def conditions(filters: Filters) -> Sequence[Condition]:
    """What holds of the facets of an entry that meets ``filters``. Raises InvalidRequest."""
    found = list(_times(filters))
    for name, column in _EQUAL.items():
        wanted = getattr(filters, name)
        if wanted is not None:
            found.append(column == key(wanted))
    if filters.domain is not None:
        found.append(_domain(filters.domain))
    if filters.policy is not None:
        found.append(facets.c.policy_hash.startswith(key(filters.policy), autoescape=True))
    if filters.finish is not None:
        found.append(facets.c.finish_reasons.contains(f",{filters.finish.value},"))
    found += [_FLAGS[flag] for flag in filters.flags]
    if filters.text is not None:
        found.append(sa.or_(*(match(key(filters.text)) for match in MATCHES)))
    return found


def _times(filters: Filters) -> Iterator[Condition]:
    for name in ("since", "until"):
        if not math.isfinite(getattr(filters, name) or 0.0):
            raise InvalidRequest(f"{name} must be a finite number of seconds", param=name)
    if filters.since is not None:
        yield facets.c.created_at >= filters.since
    if filters.until is not None:
        yield facets.c.created_at < filters.until


_EQUAL = {
    "caller": facets.c.caller,
    "team": facets.c.team,
    "mode": facets.c.mode,
    "executed": facets.c.executed,
    "rule": facets.c.rule,
    "model": facets.c.model,
    "backend": facets.c.backend,
    "verifier": facets.c.verifier_class,
}


def _domain(wanted: str | Likely) -> Condition:
    if isinstance(wanted, str):
        return facets.c.domain == key(wanted)
    probability: sa.ColumnElement[float] = facets.c.scores[wanted.domain].as_float()
    return probability >= wanted.probability


def _ids(text: str) -> Condition:
    columns = (facets.c.decision_id, facets.c.request_id, facets.c.digest)
    return sa.or_(*(column.startswith(text, autoescape=True) for column in columns))


def _names(text: str) -> Condition:
    return sa.or_(*(c.icontains(text, autoescape=True) for c in (facets.c.caller, facets.c.rule)))


def _notes(text: str) -> Condition:
    note = sa.cast(feedback.c.document, _JSON)["note"].as_string()
    return facets.c.decision_id.in_(
        sa.select(feedback.c.decision_id).where(note.icontains(text, autoescape=True))
    )


MATCHES: tuple[Callable[[str], Condition], ...] = (_ids, _names, _notes)
"""Where a text is looked for; a table with more to search adds one function."""
