"""Labelled requests read from JSON-lines files. Knows nothing of features or models."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS, ChatRequest, Message

_MAX_PROBLEMS = 20


class Turn(msgspec.Struct, frozen=True):
    """One message of a labelled conversation."""

    content: str
    role: str = "user"


class Row(msgspec.Struct, frozen=True):
    """One labelled request. Other fields of a line are ignored."""

    text: str
    domains: tuple[str, ...]
    messages: tuple[Turn, ...] = ()
    source: str = ""
    """Where it comes from: rows of one source are kept together when scores are calibrated."""
    lang: str = ""
    slice: str = ""
    """The kind of case it stands for, such as ``near-miss``; figures are also given by slice."""
    license: str = ""
    id: str = ""

    def texts(self) -> tuple[str, ...]:
        """The messages, or the text alone when there are none."""
        return tuple(turn.content for turn in self.messages) or (self.text,)

    def roles(self) -> tuple[str, ...]:
        """Of the texts."""
        return tuple(turn.role for turn in self.messages) or ("user",)

    @property
    def family(self) -> str:
        """The source without its part: ``MMLU`` of ``MMLU:anatomy``. Figures are given by it."""
        return self.source.partition(":")[0]

    def request(self) -> ChatRequest:
        """The row as a request of its own."""
        turns = self.messages or (Turn(self.text),)
        messages = tuple(Message(turn.role, turn.content) for turn in turns)
        return ChatRequest(model="", messages=messages)


def labels_of(rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    """Which row belongs to which domain, shape (rows, domains)."""
    labels = [[domain in row.domains for domain in DOMAINS] for row in rows]
    return np.array(labels, dtype=np.bool_).reshape(len(labels), len(DOMAINS))


class Corpus(msgspec.Struct, frozen=True):
    """Rows of one source."""

    source: str
    license: str
    rows: int


def read_rows(paths: Sequence[Path]) -> tuple[Row, ...]:
    """All rows of some files in order. Raises ConfigError with every bad line as file:line."""
    rows: list[Row] = []
    problems: list[Problem] = []
    for path in paths:
        before = len(rows) + len(problems)
        try:
            _read_file(path, rows, problems)
        except OSError as error:
            problems.append(Problem(f"cannot read: {error.strerror}", path=path))
        if len(rows) + len(problems) == before:
            problems.append(Problem("no rows", path=path, hint="one JSON object a line"))
    if problems:
        shown, hidden = problems[:_MAX_PROBLEMS], problems[_MAX_PROBLEMS:]
        if hidden:
            shown.append(Problem(f"and {len(hidden)} more bad lines", path=hidden[-1].path))
        raise ConfigError(shown)
    return tuple(rows)


def corpora(rows: Sequence[Row]) -> tuple[Corpus, ...]:
    """How many rows there are of each family of sources and licence, most first."""
    counts = Counter((row.family or "not said", row.license or "not said") for row in rows)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Corpus(source, license_, count) for (source, license_), count in ordered)


def _read_file(path: Path, rows: list[Row], problems: list[Problem]) -> None:
    decoder = msgspec.json.Decoder(Row)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                problems.append(Problem(str(error), path=path, line=number, column=1, hint=_SHAPE))
                continue
            if problem := _fault(row):
                problems.append(Problem(problem, path=path, line=number, column=1))
            else:
                rows.append(row)


_SHAPE = 'a row is {"text": "...", "domains": ["code"]}'


def _fault(row: Row) -> str | None:
    if not any(text.strip() for text in row.texts()):
        return "the text is empty"
    unknown = [domain for domain in row.domains if domain not in DOMAINS]
    if not unknown:
        return None
    close = difflib.get_close_matches(unknown[0], DOMAINS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(DOMAINS)}"
    return f"unknown domain {unknown[0]!r}; {hint}"
