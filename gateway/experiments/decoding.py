"""One answer of one arm: what is asked of the backend, and what is kept of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

import msgspec

from gateway.again import Run
from gateway.backends.base import Backend, Redecoder
from gateway.errors import ConfigError, InvalidRequest, Problem, Unavailable
from gateway.experiments.arms import STANDARD, Arm
from gateway.experiments.prompts import Prompt, seed_of
from gateway.tally import Tally
from gateway.types import Job, Sampling


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to make."""

    prompt: Prompt
    temperature: float
    arm: Arm
    sample: int
    max_tokens: int
    seed: int
    """The experiment's."""

    @property
    def key(self) -> tuple[str, float, str, int]:
        """What it is told by among all of the experiment."""
        return self.prompt.id, self.temperature, self.arm.name, self.sample

    @property
    def noise(self) -> int:
        """The answer's own seed: the same in all arms whose seeds are shared."""
        return seed_of(
            self.seed, self.arm.seeds, self.prompt.id, f"{self.temperature:g}", self.sample
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as it was made."""

    prompt: str
    group: str
    temperature: float
    arm: str
    sample: int
    seed: int
    token_ids: tuple[int, ...]
    text: str
    margins: tuple[float | None, ...] = ()
    """In standard mode: how far each token was ahead of its next best, in nats; None: there was none."""
    tally: Tally | None = None
    proposed: int = 0
    accepted: int = 0
    steps: int = 0
    distortion: float = 0.0
    model: str = ""
    """Fingerprint of what decoded."""
    dtype: str = ""
    """Its, such as float32; empty: not known."""

    @property
    def key(self) -> tuple[str, float, str, int]:
        """That of its task."""
        return self.prompt, self.temperature, self.arm, self.sample


class Made(Protocol):
    """An answer that was kept."""

    @property
    def model(self) -> str:
        """Fingerprint of what decoded."""
        ...


async def refuse_unfit(
    backend: Backend, prompts: Iterable[Prompt], there: Sequence[Made] = ()
) -> None:
    """Raise InvalidRequest for a prompt that the model cannot take, before anything is decoded.

    And ConfigError where the answers that are ``there`` are another model's.
    """
    refuse_others(there, backend.models[0].fingerprint)
    for prompt in prompts:
        try:
            await backend.prepare(prompt.request(Sampling()))
        except InvalidRequest as error:
            raise InvalidRequest(f"The prompt {prompt.id!r}: {error.message}") from error


def refuse_others(there: Sequence[Made], model: str) -> None:
    """Raise ConfigError where the answers that are ``there`` are not of ``model``."""
    if any(answer.model != model for answer in there):
        hint = "give the model that made them, or another --out"
        raise ConfigError([Problem("its answers are another model's", path="--out", hint=hint)])


async def answers(
    backend: Backend, tasks: Iterable[Task], *, concurrency: int
) -> AsyncGenerator[Answer, None]:
    """Make all answers, ``concurrency`` at a time, and give each as it ends.

    Raises what the backend raises; whoever stops listening stops the work.
    """
    waiting = iter(tasks)
    running: set[asyncio.Task[Answer]] = set()
    try:
        while True:
            while len(running) < concurrency and (task := next(waiting, None)) is not None:
                running.add(asyncio.create_task(_answer(backend, task)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer(backend: Backend, task: Task) -> Answer:
    if not isinstance(backend, Redecoder):
        raise Unavailable("This backend gives no tokens, which is what is compared.")
    sampling = Sampling(temperature=task.temperature, max_tokens=task.max_tokens)
    request = task.prompt.request(sampling)
    prompt = await backend.prepare(request)
    # The request itself has no seed: nobody has chosen this one, so that the answer is evidence.
    # A caller for each answer: none may draft from what another arm has said.
    job = Job(
        "experiment",
        request,
        task.arm.decision,
        msgspec.structs.replace(sampling, seed=task.noise),
        prompt,
        caller_id="/".join(map(str, task.key)),
        domain=task.prompt.kind,
    )
    run = await backend.decode_again(job, patient=False)
    if run is None:
        raise Unavailable("The engine stopped before an answer was whole.")
    return _kept(task, run, backend.models[0].dtype)


def _kept(task: Task, run: Run, dtype: str) -> Answer:
    (decoded,) = run.answers
    ran = run.execution
    margins = decoded.margins if task.arm.name == STANDARD else ()
    return Answer(
        prompt=task.prompt.id,
        group=task.prompt.kind,
        temperature=task.temperature,
        arm=task.arm.name,
        sample=task.sample,
        seed=task.noise,
        token_ids=decoded.token_ids,
        text=run.texts[0],
        margins=tuple(round(m, 4) if math.isfinite(m) else None for m in margins),
        tally=ran.tally,
        proposed=ran.num_draft_tokens,
        accepted=ran.num_accepted_tokens,
        steps=ran.num_steps,
        distortion=ran.distortion,
        model=ran.fingerprint,
        dtype=dtype,
    )
