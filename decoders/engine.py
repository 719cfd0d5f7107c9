"""The engine: continuous batching of standard, speculative and hybrid rows over one model.

One thread owns the model and repeats four calls: admit, propose, forward, commit. The loop never
asks which mode a row has; a standard row just has no draft. Knows nothing of policies or HTTP.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoders.cost import Cost, EverythingPays
from decoders.drafter import Drafter, Share
from decoders.evidence import Evidence
from decoders.intake import check_prompt, make_ticket
from decoders.line import Line
from decoders.logprobs import token_logprobs
from decoders.margin import margins
from decoders.meter import Meter, NoMeter
from decoders.models.base import LanguageModel, Row, Tokenizer
from decoders.params import FinishReason
from decoders.probe import PrefillProbe
from decoders.readings import NoReadings, PromptReadings, Readings
from decoders.request import EngineStopped, Request, Ticket
from decoders.rescue import parts_of
from decoders.sequence import Piece, TokenSequence
from decoders.slots import SlotTable
from decoders.verification import Verified, verify_rows

_log = logging.getLogger(__name__)


class Engine:
    """Decodes any number of requests over one model; see `start`, `submit` and `generate`."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        max_queue: int = 64,
        max_queue_per_scope: int | None = None,
        prefill_chunk_tokens: int = 256,
        cost: Cost | None = None,
        probe: PrefillProbe | None = None,
        meter: Meter | None = None,
    ) -> None:
        """``cost`` says how much of each draft is worth its time; None: all of it.

        ``meter`` measures what is emitted; None: nothing is. ``probe`` reads every prompt for the
        requests' ``on_prefill``. Raises ModelError for one that looks where the model shows nothing.
        """
        if max_queue < 0 or prefill_chunk_tokens < 1:
            raise ValueError("max_queue must be at least 0 and prefill_chunk_tokens at least 1")
        self.model = model
        self.tokenizer = tokenizer
        self._readings: Readings = (
            NoReadings(model) if probe is None else PromptReadings(probe, model)
        )
        self._probed = probe is not None
        self._slots = self._empty_slots()
        self._drafter = Drafter(model.vocab_size, cost or EverythingPays())
        self._meter = meter or NoMeter()
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._waiting = Line(max_queue, max_queue_per_scope)
        self._pushed_out: list[Ticket] = []
        self._running: list[Ticket] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._failed = False
        self._died: Callable[[BaseException], None] | None = None
        self._thread: threading.Thread | None = None
        self._next_number = 0

    # -- callers' side: any thread -----------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> list[Ticket]:
        """Queue all of ``requests``, all of one scope, or none.

        Raises QueueFull, EngineStopped, or ParameterError for a prompt that is empty or too long.
        """
        tickets = [
            make_ticket(request, self.model, self.tokenizer, probed=self._probed)
            for request in requests
        ]
        with self._changed:
            if self._stopping or self._failed:
                raise EngineStopped("the engine is stopped" if self._stopping else "it has failed")
            num_free = self._slots.num_free + len(self._patient())
            self._pushed_out += self._waiting.add(tickets, num_free)
            for ticket in tickets:
                ticket.number = self._next_number
                self._next_number += 1
            self._changed.notify()
        return tickets

    def check(self, prompt_ids: Sequence[int]) -> None:
        """Raise ParameterError when no request can have this prompt: PromptTooLong, empty, bad ids."""
        check_prompt(prompt_ids, self.model)

    def generate(self, request: Request) -> TokenSequence:
        """Decode one request to its end and return its sequence. Raises RuntimeError when it fails."""
        (ticket,) = self.submit([request])
        if self._thread is None:
            while not ticket.done.is_set():
                self.step()
        ticket.done.wait()
        if ticket.error is not None:
            raise RuntimeError(ticket.error)
        return ticket.sequence

    @property
    def alive(self) -> bool:
        """Whether requests are being decoded."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def num_running(self) -> int:
        """Rows that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot, without the patient ones."""
        return len(self._waiting)

    def start(self, died: Callable[[BaseException], None] | None = None) -> None:
        """Run the loop in a thread of its own until `stop`.

        ``died`` is called by that thread when it ends by a fault; then `revive` can start another.
        """
        self._died = died
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def revive(self) -> None:
        """Start again after a fault, with empty slots. Raises what resetting the model raises."""
        if self._thread is not None:
            self._thread.join()
        for slot in range(self.model.num_slots):
            self.model.reset(slot)
        with self._changed:
            if self._stopping or not self._failed:
                return
            self._slots = self._empty_slots()
            self._failed = False
        self.start(self._died)

    def stop(self) -> None:
        """Cancel everything and end the thread. Idempotent."""
        with self._changed:
            self._stopping = True
            for ticket in [*self._waiting, *self._running]:
                ticket.cancel()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._drop_cancelled()

    # -- the engine's thread -----------------------------------------------------------------------

    def step(self) -> bool:
        """Admit, propose, forward, commit once; False when there was nothing to do."""
        self._drop_cancelled()
        self._admit()
        if not self._running:
            return False
        try:
            shares = self._propose()
        except Exception as error:  # noqa: BLE001 - whatever broke, no caller may wait for ever
            self._fail(list(self._running), error)
            return True
        self._decode(shares)
        return True

    def _decode(self, shares: Sequence[Share]) -> None:
        """Forward and commit; where that fails, the parts by themselves, so that it is one row's."""
        if not shares:
            return
        try:
            logits = self._forward(shares)
        except Exception as error:  # noqa: BLE001 - kept: it is some row's
            parts = parts_of(shares, error)
            if not parts:
                self._fail([share.ticket for share in shares], error)
            elif isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            for part in parts:
                self._decode(part)
            return
        try:
            self._commit(shares, logits)
        except Exception as error:  # noqa: BLE001 - whatever broke, no caller may wait for ever
            self._fail([share.ticket for share in shares], error)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting.is_empty and not (self._running or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    return
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - told to whoever can start another
                self._abandon(error)
                return

    def _abandon(self, error: BaseException) -> None:
        """Let go of everybody, and of the model, which may be what broke."""
        _log.critical("the engine's thread ends by a fault", exc_info=error)
        with self._changed:
            self._failed = True
            everybody = [*self._waiting.clear(), *self._pushed_out, *self._running]
            self._pushed_out, self._running = [], []
        for ticket in everybody:
            self._drafter.forget(ticket)
            if not ticket.done.is_set():
                ticket.blame(error)
                ticket.sequence.finish_reason = FinishReason.ERROR
                ticket.close(FinishReason.ERROR, Piece(finish_reason=FinishReason.ERROR))
        if self._died is not None:
            self._died(error)

    def _drop_cancelled(self) -> None:
        with self._changed:
            waiting = [ticket for ticket in self._waiting if ticket.cancelled]
            for ticket in waiting:
                self._waiting.remove(ticket)
            pushed_out, self._pushed_out = self._pushed_out, []
        running = [ticket for ticket in self._running if ticket.cancelled]
        for ticket in waiting + running:
            self._finish(ticket, FinishReason.CANCELLED)
        for ticket in pushed_out:
            ticket.pushed_out = True
            ticket.error = "QueueFull: the place in the queue went to another caller"
            self._finish(ticket, FinishReason.ERROR)

    def _admit(self) -> None:
        self._make_way()
        with self._changed:
            while self._slots.num_free and (ticket := self._waiting.take()) is not None:
                self._slots.take(ticket)
                self._running.append(ticket)
                ticket.admitted_at = time.perf_counter()
                ticket.stats.queue_seconds = ticket.admitted_at - ticket.submitted_at

    def _make_way(self) -> None:
        """Give up what is patient as soon as something waits that is not."""
        if len(self._waiting):
            for ticket in self._patient():
                ticket.evicted = True
                self._finish(ticket, FinishReason.CANCELLED)

    def _patient(self) -> list[Ticket]:
        return [ticket for ticket in self._running if ticket.request.patient]

    def _propose(self) -> list[Share]:
        """What each row brings to this step: its next tokens and its draft.

        Rows in prefill share a budget of tokens, so that a long prompt cannot stall the others.
        """
        budget = self._prefill_chunk_tokens
        shares = []
        for ticket in self._running:
            if not self._slots.ready(ticket):
                continue
            pending = ticket.num_pending
            count = 1 if pending == 1 else min(pending, budget, ticket.most_tokens)
            if count == 0:
                continue
            if pending > 1:
                budget -= count
            start = ticket.num_cached
            shares.append(
                Share(
                    ticket=ticket,
                    new_ids=tuple(ticket.sequence.token_ids[start : start + count]),
                    decodes=count == pending,
                )
            )
        return self._drafter.draft(shares)

    def _forward(self, shares: Sequence[Share]) -> Tensor:
        return self.model.forward(
            [
                Row(
                    slot=share.ticket.slot,
                    start=share.ticket.num_cached,
                    token_ids=share.new_ids + share.draft.token_ids,
                    num_logits=share.num_logits,
                )
                for share in shares
            ]
        )

    @torch.inference_mode()
    def _commit(self, shares: Sequence[Share], logits: Tensor) -> None:
        for share in shares:
            share.ticket.num_cached += len(share.new_ids)
        self._readings.tell(share.ticket for share in shares)
        if not any(share.num_logits for share in shares):
            return
        emitting: list[Share] = []
        wanted: list[Tensor] = []
        first = 0
        for share in shares:
            part = logits[first : first + share.num_logits]
            first += share.num_logits
            try:
                if self._score(share, part[: share.num_scored]):
                    emitting.append(share)
                    wanted.append(part[share.num_scored :])
            except Exception as error:  # noqa: BLE001 - kept: it is this row's and no other's
                self._fail([share.ticket], error)
        if not emitting:
            return
        # Whole as it came where that is all of it: a copy would be as wide as the vocabulary.
        together = logits if sum(map(len, wanted)) == len(logits) else torch.cat(wanted)
        results = verify_rows(emitting, together, self._meter)
        for share, verified in zip(emitting, results, strict=True):
            try:
                self._emit(share, verified)
            except Exception as error:  # noqa: BLE001 - kept: it is this row's and no other's
                self._fail([share.ticket], error)

    def _score(self, share: Share, logits: Tensor) -> bool:
        """Take the scores of a prompt from ``logits`` [num_scored, vocab]; whether the row emits."""
        ticket = share.ticket
        ticket.score(logits)
        if not share.decodes:
            return False
        if ticket.sequence.num_remaining_tokens > 0:
            return True
        ticket.stats.prefill_seconds = time.perf_counter() - ticket.admitted_at
        self._finish(ticket, FinishReason.LENGTH)
        return False

    def _emit(self, share: Share, verified: Verified | Exception) -> None:
        """Emit one row's tokens."""
        if isinstance(verified, Exception):
            raise verified
        ticket, verdict = share.ticket, verified.verdict
        sequence = ticket.sequence
        position = sequence.num_output_tokens
        wanted = ticket.request.params.logprobs
        logprobs = (
            () if wanted is None else token_logprobs(verified.logits, verdict.token_ids, wanted)
        )
        piece, emitted = sequence.extend(verdict.token_ids, logprobs)
        if ticket.constraint is not None:
            ticket.constraint.accept(verdict.token_ids[:emitted])
        if ticket.request.with_margins:
            ticket.margins += margins(verified.scores[:emitted], ticket.noise, position)
        ticket.stats.logprob += sum(entry.logprob for entry in logprobs[:emitted])
        # The last emitted token is not in the cache yet; accepted draft tokens are.
        ticket.num_cached = len(sequence.token_ids) - 1
        if ticket.counts is not None:
            ticket.counts.add(verdict.token_ids[:emitted])
        ticket.stats.distortion += sum(verdict.discrepancies[:emitted])
        ticket.add_measured(verified.measured[:emitted])
        ticket.count_step(position)
        accepted = min(verdict.num_accepted, emitted)
        self._drafter.settle(share, position, accepted, verified.scores[emitted - 1])
        if piece.finish_reason is not None:
            self._release(ticket)
        ticket.close(piece.finish_reason, piece.of_step(emitted, len(share.draft), accepted))

    def _fail(self, tickets: Sequence[Ticket], error: BaseException) -> None:
        _log.error("decoding failed for %d rows", len(tickets), exc_info=error)
        for ticket in tickets:
            if not ticket.done.is_set():
                ticket.blame(error)
                if ticket.slot >= 0:
                    self.model.reset(ticket.slot)
                self._finish(ticket, FinishReason.ERROR)

    def _finish(self, ticket: Ticket, reason: FinishReason) -> None:
        ticket.sequence.finish_reason = reason
        self._release(ticket)
        ticket.close(reason, Piece(finish_reason=reason))

    def _release(self, ticket: Ticket) -> None:
        if ticket in self._running:
            self._running.remove(ticket)
            # What a failed row leaves in its slot may be no numbers.
            failed = ticket.sequence.finish_reason is FinishReason.ERROR
            self._slots.release(ticket, 0 if failed else ticket.num_cached)
            ticket.stats.evidence = Evidence.of(ticket.read_measured())
        self._drafter.forget(ticket)

    def _empty_slots(self) -> SlotTable:
        return SlotTable(self.model.num_slots, self._readings.copier)
