"""One job in the engine's hands, as an async iterator of chunks, and the account of what ran."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

import msgspec

from decoders.loader import LoadedModel
from decoders.params import FinishReason as RowFinishReason
from decoders.request import Ticket
from decoders.sequence import Piece
from decoders.sequence import TokenLogprob as RowLogprob
from decoders.stats import DecodeStats
from gateway.again import Decoded, Run
from gateway.backends.calls import CallFormat, reader_of, with_calls
from gateway.backends.local.measured import tally_of
from gateway.backends.local.ranking import BestAnswers, Choosing, EveryAnswer
from gateway.backends.local.second_opinion import SOURCE, SecondOpinion
from gateway.chunk import Chunk, Step, TokenLogprob
from gateway.errors import BackendFailed, QueueFull, QueueTimeout
from gateway.execution import Execution
from gateway.types import FinishReason, Job, Mode, Usage


class LocalGeneration:
    """The rows of one job, one for each answer, as an async iterator of chunks."""

    def __init__(
        self,
        backend: str,
        model: str,
        loaded: LoadedModel,
        job: Job,
        second: SecondOpinion | None = None,
        calls: CallFormat | None = None,
        *,
        queue_seconds: float | None = None,
    ) -> None:
        """``second`` hears what the probe reads in the job's prompt, where there is one.

        ``calls``: how the answer may write calls; None: it is text, whatever it says.
        ``queue_seconds``: how long the job may wait for a slot; None: as long as it takes.
        """
        self.tickets: list[Ticket] = []
        self._backend = backend
        self._model = model
        self._loaded = loaded
        self._job = job
        self._second = second
        self._num_prompt_tokens = job.prompt.num_tokens
        self._choosing: Choosing = EveryAnswer()
        self._ready: deque[Chunk] = deque()
        self._begun: set[int] = set()
        self._steps: defaultdict[int, list[Step]] = defaultdict(list)
        self._readers = [reader_of(calls, job.request) for _ in range(job.request.n) if calls]
        # Not bounded: it holds no more than the answer, and the engine must not wait for a reader.
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._queue_seconds = queue_seconds
        self._closed = False
        self._num_read = 0
        self._num_ended = 0
        self._ended = asyncio.Event()

    def listener(self, choice: int) -> Callable[[Piece], None]:
        """What the engine's thread calls with each piece of one choice."""

        def listen(piece: Piece) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver, choice, piece)

        return listen

    def begin(self, tickets: list[Ticket]) -> None:
        """Follow these rows; to be called before the event loop goes on."""
        self.tickets = tickets
        if self._job.request.num_answers > self._job.request.n:
            stats = [ticket.stats for ticket in tickets]
            self._choosing = BestAnswers(self._job.request.n, stats)

    def _deliver(self, choice: int, piece: Piece) -> None:
        self._pieces.put_nowait((choice, piece))
        self._num_ended += piece.finish_reason is not None
        if self.tickets[choice].evicted:
            # Answers belong together: without one of them, the others are of no use.
            for ticket in self.tickets:
                ticket.cancel()
        if self._num_ended == len(self.tickets):
            self._ended.set()

    @property
    def execution(self) -> Execution:
        """The engine's own counts, summed over the choices."""
        stats = [ticket.stats for ticket in self.tickets]
        # The rows of a job are alike; one that ended before its prompt was read is as it was asked.
        restricted = next((ticket for ticket in self.tickets if ticket.restricted), None)
        row = restricted or next(iter(self.tickets), None)
        return Execution(
            backend=self._backend,
            model=self._model,
            mode=None if row is None else Mode(row.mode.name),
            verifier=None if row is None else row.verifier.name,
            verifier_class=None if row is None else _verifier_class(row),
            distortion=max((s.distortion for s in stats), default=0.0),
            usage=Usage(
                self._num_prompt_tokens,
                sum(s.num_output_tokens for s in stats),
                min((s.num_cached_tokens for s in stats), default=0),
            ),
            num_steps=sum(s.num_steps for s in stats),
            num_drafts=sum(s.num_drafts for s in stats),
            num_draft_tokens=sum(s.num_draft_tokens for s in stats),
            num_accepted_tokens=sum(s.num_accepted_tokens for s in stats),
            longest_draft=max((s.longest_draft for s in stats), default=0),
            accept_counts=_accept_counts(stats),
            drafts_by_source=_by_source(stats),
            first_draft_position=min(
                (s.first_draft_position for s in stats if s.first_draft_position is not None),
                default=None,
            ),
            why_k=dict(sum((Counter(s.why_k) for s in stats), Counter())),
            tightened_by=None if restricted is None else SOURCE,
            opinion=None if self._second is None else self._second.opinion,
            tally=tally_of(
                (s.evidence for s in stats), fresh=self._job.request.sampling.seed is None
            ),
            queue_seconds=max((s.queue_seconds for s in stats), default=0.0),
            prefill_seconds=max((s.prefill_seconds for s in stats), default=0.0),
            decode_seconds=max((s.decode_seconds for s in stats), default=0.0),
            fingerprint=self._loaded.fingerprint,
        )

    @property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """The token ids that each answer has emitted so far."""
        return tuple(tuple(ticket.sequence.output_ids) for ticket in self.tickets)

    async def run(self) -> Run | None:
        """Decode to the end; None where the engine gave it up."""
        texts = [""] * self._job.request.n
        try:
            async for chunk in self:
                texts[chunk.index] += chunk.said
        finally:
            await self.aclose()
        reasons = {ticket.sequence.finish_reason for ticket in self.tickets}
        if not reasons <= {RowFinishReason.STOP, RowFinishReason.LENGTH}:
            return None
        answers = zip(self.outputs, self.tickets, strict=True)
        return Run(
            answers=tuple(Decoded(ids, tuple(ticket.margins)) for ids, ticket in answers),
            texts=tuple(texts),
            execution=self.execution,
        )

    def __aiter__(self) -> LocalGeneration:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk. Raises BackendFailed when decoding failed; ends early when cancelled."""
        while not self._closed:
            if self._ready:
                return self._ready.popleft()
            if self._num_read == len(self.tickets):
                break
            choice, piece = await self._next_piece()
            self._num_read += piece.finish_reason is not None
            if piece.step[0]:
                self._steps[choice].append(Step(*piece.step))
            if piece.finish_reason is RowFinishReason.ERROR:
                if self.tickets[choice].pushed_out:
                    raise QueueFull("The queue is full, and most of it is yours; try again soon.")
                raise BackendFailed(detail=f"decoding failed: {self.tickets[choice].error}")
            if self._closed or piece.finish_reason is RowFinishReason.CANCELLED:
                continue
            if piece.text or piece.logprobs or piece.finish_reason is not None:
                self._ready.extend(self._choosing.add(self._chunk(choice, piece)))
        raise StopAsyncIteration

    async def _next_piece(self) -> tuple[int, Piece]:
        """Raises QueueTimeout where no row has a slot in time."""
        seconds, self._queue_seconds = self._queue_seconds, None
        if seconds is not None:
            try:
                async with asyncio.timeout(seconds):
                    return await self._pieces.get()
            except TimeoutError:
                if all(ticket.slot < 0 for ticket in self.tickets):
                    raise QueueTimeout(
                        f"No place was free within {seconds:g} seconds.", retry_after=5
                    ) from None
        return await self._pieces.get()

    async def aclose(self) -> None:
        """Cancel the rows that still run, and wait until the engine has let go of them."""
        self._closed = True
        for ticket in self.tickets:
            ticket.cancel()
        if self.tickets:
            await self._ended.wait()

    def _chunk(self, choice: int, piece: Piece) -> Chunk:
        ended = piece.finish_reason is not None
        stats = self.tickets[choice].stats
        usage = Usage(self._num_prompt_tokens, stats.num_output_tokens, stats.num_cached_tokens)
        text, logprobs = piece.text, tuple(self._logprob(entry) for entry in piece.logprobs)
        if self._job.request.echo and choice not in self._begun:
            self._begun.add(choice)
            text, logprobs = self._prompt_text() + text, self._prompt_logprobs(choice) + logprobs
        chunk = Chunk(
            index=choice,
            text=text,
            logprobs=None if self._job.sampling.logprobs is None else logprobs,
            finish_reason=self._finish_reason(choice, piece),
            usage=usage if ended else None,
            stop=self.tickets[choice].sequence.stop if ended else None,
            steps=tuple(self._steps.pop(choice, ())),
        )
        return with_calls(self._readers[choice], chunk) if self._readers else chunk

    def _finish_reason(self, choice: int, piece: Piece) -> FinishReason | None:
        if piece.finish_reason is None:
            return None
        # A call is complete where the answer ended by itself; a stop string may cut it.
        if self._job.request.called and piece.finish_reason is RowFinishReason.STOP:
            last = self.tickets[choice].sequence.token_ids[-1]
            if last in self._loaded.tokenizer.eos_ids:
                return FinishReason.TOOL_CALLS
        return FinishReason(piece.finish_reason.value)

    def _prompt_text(self) -> str:
        """The prompt as it was sent; one of token ids as they read."""
        prompt = self._job.request.prompt
        return prompt if isinstance(prompt, str) else self._loaded.tokenizer.decode(prompt or ())

    def _prompt_logprobs(self, choice: int) -> tuple[TokenLogprob, ...]:
        ticket = self.tickets[choice]
        if not ticket.scores_prompt:
            return ()
        first = self._token(ticket.sequence.token_ids[0], None)
        following = (self._logprob(entry) for entry in ticket.prompt_logprobs)
        return (first, *following)

    def _logprob(self, entry: RowLogprob) -> TokenLogprob:
        top = tuple(self._token(*likely) for likely in entry.top)
        return msgspec.structs.replace(self._token(entry.token_id, entry.logprob), top=top)

    def _token(self, token_id: int, logprob: float | None) -> TokenLogprob:
        tokenizer = self._loaded.tokenizer
        raw = tokenizer.token_bytes(token_id)
        shown = b"" if token_id in tokenizer.special_ids else raw
        # The bytes that go on with a character are those that are 10xxxxxx.
        begun = sum(byte & 0xC0 != 0x80 for byte in shown)
        return TokenLogprob(raw.decode(errors="replace"), logprob, raw, begun)


def _verifier_class(ticket: Ticket) -> str:
    return "exact" if ticket.verifier.exact else "lossy"


def _accept_counts(stats: Sequence[DecodeStats]) -> tuple[int, ...]:
    longest = max((len(s.accept_counts) for s in stats), default=0)
    return tuple(
        sum(s.accept_counts[k] for s in stats if k < len(s.accept_counts)) for k in range(longest)
    )


def _by_source(stats: Sequence[DecodeStats]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for entry in stats:
        for source, (proposed, accepted) in entry.by_source.items():
            before = total.get(source, (0, 0))
            total[source] = (before[0] + proposed, before[1] + accepted)
    return total
