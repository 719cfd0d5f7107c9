"""Reads the questions: our own, or Spec-Bench's in the shape its authors publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gateway.types import DOMAINS

TASKS = (
    "multi_turn",
    "translation",
    "summarization",
    "question_answering",
    "mathematical_reasoning",
    "retrieval_augmented",
)
"""Spec-Bench's six (Xia et al., arXiv 2401.07851)."""

EDITS = ("code_edit",)
GROUPS = TASKS + DOMAINS + EDITS

# Spec-Bench files its first task by the eight categories of MT-bench.
_SPEC_BENCH = {
    **dict.fromkeys(
        "writing roleplay reasoning math coding extraction stem humanities".split(), "multi_turn"
    ),
    "qa": "question_answering",
    "math_reasoning": "mathematical_reasoning",
    "rag": "retrieval_augmented",
    "translation": "translation",
    "summarization": "summarization",
}


class PromptError(ValueError):
    """A file of prompts is wrong; the message says where and how."""


@dataclass(frozen=True)
class Prompt:
    """One conversation: what the user says, turn by turn."""

    id: str
    group: str
    turns: tuple[str, ...]
    kind: str = ""
    """What a group is made up of: the category, of Spec-Bench's questions."""


def read(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines: ``id``, ``turns``, and ``group`` or ``category``.

    Of a file that has ``set``, the rows of Spec-Bench alone. Raises PromptError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read {path}: {error}") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _prompt(line, f"{path}:{number}")
        if prompt is None:
            continue
        if prompt.id in prompts:
            raise PromptError(f"{path}:{number}: the id {prompt.id!r} is there already")
        prompts[prompt.id] = prompt
    if not prompts:
        raise PromptError(f"{path} has no prompts")
    return list(prompts.values())


def select(
    prompts: Sequence[Prompt], groups: Collection[str] = (), limit: int | None = None
) -> list[Prompt]:
    """The first ``limit`` prompts of each of ``groups`` (none named: of all), its kinds in turn.

    The groups come in turn too, so that a run that is cut short has seen all. Raises PromptError.
    """
    by_group = _by(prompts, lambda prompt: prompt.group)
    if unknown := [name for name in groups if name not in by_group]:
        raise PromptError(f"no prompts of {', '.join(unknown)}; known: {', '.join(by_group)}")
    chosen = []
    for name in groups or by_group:
        kinds = _by(by_group[name], lambda prompt: prompt.kind)
        chosen.append(_in_turn(list(kinds.values()))[:limit])
    return _in_turn(chosen)


def _by(prompts: Sequence[Prompt], key: Callable[[Prompt], str]) -> dict[str, list[Prompt]]:
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(key(prompt), []).append(prompt)
    return found


def _in_turn(lists: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """The first of each, the second of each, and so on."""
    return [one for row in zip_longest(*lists) for one in row if one is not None]


def _prompt(line: str, where: str) -> Prompt | None:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where}: no JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not row["id"]:
        raise PromptError(f"{where}: a row is an object with an id")
    if row.get("set", "spec-bench") != "spec-bench":
        return None
    category = str(row.get("category", ""))
    group = row.get("group") or _SPEC_BENCH.get(category)
    if not isinstance(group, str):
        raise PromptError(
            f"{where}: no group; known categories: {', '.join(_SPEC_BENCH)}; or give a group"
        )
    turns = row.get("turns")
    if (
        not isinstance(turns, list)
        or not turns
        or not all(isinstance(turn, str) and turn.strip() for turn in turns)
    ):
        raise PromptError(f"{where}: turns must be a list of texts, and not empty")
    return Prompt(row["id"], group, tuple(turns), category)
