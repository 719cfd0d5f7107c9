"""What hangs on decisions: feedback, captured texts and addenda, read for many at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import sqlalchemy as sa

from gateway.audit import document
from gateway.audit.record import Access, Feedback, Shadow, TextFacts
from gateway.audit.schema import addenda, feedback, texts
from gateway.errors import AuditUnavailable

Captured = tuple[TextFacts, bool]
"""What is known of a text, and whether it is there."""

_ADDENDA: Mapping[str, Callable[[str], Access | Shadow]] = {
    "shadow": document.decode_shadow,
    "access": document.decode_access,
}


def feedback_of(connection: sa.Connection, ids: Iterable[str]) -> Mapping[str, Sequence[Feedback]]:
    """The feedback on these decisions, in the order in which it was given."""
    query = (
        sa.select(feedback.c.seq, feedback.c.decision_id, feedback.c.document)
        .where(feedback.c.decision_id.in_(ids))
        .order_by(feedback.c.seq)
    )
    found: defaultdict[str, list[Feedback]] = defaultdict(list)
    for seq, decision_id, text in connection.execute(query):
        with readable(f"feedback {seq}"):
            found[decision_id].append(document.decode_feedback(text))
    return found


def texts_of(connection: sa.Connection, ids: Iterable[str]) -> Mapping[str, Sequence[Captured]]:
    """What was captured of these decisions, without the texts."""
    is_there = texts.c.ciphertext.is_not(None)
    query = (
        sa.select(texts.c.seq, texts.c.decision_id, texts.c.document, is_there)
        .where(texts.c.decision_id.in_(ids))
        .order_by(texts.c.seq)
    )
    found: defaultdict[str, list[Captured]] = defaultdict(list)
    for seq, decision_id, text, there in connection.execute(query):
        with readable(f"text {seq}"):
            found[decision_id].append((document.decode_text(text), bool(there)))
    return found


def addenda_of(
    connection: sa.Connection, ids: Iterable[str]
) -> Mapping[str, Sequence[Access | Shadow]]:
    """What was added to these decisions, in order; other kinds than are known here are left out."""
    query = (
        sa.select(addenda.c.seq, addenda.c.decision_id, addenda.c.kind, addenda.c.document)
        .where(addenda.c.decision_id.in_(ids), addenda.c.kind.in_(_ADDENDA))
        .order_by(addenda.c.seq)
    )
    found: defaultdict[str, list[Access | Shadow]] = defaultdict(list)
    for seq, decision_id, kind, text in connection.execute(query):
        with readable(f"addendum {seq}"):
            found[decision_id].append(_ADDENDA[kind](text))
    return found


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raises AuditUnavailable for a document that cannot be read."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise AuditUnavailable(f"{what} of the log is damaged: {error}") from error
