"""Runs every arm on every prompt: interleaved, in rotating order, and again where it was disturbed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from benchmarks.prompts import Prompt
from benchmarks.runs import STANDARD, Run
from gateway.experiments.guard import Guard
from gateway.experiments.loops import is_loop


@dataclass(frozen=True)
class Task:
    """What every arm is given for one answer."""

    token_ids: Sequence[int]
    temperature: float
    seed: int
    max_tokens: int
    domain: str = ""
    """What the text is about: the cost model counts by it, as it does in the gateway."""


@dataclass(frozen=True)
class Answer:
    """What an arm gives back; see `Run` for the counts."""

    token_ids: Sequence[int]
    prefill_seconds: float
    steps: int
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Arm:
    """One way to decode."""

    name: str
    decode: Callable[[Task], Answer]
    same_noise: bool
    """Whether its text is our standard mode's at any temperature; else at temperature 0 alone."""


class Chat(Protocol):
    """Turns conversations into token ids and answers into text."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids up to where the answer begins."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer."""
        ...


def choose(arms: Sequence[Arm], names: Sequence[str]) -> list[Arm]:
    """The arms of these names (none: all); standard mode always, since the others are held to it.

    ``speculative`` stands for all arms of that mode. Raises ValueError for a name of none.
    """
    keys = [{arm.name, arm.name.partition(" (")[0]} for arm in arms]
    if unknown := [name for name in names if not any(name in key for key in keys)]:
        known = ", ".join(arm.name for arm in arms)
        raise ValueError(f"no arm {', '.join(unknown)}; known: {known}")
    wanted = {STANDARD, *names}
    return [arm for arm, key in zip(arms, keys, strict=True) if not names or key & wanted]


@dataclass(frozen=True)
class Block:
    """All arms on one prompt: what is measured, and repeated, together."""

    prompt: Prompt
    temperature: float
    round: int
    shift: int
    """By how much the order of the arms is rotated."""


def blocks(prompts: Sequence[Prompt], temperatures: Sequence[float], rounds: int) -> list[Block]:
    """Every prompt at every temperature, ``rounds`` times over."""
    return [
        Block(prompt, temperature, number, number + at)
        for number in range(rounds)
        for at, prompt in enumerate(prompts)
        for temperature in temperatures
    ]


def measure(
    todo: Sequence[Block],
    decode: Callable[[Block], list[Run]],
    guard: Guard,
    *,
    max_repeats: int,
    done: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Decode each block; then those that were disturbed again, at most ``max_repeats`` of them.

    Calls ``done`` after each block. Interrupted, it returns what it has.
    """
    found: list[tuple[list[Run], float, float]] = []
    try:
        before = guard.read()
        for block in todo:
            runs = decode(block)
            after = guard.read()
            found.append((runs, before, after))
            before = after
            done()
        again = [i for i, (_, *readings) in enumerate(found) if guard.disturbed(*readings)]
        for i in again[:max_repeats]:
            before = guard.read()
            runs = decode(todo[i])
            after = guard.read()
            if not guard.disturbed(before, after):
                found[i] = (runs, before, after)
            done()
    except KeyboardInterrupt:
        if not found:
            raise
    return [
        replace(run, disturbed=guard.disturbed(before, after))
        for runs, before, after in found
        for run in runs
    ]


def decode_block(block: Block, arms: Sequence[Arm], chat: Chat, max_tokens: int) -> list[Run]:
    """One run for each arm and turn. The next turn follows what standard mode answered to the last."""
    shift = block.shift % len(arms)
    order = [*arms[shift:], *arms[:shift]]
    messages: list[dict[str, str]] = []
    runs: list[Run] = []
    for number, turn in enumerate(block.prompt.turns, 1):
        messages.append({"role": "user", "content": turn})
        name = block.prompt.id if len(block.prompt.turns) == 1 else f"{block.prompt.id}/{number}"
        task = Task(
            chat.encode_chat(messages),
            block.temperature,
            seed=zlib.crc32(name.encode()),
            max_tokens=max_tokens,
            domain=block.prompt.group,
        )
        answers: dict[str, tuple[Answer, float]] = {}
        for arm in order:
            start = time.perf_counter()
            answer = arm.decode(task)
            answers[arm.name] = (answer, time.perf_counter() - start)
        standard = answers[STANDARD][0].token_ids
        for arm in arms:
            answer, seconds = answers[arm.name]
            comparable = arm.same_noise or block.temperature == 0
            runs.append(
                Run(
                    prompt=name,
                    group=block.prompt.group,
                    temperature=block.temperature,
                    arm=arm.name,
                    round=block.round,
                    tokens=len(answer.token_ids),
                    seconds=round(seconds, 5),
                    prefill_seconds=round(answer.prefill_seconds, 5),
                    steps=answer.steps,
                    proposed=answer.proposed,
                    accepted=answer.accepted,
                    equal=list(answer.token_ids) == list(standard) if comparable else None,
                    loop=is_loop(answer.token_ids),
                )
            )
        messages.append({"role": "assistant", "content": chat.decode(standard)})
    return runs
