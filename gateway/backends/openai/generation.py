"""`UpstreamGeneration`: one job on its arms, by its plan; and the account of what has run.

A task of its own talks to the servers and fills a bounded queue, so that closing it closes the
connection at once, whoever waits for what.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from gateway.backends.openai.call import Call
from gateway.backends.openai.failures import midway
from gateway.backends.openai.plan import Plan
from gateway.backends.openai.replica import SPECULATIVE, STANDARD
from gateway.chunk import Chunk
from gateway.errors import (
    ArmUnavailable,
    BackendFailed,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    QueueFull,
)
from gateway.execution import Execution
from gateway.types import FinishReason, Job, Mode, Sampling, Usage

_MAX_WAITING = 64
_REPLACEMENT = "\ufffd"
_SEED_STEP = 0x9E3779B97F4A7C15
_SEEDS = 1 << 53

Begin = Callable[[str, Sampling, str], Call]
"""Makes the call of an arm, with this sampling, after this beginning of the answer."""


class UpstreamGeneration:
    """One running job."""

    def __init__(
        self, name: str, job: Job, plan: Plan, begin: Begin, ended: Callable[[], None]
    ) -> None:
        self._name, self._job, self._plan, self._begin = name, job, plan, begin
        self._is_chat = job.request.prompt is None
        self._calls: list[tuple[str, Call]] = []
        self._fallback = plan.fallback
        self._closed = False
        self._queue: asyncio.Queue[Chunk | GatewayError | None] = asyncio.Queue(_MAX_WAITING)
        self._task = asyncio.create_task(self._run(), name=f"upstream {job.request_id}")
        self._ended = ended
        # For one that is cancelled before it has begun.
        self._task.add_done_callback(lambda _: ended())

    @property
    def execution(self) -> Execution:
        """What ran, as far as the servers tell."""
        calls = [(arm, call) for arm, call in self._calls if call.replica is not None]
        job = self._job
        if not calls:
            return Execution(backend=self._name, model=job.request.model)
        mode = self._mode(calls)
        drafted = [call.answer.drafted for _, call in calls if call.answer.drafted is not None]
        proposed = sum(each.num_draft_tokens for each in drafted)
        accepted = sum(each.num_accepted_tokens for each in drafted)
        usage = self._usage()
        known = mode is Mode.STANDARD or bool(drafted)
        plain = not any(arm == SPECULATIVE or _broke(call) for arm, call in calls)
        return Execution(
            backend=self._name,
            model=job.request.model,
            mode=mode,
            # No server says how it verifies; where nothing drafts, there is nothing to verify.
            verifier=job.decision.verifier if plain else None,
            verifier_class="exact" if plain else None,
            usage=usage,
            num_steps=max(usage.completion_tokens - accepted, 0) if known else 0,
            num_drafts=sum(each.num_drafts for each in drafted),
            num_draft_tokens=proposed,
            num_accepted_tokens=accepted,
            drafts_by_source={"upstream": (proposed, accepted)} if proposed else {},
            fingerprint=calls[-1][1].answer.fingerprint,
            attested_by="server-metrics" if all(map(_is_attested, calls)) else "config-only",
            fallback=self._fallback if mode is not job.decision.mode else None,
        )

    def __aiter__(self) -> UpstreamGeneration:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk. Raises a GatewayError where the servers failed."""
        if self._closed:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, Chunk):
            return item
        self._closed = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def aclose(self) -> None:
        """Close the connection, which tells the server to stop. Idempotent."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._closed:
            self._closed = True
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(None)  # whoever waits

    async def _run(self) -> None:
        end: GatewayError | None = None
        try:
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    await self._queue.put(chunk)
        except GatewayError as error:
            end = error
        except Exception as error:  # noqa: BLE001 - a reader must never wait for ever
            end = BackendFailed(detail=f"{type(error).__name__}: {error}")
            end.__cause__ = error
        self._ended()
        await self._queue.put(end)

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        if self._plan.mode is Mode.STANDARD:
            source = self._whole(STANDARD)
        elif self._plan.mode is Mode.SPECULATIVE:
            source = self._fast(self._job.sampling)
        else:
            source = self._hybrid()
        async with aclosing(source) as chunks:
            async for chunk in chunks:
                yield chunk
        usage = self._usage()
        for ending in self._calls[-1][1].answer.endings():
            if self._job.request.n == 1:
                ending = msgspec.structs.replace(ending, usage=usage)
            yield ending

    async def _whole(
        self, arm: str, sampling: Sampling | None = None, prefix: str = ""
    ) -> AsyncGenerator[Chunk]:
        call = self._begin(arm, sampling or self._job.sampling, prefix)
        self._calls.append((arm, call))
        async with aclosing(call.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _fast(self, sampling: Sampling, prefix: str = "") -> AsyncGenerator[Chunk]:
        """From the arm that speculates; from the other where it fails before it has begun."""
        begun = False
        try:
            async with aclosing(self._whole(SPECULATIVE, sampling, prefix)) as chunks:
                async for chunk in chunks:
                    begun = True
                    yield chunk
            return
        except (ArmUnavailable, QueueFull, InvalidRequest) as error:
            if begun or isinstance(error, ContextLengthExceeded):
                raise
            self._calls.pop()
            # Servers refuse what they cannot do together with speculation; the other arm can.
            refused = isinstance(error, InvalidRequest)
            self._fallback = "unsupported" if refused else "arm_down"
        async with aclosing(self._whole(STANDARD, sampling, prefix)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _hybrid(self) -> AsyncGenerator[Chunk]:
        """The first tokens from one arm, the rest from the other, which reads them as prompt."""
        job = self._job
        first, longest = job.decision.standard_first, job.sampling.max_tokens
        if longest is not None and longest <= first:
            first = longest
        sampling = msgspec.structs.replace(job.sampling, max_tokens=first)
        held = ""
        async with aclosing(self._whole(STANDARD, sampling)) as chunks:
            async for chunk in chunks:
                whole = held + chunk.text
                text = self._kept(whole)
                held = whole[len(text) :]
                yield msgspec.structs.replace(chunk, text=text)
        answer = self._calls[-1][1].answer
        cut = answer.endings()[0].finish_reason is FinishReason.LENGTH
        if not cut or first == longest:
            if held:
                yield Chunk(0, held)
            return
        # What was held back is left out: the next arm writes it anew.
        rest = msgspec.structs.replace(
            job.sampling,
            max_tokens=None if longest is None else longest - first,
            # The same noise twice would tie the two parts together.
            seed=((job.sampling.seed or 0) + _SEED_STEP) % _SEEDS,
        )
        try:
            async with aclosing(self._fast(rest, self._kept(answer.text))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except InvalidRequest as error:
            # What was refused is our continuation, and no request of the client's.
            raise midway(error) from error

    def _kept(self, text: str) -> str:
        """What of a first part can be continued: no half character, and of a chat, whose template
        trims its turns, no blanks at the end."""
        return text.rstrip(f"{_REPLACEMENT}{string.whitespace}" if self._is_chat else _REPLACEMENT)

    def _mode(self, calls: list[tuple[str, Call]]) -> Mode:
        """What ran: a server that speculates does so whatever arm it was said to be in."""
        fast = [arm == SPECULATIVE or _broke(call) for arm, call in calls]
        if all(fast):
            return Mode.SPECULATIVE
        # A short answer has no second part.
        as_planned = self._plan.mode is Mode.HYBRID and self._fallback is None
        return Mode.HYBRID if any(fast) or as_planned else Mode.STANDARD

    def _usage(self) -> Usage:
        """The prompt once, and the tokens of every part."""
        parts = [call.answer.usage for _, call in self._calls]
        prompt = parts[0].prompt_tokens or self._job.prompt.num_tokens
        return Usage(prompt, sum(p.completion_tokens for p in parts), parts[0].cached_tokens)


def _broke(call: Call) -> bool:
    return call.replica is not None and call.replica.broke_its_promise


def _is_attested(each: tuple[str, Call]) -> bool:
    """Whether its server would have shown that it speculates."""
    call = each[1]
    finding = None if call.replica is None else call.replica.finding
    return call.answer.drafted is not None or (finding is not None and finding.attests)
