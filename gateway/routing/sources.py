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

    def rule_ids(self) -> Iterator[tuple[Document, tuple[str, ...]]]:
        """The ids of each file's rules, in order."""
        for document, policy in self.policies:
            yield document, tuple(rule.id for rule in policy.rules)
        for document, layer in self.layers:
            yield document, tuple(rule.id for rule in layer.rules)

    def without_value(self) -> Iterator[Problem]:
        """Keys and entries with no value, as above lines that were commented out."""
        hint = "give a value or remove the key"
        for document, _ in self.rule_ids():
            for at in document.without_value():
                yield document.problem("nothing is given here", at, key=True, hint=hint)

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


def gather(text: str, path: Path, read: Read) -> Sources:
    """The policy in ``text``, and the files that it lists if ``path`` is that of a set.

    Raises ConfigError with the problems of all files that can be read.
    """
    file = PolicyFile(str(path), text)
    if path.name != SET_FILE:
        document = documents.parse(text, path)
        entry = documents.convert(document, PolicyEntry)
        return Sources((file,), entry, ((document, entry),))
    return _gather_set(file, path.parent, read)


def _gather_set(file: PolicyFile, folder: Path, read: Read) -> Sources:
    document = documents.parse(file.text, file.path)
    index = documents.convert(document, SetEntry)
    problems: list[Problem] = []

    def taken(key: str, names: tuple[str, ...], kind: type[T]) -> list[tuple[Document, T]]:
        found = []
        for i, name in enumerate(names):
            path = folder / name
            try:
                files.append(PolicyFile(str(path), read(path)))
                inner = documents.parse(files[-1].text, path)
                found.append((inner, documents.convert(inner, kind)))
            except ConfigError as error:
                problems.extend(
                    _where_listed(problem, document, (key, i), name) for problem in error.problems
                )
        return found

    files = [file]
    policies = taken("policies", index.policies, PolicyEntry)
    layers = taken("tighten", index.tighten, TighteningEntry)
    problems += _given_twice(policies)
    if problems:
        raise ConfigError(problems)
    return Sources(tuple(files), _merged(index.name, policies), tuple(policies), tuple(layers))


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
