"""`ScriptedBackend`: answers from a script, for examples, demonstrations and tests. No model.

Its tokens are words with the space after them, and its draft counts zero, unless the script says
what to report. It must not know what a policy is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.backends.base import BackendStatus, refuse_token_parameters
from gateway.backends.calls import CallFormat, calling
from gateway.chunk import Chunk, TokenLogprob
from gateway.errors import (
    BackendFailed,
    ConfigError,
    ContextLengthExceeded,
    Problem,
    QueueFull,
    QueueTimeout,
    Unavailable,
)
from gateway.execution import Execution
from gateway.tally import Tally
from gateway.types import ChatRequest, FinishReason, Job, Mode, ModelInfo, Prompt, Sampling, Usage

_TOKEN = re.compile(r"\s*\S+\s?|\s+")
_CREATED = 1735689600
_T = TypeVar("_T")


class ScriptedExecution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the backend claims to have run; for trying the attestation.

    The counts are those of one draft, and there is one in each step.
    """

    mode: Mode | None = None
    """None: the decided mode."""
    verifier_class: str = "exact"
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_source: str = "suffix"
    first_draft_position: int = 0

    def drafts(self, steps: int) -> Mapping[str, Any]:
        """The fields of the account that tell of drafts, after so many steps."""
        if not (self.num_draft_tokens and steps):
            return {}
        proposed, accepted = steps * self.num_draft_tokens, steps * self.num_accepted_tokens
        return {
            "num_drafts": steps,
            "num_draft_tokens": proposed,
            "num_accepted_tokens": accepted,
            "longest_draft": self.num_draft_tokens,
            "accept_counts": (*(0,) * self.num_accepted_tokens, steps),
            "drafts_by_source": {self.draft_source: (proposed, accepted)},
            "first_draft_position": self.first_draft_position,
        }


