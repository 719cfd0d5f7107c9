"""`Sources`: the files that make up one policy, read, converted and put together.

A single file is a set of one. Every problem keeps its own file, line and column. Compiles nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway import documents
from gateway.documents import At, Document
from gateway.errors import ConfigError, Problem
from gateway.routing.layers import SET_FILE, SetEntry, TighteningEntry
from gateway.routing.names import Known, misnamed
from gateway.routing.schema import RESERVED_IDS, PolicyEntry, RuleEntry

T = TypeVar("T")
Read = Callable[[Path], str]


class PolicyFile(msgspec.Struct, frozen=True):
    """One file as it was read."""

    path: str
    text: str

    @property
    def hash(self) -> str:
        """SHA-256 of its bytes, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Sources(msgspec.Struct, frozen=True):
    """All files of one policy, as one entry whose parts know where they were written."""

    files: tuple[PolicyFile, ...]
    """The set's own file or the only policy first, then in the order of the set."""
    entry: PolicyEntry
    """The rules of all policies in order, and each block from the file that gives it."""
    policies: tuple[tuple[Document, PolicyEntry], ...]
    layers: tuple[tuple[Document, TighteningEntry], ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 in hex: of a single file's bytes; of a set, of what ``sha256sum`` prints for its
        files, named relative to the folder."""
        first, *others = self.files
        if not others:
            return first.hash
        folder = Path(first.path).parent
        lines = (
            f"{file.hash}  {Path(file.path).relative_to(folder).as_posix()}\n"
            for file in self.files
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def problem(self, message: str, at: At, *, hint: str = "") -> Problem:
        """A problem at a place of `entry`, in the file that it was written in."""
        document, inner = self._locate(at)
        return document.problem(message, inner, hint=hint)

    @property
    def documents(self) -> tuple[Document, ...]:
        """Those that have rules, in order."""
        layers = tuple(document for document, _ in self.layers)
        return tuple(document for document, _ in self.policies) + layers

    def ordered(self, problems: Iterator[Problem]) -> list[Problem]:
        """Problems in the order of the files, and of the lines in each."""
        order = {file.path: i for i, file in enumerate(self.files)}
        return sorted(problems, key=lambda p: (order.get(p.path, 0), p.line, p.column))

    def _locate(self, at: At) -> tuple[Document, At]:
        if at and at[0] == "rules" and len(at) > 1 and isinstance(at[1], int):
            index = at[1]
            for document, entry in self.policies:
                if index < len(entry.rules):
                    return document, ("rules", index, *at[2:])
                index -= len(entry.rules)
        for document, _ in self.policies:
            if at and document.has(at[:1]):
                return document, at
        return self.policies[0][0], at


def gather(text: str, path: Path, read: Read, known: Known) -> Sources:
    """The policy in ``text``, and the files that it lists if ``path`` is that of a set.

    Raises ConfigError with the problems of all files that can be read.
    """
    file = PolicyFile(str(path), text)
    reading = _Reading(read, known)
    if path.name != SET_FILE:
        entry = reading.convert(file, PolicyEntry)
        reading.finish()
        return Sources((file,), entry[0][1], tuple(entry))
    document = documents.parse(text, path)
    index = documents.convert(document, SetEntry)
    policies = reading.listed(document, "policies", index.policies, PolicyEntry)
    layers = reading.listed(document, "tighten", index.tighten, TighteningEntry)
    reading.problems += _given_twice(policies)
    reading.finish()
    files = (file, *reading.files)
    return Sources(files, _merged(index.name, policies), tuple(policies), tuple(layers))


class _Reading:
    """Reads the files of one policy and gathers what is wrong with them."""

    def __init__(self, read: Read, known: Known) -> None:
        self.files: list[PolicyFile] = []
        self.problems: list[Problem] = []
        self._documents: list[Document] = []
        self._read = read
        self._known = known

    def convert(self, file: PolicyFile, kind: type[T]) -> list[tuple[Document, T]]:
        """The file as ``kind``; nothing when it has problems, which are noted."""
        try:
            document = documents.parse(file.text, file.path)
            self._documents.append(document)
            return [(document, documents.convert(document, kind))]
        except ConfigError as error:
            self.problems += error.problems
            return []

    def listed(
        self, index: Document, key: str, names: tuple[str, ...], kind: type[T]
    ) -> list[tuple[Document, T]]:
        """The files that a set lists, without those that have problems."""
        found: list[tuple[Document, T]] = []
        for i, name in enumerate(names):
            path = Path(index.path).parent / name
            try:
                file = PolicyFile(str(path), self._read(path))
            except ConfigError as error:
                self.problems += (
                    _where_listed(problem, index, (key, i), name) for problem in error.problems
                )
            else:
                self.files.append(file)
                found += self.convert(file, kind)
        return found

    def finish(self) -> None:
        """Raise ConfigError for all that was noted, in the order of the files."""
        if not self.problems:
            return
        places = {(p.path, p.line, p.column) for p in self.problems}
        others = misnamed(self._documents, self._known)
        self.problems += (p for p in others if (p.path, p.line, p.column) not in places)
        order = {file.path: i for i, file in enumerate(self.files)}
        self.problems.sort(key=lambda p: (order.get(p.path, -1), p.line, p.column))
        raise ConfigError(self.problems)


def _where_listed(problem: Problem, index: Document, at: At, name: str) -> Problem:
    """A file that cannot be read has no line of its own: the line that lists it has to do."""
    if problem.line:
        return problem
    return index.problem(f"{name}: {problem.message}", at, hint=problem.hint)


def _given_twice(policies: list[tuple[Document, PolicyEntry]]) -> Iterator[Problem]:
    given: dict[str, str] = {}
    for document, _ in policies:
        for block in RESERVED_IDS:
            if not document.has((block,)):
                continue
            if block in given:
                message = f"{block!r} is given in {given[block]} already"
                hint = "one file of a set gives it"
                yield document.problem(message, (block,), key=True, hint=hint)
            given.setdefault(block, Path(document.path).name)


def _merged(name: str, policies: list[tuple[Document, PolicyEntry]]) -> PolicyEntry:
    blocks = {
        block: getattr(entry, block)
        for document, entry in policies
        for block in RESERVED_IDS
        if document.has((block,))
    }
    rules: tuple[RuleEntry, ...] = tuple(rule for _, entry in policies for rule in entry.rules)
    return PolicyEntry(version=1, name=name, rules=rules, **blocks)
