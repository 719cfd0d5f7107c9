"""Problems that each file shows as it is written, whether or not it makes sense as a whole.

Names that nobody obeys, ids used twice, keys without a value: read from the documents themselves, so
that they are reported together with whatever else is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from gateway.documents import At, Document, suggestion
from gateway.errors import Problem
from gateway.routing.schema import RESERVED_IDS
from gateway.types import Mode


class Known(msgspec.Struct, frozen=True):
    """The names that a policy may use, because something is there to obey them."""

    verifiers: Collection[str]
    draft_sources: Collection[str]
    backends: Collection[str] | None = None
    """None: unchecked."""


def misnamed(documents: Sequence[Document], known: Known) -> Iterator[Problem]:
    """The problems of all files of one policy."""
    for document in documents:
        yield from _empty_values(document)
        yield from _unknown_names(document, known)
    yield from _repeated_ids(documents)


def _empty_values(document: Document) -> Iterator[Problem]:
    """An empty ``when`` would match every request: nobody may get that by commenting lines out."""
    for at in document.without_value():
        hint = "give a value or remove the key"
        yield document.problem("nothing is given here", at, key=True, hint=hint)


def _rules(document: Document) -> Iterator[At]:
    return (("rules", i) for i in range(document.length(("rules",))))


def _unknown_names(document: Document, known: Known) -> Iterator[Problem]:
    blocks: list[At] = [(name,) for name in RESERVED_IDS]
    for at in (*blocks, *((*rule, "decide") for rule in _rules(document))):
        given: list[tuple[str, At, Collection[str] | None]] = [
            ("verifier", (*at, "verifier"), known.verifiers),
            ("backend", (*at, "backend"), known.backends),
        ]
        if document.has(at) and document.word((*at, "mode")) != Mode.STANDARD:
            given.append(("draft source", (*at, "draft", "source"), known.draft_sources))
        for what, where, names in given:
            name = document.word(where) or ("suffix" if what == "draft source" else None)
            if name is not None and names is not None and name not in names:
                hint = suggestion(name, names)
                yield document.problem(f"unknown {what} {name!r}", where, hint=hint)


def _repeated_ids(documents: Sequence[Document]) -> Iterator[Problem]:
    seen: set[str] = set()
    for document in documents:
        for rule in _rules(document):
            at = (*rule, "id")
            name = document.word(at)
            if name is not None and name in seen:
                yield document.problem(f"a rule {name!r} is already there", at, hint="rename it")
            seen.add(name or "")
