"""The drafts of one step: sources propose, gates cut, the cost model has the last word.

A source is somebody else's code and never needed for an answer: when one fails, its rows decode
without a draft. How a draft is verified is not done here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from decoders.acceptance import DraftKind
from decoders.cost import Cost, Offer, Why
from decoders.draft import NO_DRAFT, Draft, OneHot
from decoders.drafts.base import DraftRequest, DraftSource
from decoders.gates import GateContext
from decoders.request import Ticket
from decoders.verifiers.coupled import CoupledVerifier

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """One row's part in one step."""

    ticket: Ticket
    new_ids: tuple[int, ...]
    """Tokens that go into the cache now, before the draft."""
    decodes: bool
    """Whether the step reaches the end of the sequence, so that it emits tokens."""
    draft: Draft = NO_DRAFT

    @property
    def num_scored(self) -> int:
        """Tokens of the prompt whose probability the step tells; the emitted one is not among them."""
        return len(self.new_ids) - self.decodes if self.ticket.scores_prompt else 0

    @property
    def num_logits(self) -> int:
        """Rows of logits that the step wants, the last ones of its tokens'."""
        return self.num_scored + (len(self.draft) + 1 if self.decodes else 0)


@dataclass(frozen=True)
class _Proposal:
    """What a row may have, and why it is no more."""

    draft: Draft
    why: Why | None
    """None where nothing has cut it."""


_NO_MATCH = _Proposal(NO_DRAFT, Why.NO_MATCH)


class Drafter:
    """The engine's side of the draft sources, the gates and the cost model."""

    def __init__(self, vocab_size: int, cost: Cost) -> None:
        self._vocab_size = vocab_size
        self._cost = cost

    def draft(self, shares: Sequence[Share]) -> list[Share]:
        """The same shares, each with the draft that stands. Each source is asked once."""
        proposals = self._propose(shares)
        rulings = self._cost.admit(
            [_offer(share, proposals.get(share.ticket.number)) for share in shares]
        )
        drafted = []
        for share, ruling in zip(shares, rulings, strict=True):
            proposal = proposals.get(share.ticket.number)
            if proposal is None:
                drafted.append(share)
                continue
            whole = ruling.num_draft_tokens == len(proposal.draft)
            why = proposal.why if whole and proposal.why is not None else ruling.why
            share.ticket.stats.record_why(why.value)
            drafted.append(replace(share, draft=proposal.draft.first(ruling.num_draft_tokens)))
        return drafted

    def settle(self, share: Share, position: int, num_accepted: int, last_scores: Tensor) -> None:
        """Count what became of a row's draft at output ``position``, and let the cost model learn.

        ``last_scores`` [vocab] is what the row's last token was chosen from.
        """
        ticket, draft = share.ticket, share.draft
        if ticket.request.mode.source(position) is None:
            return
        ticket.last_scores = last_scores.clone()
        if not len(draft):
            return
        ticket.stats.record_draft(draft.source, position, len(draft), num_accepted)
        self._cost.observe(_kind(ticket, draft), ticket.history, len(draft), num_accepted)

    def forget(self, ticket: Ticket) -> None:
        """Tell the source that the sequence has ended."""
        wanted = ticket.request.mode.source(ticket.sequence.num_output_tokens)
        if wanted is not None:
            try:
                wanted[0].forget(ticket.number)
            except Exception:  # noqa: BLE001 - logged: the row is over in any case
                _log.exception("a draft source failed to forget")

    def _propose(self, shares: Sequence[Share]) -> Mapping[int, _Proposal]:
        """What sources and gates let stand, for every row that might have a draft, by its number."""
        proposals: dict[int, _Proposal] = {}
        asked: dict[DraftSource, list[tuple[Ticket, DraftRequest]]] = {}
        for share in shares:
            ticket, sequence = share.ticket, share.ticket.sequence
            wanted = ticket.request.mode.source(sequence.num_output_tokens)
            if wanted is None or not share.decodes or len(share.new_ids) > 1:
                continue
            # The last token of an answer is never a draft's: each step emits one token more.
            source, limit = wanted[0], min(wanted[1], sequence.num_remaining_tokens - 1)
            if limit < 1:
                proposals[ticket.number] = _Proposal(NO_DRAFT, Why.END)
                continue
            request = DraftRequest(
                ticket.number,
                sequence.token_ids,
                limit,
                sequence.num_output_tokens,
                ticket.noise,
                _scope(ticket),
            )
            asked.setdefault(source, []).append((ticket, request))
        for source, rows in asked.items():
            try:
                proposals.update(self._ask(source, rows))
            except Exception:  # noqa: BLE001 - logged: an answer never needs a draft
                _log.exception("a draft source failed; its rows go on without a draft")
                proposals.update({ticket.number: _NO_MATCH for ticket, _ in rows})
        return proposals

    def _ask(
        self, source: DraftSource, rows: Sequence[tuple[Ticket, DraftRequest]]
    ) -> dict[int, _Proposal]:
        drafts = source.propose([request for _, request in rows])
        proposals = {}
        for (ticket, request), draft in zip(rows, drafts, strict=True):
            # Cut here too: a source that says too much must not write past the cache, nor a draft
            # model's padding reach the target.
            draft = draft.first(request.max_tokens).within(self._vocab_size)
            proposals[ticket.number] = _gated(ticket, draft)
        return proposals


def _gated(ticket: Ticket, draft: Draft) -> _Proposal:
    if not len(draft):
        return _NO_MATCH
    context = GateContext(ticket.sequence.num_output_tokens, ticket.last_scores)
    admitted = ticket.request.mode.admit(draft, context)
    possible = _possible(ticket, admitted)
    if len(possible) < len(admitted):
        return _Proposal(possible, Why.CONSTRAINT)
    return _Proposal(possible, Why.GATE if len(admitted) < len(draft) else None)


def _possible(ticket: Ticket, draft: Draft) -> Draft:
    """What the constraint lets stand of a draft that is judged as given; the rest would be rejected.

    A drawn one stays whole: cut for its tokens it would no longer have its law.
    """
    if ticket.constraint is None or not isinstance(draft.law, OneHot):
        return draft
    return draft.first(ticket.constraint.count_allowed(draft.token_ids))


def _offer(share: Share, proposal: _Proposal | None) -> Offer:
    ticket = share.ticket
    draft = NO_DRAFT if proposal is None else proposal.draft
    return Offer(
        num_tokens=len(share.new_ids),
        decodes=share.decodes,
        num_cached=ticket.num_cached,
        num_draft_tokens=len(draft),
        kind=_kind(ticket, draft),
        samples=not ticket.request.params.greedy,
        history=ticket.history,
    )


def _scope(ticket: Ticket) -> str | None:
    """Whose ended answers the row may draft from: its own scope's, if they cannot bend its law."""
    coupled = isinstance(ticket.request.verifier, CoupledVerifier)
    return ticket.request.scope if coupled else None


def _kind(ticket: Ticket, draft: Draft) -> DraftKind:
    return DraftKind(draft.source, draft.match_length, ticket.request.domain)
