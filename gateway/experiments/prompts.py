"""The prompts of an experiment, read from JSON lines: what is asked, what about, and what is right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.classification.rows import Turn
from gateway.errors import ConfigError, Problem
from gateway.types import ChatRequest, Message, Sampling

T = TypeVar("T")
_MAX_PROBLEMS = 20
_SHAPE = 'a row is {"prompt": "…"}, with "id", "domain" and "gold" where there are any'


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One row. What else stands in its line is ignored."""

    id: str = ""
    """By default the number of its line."""
    prompt: str = ""
    turns: tuple[str, ...] = ()
    """Instead of ``prompt``: what the user says; only the first is asked."""
    messages: tuple[Turn, ...] = ()
    """Instead of ``prompt``: a conversation, up to where the answer begins."""
    domain: str = ""
    group: str = ""
    """Instead of ``domain``, for prompts that are gathered otherwise."""
    gold: tuple[str, ...] = ()
    """Right answers; any of them will do."""

    @property
    def kind(self) -> str:
        """What it is gathered by; empty where the row does not say."""
        return self.domain or self.group

    def request(self, sampling: Sampling) -> ChatRequest:
        """The conversation as a request."""
        turns = self.messages or (Turn(self.prompt or next(iter(self.turns), "")),)
        messages = tuple(Message(turn.role, turn.content) for turn in turns)
        return ChatRequest(model="", messages=messages, sampling=sampling)


class _Gold(msgspec.Struct, frozen=True):
    id: str
    gold: tuple[str, ...]


def read_prompts(path: Path, *, gold: Path | None = None) -> tuple[Prompt, ...]:
    """All rows; ``gold`` has the right answers of some of them, by their ids.

    Raises ConfigError with every bad line.
    """
    problems: list[Problem] = []
    rows = [
        msgspec.structs.replace(row, id=row.id or str(number))
        for number, row in _lines(path, Prompt, problems)
    ]
    seen: set[str] = set()
    for row in rows:
        if not row.request(Sampling()).texts()[0].strip():
            problems.append(Problem(f"the prompt {row.id!r} is empty", path=path, hint=_SHAPE))
        if row.id in seen:
            problems.append(Problem(f"the id {row.id!r} is there twice", path=path))
        seen.add(row.id)
    if gold is not None:
        given = {one.id: one.gold for _, one in _lines(gold, _Gold, problems)}
        for unknown in sorted(set(given) - seen):
            problems.append(Problem(f"no prompt has the id {unknown!r}", path=gold))
        rows = [msgspec.structs.replace(row, gold=given.get(row.id, row.gold)) for row in rows]
    if not (rows or problems):
        problems.append(Problem("no prompts", path=path, hint=_SHAPE))
    if problems:
        hidden = len(problems) - _MAX_PROBLEMS
        more = [Problem(f"and {hidden} more", path=path)] if hidden > 0 else []
        raise ConfigError([*problems[:_MAX_PROBLEMS], *more])
    return tuple(rows)


def in_turn(prompts: Sequence[Prompt], limit: int | None = None) -> tuple[Prompt, ...]:
    """At most ``limit`` of each kind, the kinds in turn: a run that is cut short has seen them all."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    rounds = zip_longest(*(mine[:limit] for mine in kinds.values()))
    return tuple(prompt for row in rounds for prompt in row if prompt is not None)


def digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of all rows, in hex: another file, or another choice of its rows, has another."""
    return hashlib.sha256(msgspec.json.encode(prompts)).hexdigest()


def seed_of(*parts: object) -> int:
    """A seed of 62 bits that follows from ``parts`` alone, so that nobody has chosen it."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2


def _lines(path: Path, kind: type[T], problems: list[Problem]) -> list[tuple[int, T]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError([Problem(f"cannot read: {error.strerror}", path=path)]) from None
    decoder = msgspec.json.Decoder(kind)
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append((number, decoder.decode(line)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(Problem(str(error), path=path, line=number, column=1, hint=_SHAPE))
    return found
