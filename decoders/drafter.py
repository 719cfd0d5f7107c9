"""Asks the draft sources for the rows of one step, and keeps their faults away from the rows.

A source is somebody else's code and never needed for an answer: when one fails, its rows decode
without a draft.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from decoders.draft import Draft
from decoders.drafts.base import DraftRequest, DraftSource
from decoders.request import Ticket

_log = logging.getLogger(__name__)


class Drafter:
    """The engine's side of the draft sources."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, tickets: Sequence[Ticket]) -> dict[int, Draft]:
        """Drafts by ticket number. Each source is asked once, for all of its rows."""
        asked: dict[DraftSource, list[tuple[Ticket, DraftRequest]]] = {}
        for ticket in tickets:
            sequence = ticket.sequence
            wanted = ticket.request.mode.source(sequence.num_output_tokens)
            # The last token of an answer is never a draft's: each step emits one token more.
            if wanted is not None and sequence.num_remaining_tokens > 1:
                source, limit = wanted
                limit = min(limit, sequence.num_remaining_tokens - 1)
                request = DraftRequest(
                    ticket.number,
                    sequence.token_ids,
                    limit,
                    sequence.num_output_tokens,
                    ticket.noise,
                )
                asked.setdefault(source, []).append((ticket, request))
        drafts: dict[int, Draft] = {}
        for source, rows in asked.items():
            try:
                drafts.update(self._ask(source, rows))
            except Exception:  # noqa: BLE001 - logged: an answer never needs a draft
                _log.exception("a draft source failed; its rows go on without a draft")
        return drafts

    def observe(self, ticket: Ticket, draft: Draft, position: int, num_accepted: int) -> None:
        """Tell the source what became of its draft at output ``position``."""
        wanted = ticket.request.mode.source(position)
        if wanted is not None:
            try:
                wanted[0].observe(ticket.number, len(draft), num_accepted)
            except Exception:  # noqa: BLE001 - logged: the tokens are emitted already
                _log.exception("a draft source failed to observe")

    def forget(self, ticket: Ticket) -> None:
        """Tell the source that the sequence has ended."""
        wanted = ticket.request.mode.source(ticket.sequence.num_output_tokens)
        if wanted is not None:
            try:
                wanted[0].forget(ticket.number)
            except Exception:  # noqa: BLE001 - logged: the row is over in any case
                _log.exception("a draft source failed to forget")

    def _ask(
        self, source: DraftSource, rows: Sequence[tuple[Ticket, DraftRequest]]
    ) -> dict[int, Draft]:
        proposed = source.propose([request for _, request in rows])
        drafts = {}
        for (ticket, request), draft in zip(rows, proposed, strict=True):
            # Cut here too: a source that says too much must not write past the cache, nor a draft
            # model's padding reach the target.
            draft = draft.first(request.max_tokens).within(self._vocab_size)
            position = ticket.sequence.num_output_tokens
            drafts[ticket.number] = ticket.request.mode.admit(draft, position)
        return drafts