class ScriptedBackend:
    """A `Backend` that says what it was told to.

    ``replies`` is a list, of which the seed picks one, or a mapping from a piece of the last
    message (in any case; the empty text matches always) to its reply.
    """

    def __init__(
        self,
        *,
        name: str = "scripted",
        models: Sequence[str] = ("scripted",),
        replies: Sequence[str] | Mapping[str, str] = ("This answer comes from a script.",),
        first_chunk_seconds: float = 0.0,
        chunk_seconds: float = 0.0,
        max_length: int = 4096,
        max_running: int = 8,
        max_queued: int = 64,
        queue_seconds: float | None = None,
        fail_after: int | None = None,
        fail_message: str = "The script says that generation fails here.",
        execution: Mapping[str, Any] | None = None,
        tally: Mapping[str, Any] | None = None,
        calls: str | None = None,
    ) -> None:
        """``tally``: what it claims to have measured of each of its tokens; None: nothing.
        ``calls``: how its replies write calls of functions; None: it takes no tools.
        """
        self._name = name
        self._models = tuple(ModelInfo(name, _CREATED, max_length) for name in models)
        self._replies = replies
        self._delays = (first_chunk_seconds, chunk_seconds)
        self._max_length = max_length
        self._limits = (max_running, max_queued)
        self._queue_seconds = queue_seconds
        self._failure = (fail_after, fail_message)
        self._execution = _claims("execution", execution or {}, ScriptedExecution)
        self._tally = None if tally is None else _claims("tally", tally, Tally)
        self._calls = _format(calls)
        self._slots = asyncio.Semaphore(max_running)
        self._open: set[ScriptedGeneration] = set()
        self._running = 0
        self._closed = False
        if not models or not replies:
            problem = Problem("needs at least one model and one reply", path="backends")
            raise ConfigError([problem])

    @property
    def models(self) -> Sequence[ModelInfo]:
        """The models that the script names."""
        return self._models

    @property
    def status(self) -> BackendStatus:
        """Ready until closed."""
        return BackendStatus(
            ready=not self._closed,
            detail="closed" if self._closed else "",
            running=self._running,
            queued=len(self._open) - self._running,
        )

    async def prepare(self, request: ChatRequest) -> Prompt:
        """Count the words. Raises ContextLengthExceeded or UnsupportedParameter."""
        refuse_token_parameters(request, takes_tools=self._calls is not None)
        if isinstance(request.prompt, tuple):
            num_tokens = len(request.prompt)
        else:
            num_tokens = sum(len(_tokens(text)) for text in request.texts())
        if num_tokens >= self._max_length:
            raise ContextLengthExceeded(
                f"The prompt has {num_tokens} tokens and the model's context is "
                f"{self._max_length}; shorten the prompt.",
                param="prompt" if request.prompt is not None else "messages",
            )
        return Prompt(num_tokens)

    async def generate(self, job: Job) -> ScriptedGeneration:
        """Queue the job. Raises QueueFull or Unavailable."""
        if self._closed:
            raise Unavailable("The scripted backend is closed.")
        if len(self._open) >= sum(self._limits):
            raise QueueFull(f"{len(self._open)} requests are running or waiting; try again soon.")
        steps = list(self._script(job))
        execution = _start(self._name, job, self._execution)
        generation = ScriptedGeneration(self, steps, execution, self._execution)
        self._open.add(generation)
        return generation

    async def aclose(self) -> None:
        """End everything that runs."""
        self._closed = True
        for generation in tuple(self._open):
            await generation.aclose()

    def _script(self, job: Job) -> Iterator[Chunk]:
        room = self._max_length - job.prompt.num_tokens
        limit = room if job.sampling.max_tokens is None else min(job.sampling.max_tokens, room)
        choices = [
            self._told(job, _choice(i, self._text(job, i), job.sampling, limit))
            for i in range(job.request.n)
        ]
        for step in range(max(len(chunks) for chunks in choices)):
            yield from (chunks[step] for chunks in choices if step < len(chunks))

    def _told(self, job: Job, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks of a choice, with its calls told from its text."""
        if self._calls is None or not job.request.may_call:
            return chunks
        return calling(self._calls, job.request, chunks)

    def _text(self, job: Job, index: int) -> str:
        if not isinstance(self._replies, Mapping):
            return self._replies[((job.sampling.seed or 0) + index) % len(self._replies)]
        last = (job.request.texts() or ("",))[-1].casefold()
        return next((reply for key, reply in self._replies.items() if key.casefold() in last), "")


class ScriptedGeneration:
    """One running job of a `ScriptedBackend`."""

    def __init__(
        self,
        backend: ScriptedBackend,
        steps: Sequence[Chunk],
        execution: Execution,
        claims: ScriptedExecution,
    ) -> None:
        self._backend = backend
        self._steps = steps
        self._claims = claims
        self._execution = execution
        self._position = 0
        self._closed = asyncio.Event()
        self._running = False
        self._queued_at = time.perf_counter()

    @property
    def execution(self) -> Execution:
        """The counts so far."""
        return self._execution

    async def __anext__(self) -> Chunk:
        """The next scripted chunk, after its delay."""
        first_delay, delay = self._backend._delays
        if not self._running and not self._closed.is_set():
            await self._start()
            await self._pause(first_delay)
        elif self._position < len(self._steps):
            await self._pause(delay)
        if self._closed.is_set() or self._position >= len(self._steps):
            await self.aclose()
            raise StopAsyncIteration
        fail_after, message = self._backend._failure
        if fail_after is not None and self._position >= fail_after:
            await self.aclose()
            raise BackendFailed(message)
        chunk = self._steps[self._position]
        self._position += 1
        self._count(chunk)
        return chunk

    def _tallied(self, so_far: Tally | None, emitted: int) -> Tally | None:
        each = self._backend._tally
        if each is None or not emitted:
            return so_far
        return each if so_far is None else so_far + each

    async def aclose(self) -> None:
        """Stop, and give the slot back."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._backend._open.discard(self)
        if self._running:
            self._running = False
            self._backend._running -= 1
            self._backend._slots.release()

    async def _start(self) -> None:
        seconds = self._backend._queue_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._backend._slots.acquire()
        except TimeoutError:
            await self.aclose()
            raise QueueTimeout(
                f"No place was free within {seconds:g} seconds.", retry_after=5
            ) from None
        if self._closed.is_set():
            self._backend._slots.release()
            return
        self._running = True
        self._backend._running += 1
        waited = time.perf_counter() - self._queued_at
        self._execution = msgspec.structs.replace(self._execution, queue_seconds=waited)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but wake as soon as the generation is closed."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    def _count(self, chunk: Chunk) -> None:
        run = self._execution
        emitted = 1 if chunk.text else 0
        steps = run.num_steps + emitted
        self._execution = msgspec.structs.replace(
            run,
            usage=Usage(run.usage.prompt_tokens, run.usage.completion_tokens + emitted),
            num_steps=steps,
            tally=self._tallied(run.tally, emitted),
            **self._claims.drafts(steps),
        )


def _format(calls: str | None) -> CallFormat | None:
    try:
        return None if calls is None else CallFormat(calls)
    except ValueError:
        hint = f"one of {', '.join(CallFormat)}"
        problem = Problem(f"calls: {calls!r} is not known", path="backends", hint=hint)
        raise ConfigError([problem]) from None


def _claims(name: str, options: Mapping[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        raise ConfigError([Problem(f"{name}: {error}", path="backends")]) from None


def _start(backend: str, job: Job, claims: ScriptedExecution) -> Execution:
    return Execution(
        backend=backend,
        model=job.request.model,
        mode=claims.mode or job.decision.mode,
        verifier=job.decision.verifier,
        verifier_class=claims.verifier_class,
        usage=Usage(job.prompt.num_tokens, 0),
    )


def _choice(index: int, text: str, sampling: Sampling, limit: int) -> list[Chunk]:
    """The chunks of one choice: one a token, the last with the finish reason and the usage."""
    cuts = [(at, stop) for stop in sampling.stop if (at := text.find(stop)) >= 0]
    end, stop = min(cuts, key=lambda cut: cut[0], default=(len(text), None))
    tokens = _tokens(text[:end])
    reason = FinishReason.LENGTH if len(tokens) > limit else FinishReason.STOP
    tokens = tokens[:limit]
    chunks = [Chunk(index, token, _logprobs(token, sampling)) for token in tokens]
    last = Chunk(
        index,
        finish_reason=reason,
        usage=Usage(0, len(tokens)),
        stop=stop if reason is FinishReason.STOP else None,
    )
    return [*chunks, last]


def _logprobs(token: str, sampling: Sampling) -> tuple[TokenLogprob, ...] | None:
    """A script is certain of every token: probability 1."""
    if sampling.logprobs is None:
        return None
    certain = TokenLogprob(token, 0.0, token.encode(), len(token))
    top = (certain,) if sampling.logprobs else ()
    return (msgspec.structs.replace(certain, top=top),)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)
