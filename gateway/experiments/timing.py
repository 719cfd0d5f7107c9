"""Times the arms beside each other, prompt by prompt: what the matrix is made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec

from gateway.backends.base import Backend, Traced
from gateway.errors import Unavailable
from gateway.execution import Execution
from gateway.experiments.arms import Arm
from gateway.experiments.loops import is_loop
from gateway.experiments.prompts import Prompt, seed_of
from gateway.tally import Tally
from gateway.types import ChatRequest, Job, Message, Sampling

REFERENCE_TOKENS = 8
REFERENCE = Prompt(id="reference", prompt="One, two, three")
"""A fixed piece of work, timed between all others: it tells when something else ran."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """All arms on one prompt, in an order that rotates from block to block."""

    prompt: Prompt
    round: int
    arms: tuple[Arm, ...]

    @property
    def key(self) -> tuple[str, int]:
        """What it is told by."""
        return self.prompt.id, self.round


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One answer and what it took."""

    prompt: str
    domain: str
    arm: str
    round: int
    token_ids: tuple[int, ...]
    seconds: float
    """From the first token of the prompt to the last of the answer, by the engine's own clock."""
    steps: int
    proposed: int
    accepted: int
    loop: bool
    tally: Tally | None
    model: str
    """Fingerprint of what decoded."""

    @property
    def tokens_per_second(self) -> float:
        """Over the whole answer, the prefill included."""
        return len(self.token_ids) / max(self.seconds, 1e-9)


class TimedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What one block came to: kept whole or not at all, for its arms are compared with each other."""

    prompt: str
    round: int
    answers: tuple[Timed, ...]
    before: float
    """Seconds of the reference before it …"""
    after: float
    """… and after it."""

    @property
    def key(self) -> tuple[str, int]:
        """That of its block."""
        return self.prompt, self.round


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer is asked for."""

    temperature: float
    max_tokens: int
    seed: int


def blocks(prompts: Sequence[Prompt], arms: Sequence[Arm], rounds: int) -> tuple[Block, ...]:
    """Every prompt ``rounds`` times over."""
    found = []
    for number in range(rounds):
        for at, prompt in enumerate(prompts):
            shift = (number + at) % len(arms)
            order = (*arms[shift:], *arms[:shift])
            found.append(Block(prompt=prompt, round=number, arms=order))
    return tuple(found)


async def timed(
    backend: Backend, todo: Iterable[Block], work: Work
) -> AsyncGenerator[TimedBlock, None]:
    """Decode block after block, one answer at a time, the reference between them."""
    before: float | None = None
    for block in todo:
        if before is None:
            # Twice: the first one finds nothing warm.
            await _reference(backend, block.arms)
            before = await _reference(backend, block.arms)
        answers = [await _timed(backend, block, arm, work) for arm in block.arms]
        after = await _reference(backend, block.arms)
        yield TimedBlock(
            prompt=block.prompt.id,
            round=block.round,
            answers=tuple(answers),
            before=before,
            after=after,
        )
        before = after


async def _timed(backend: Backend, block: Block, arm: Arm, work: Work) -> Timed:
    prompt = block.prompt
    sampling = Sampling(temperature=work.temperature, max_tokens=work.max_tokens)
    seed = seed_of(work.seed, prompt.id, block.round)
    # A caller of its own for each answer: none may find its prompt computed by the one before.
    caller = f"{prompt.id}/{block.round}/{arm.name}"
    token_ids, ran = await _decode(
        backend, prompt.request(sampling), arm, seed, caller, prompt.kind
    )
    return Timed(
        prompt=prompt.id,
        domain=prompt.kind,
        arm=arm.name,
        round=block.round,
        token_ids=token_ids,
        seconds=ran.prefill_seconds + ran.decode_seconds,
        steps=ran.num_steps,
        proposed=ran.num_draft_tokens,
        accepted=ran.num_accepted_tokens,
        loop=is_loop(token_ids),
        tally=ran.tally,
        model=ran.fingerprint,
    )


async def _reference(backend: Backend, arms: Sequence[Arm]) -> float:
    standard = next(arm for arm in arms if not arm.drafts)
    request = ChatRequest(
        model="",
        messages=(Message("user", REFERENCE.prompt),),
        sampling=Sampling(temperature=0.0, max_tokens=REFERENCE_TOKENS, ignore_eos=True),
    )
    _, ran = await _decode(backend, request, standard, 0, "reference", "")
    return ran.decode_seconds


async def _decode(
    backend: Backend, request: ChatRequest, arm: Arm, seed: int, caller: str, domain: str
) -> tuple[tuple[int, ...], Execution]:
    prompt = await backend.prepare(request)
    sampling = msgspec.structs.replace(request.sampling, seed=seed)
    generation = await backend.generate(
        Job("experiment", request, arm.decision, sampling, prompt, caller, domain)
    )
    if not isinstance(generation, Traced):
        raise Unavailable("This backend gives no tokens, which is what is compared.")
    try:
        while True:
            try:
                await generation.__anext__()
            except StopAsyncIteration:
                break
    finally:
        await generation.aclose()
    return tuple(generation.outputs[0]), generation.execution
