"""The drafts of one step: sources propose, gates cut, the cost model has the last word.

Asks each source once for all of its rows, and passes on what became of every draft. It must not know
how a draft is verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from decoders.acceptance import DraftKind
from decoders.cost import Cost, Offer, Why
from decoders.draft import NO_DRAFT, Draft
from decoders.drafts.base import DraftRequest, DraftSource
from decoders.gates import GateContext
from decoders.request import Ticket


@dataclass(frozen=True)
class Share:
    """One row's part in one step."""

    ticket: Ticket
    new_ids: tuple[int, ...]
    """Tokens that go into the cache now, before the draft."""
    decodes: bool
    """Whether the step reaches the end of the sequence, so that it emits tokens."""
    draft: Draft = NO_DRAFT


@dataclass(frozen=True)
class _Proposal:
    """What a row may have, and why it is no more."""

    draft: Draft
    why: Why | None
    """None where nothing has cut it."""


class Drafting:
    """Turns the shares of a step into shares with drafts."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def draft(self, shares: Sequence[Share]) -> list[Share]:
        """The same shares, each with the draft that stands."""
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
        """Pass on what became of a row's draft; ``last_scores`` [vocab] gave its last token."""
        ticket, draft = share.ticket, share.draft
        wanted = ticket.request.mode.source(position)
        if wanted is None:
            return
        ticket.last_scores = last_scores.clone()
        if len(draft):
            ticket.stats.record_draft(draft.source, position, len(draft), num_accepted)
            wanted[0].observe(ticket.number, len(draft), num_accepted)
            self._cost.observe(_kind(ticket, draft), ticket.history, len(draft), num_accepted)

    def forget(self, ticket: Ticket) -> None:
        """The row has ended."""
        wanted = ticket.request.mode.source(ticket.sequence.num_output_tokens)
        if wanted is not None:
            wanted[0].forget(ticket.number)

    def _propose(self, shares: Sequence[Share]) -> Mapping[int, _Proposal]:
        """What sources and gates let stand, for every row that might have a draft, by its number."""
        proposals: dict[int, _Proposal] = {}
        asked: dict[DraftSource, list[tuple[Share, DraftRequest]]] = {}
        for share in shares:
            sequence = share.ticket.sequence
            wanted = share.ticket.request.mode.source(sequence.num_output_tokens)
            if wanted is None or not share.decodes or len(share.new_ids) > 1:
                continue
            # The last token of an answer is never a draft's: each step emits one token more.
            source, limit = wanted[0], min(wanted[1], sequence.num_remaining_tokens - 1)
            if limit < 1:
                proposals[share.ticket.number] = _Proposal(NO_DRAFT, Why.END)
                continue
            request = DraftRequest(share.ticket.number, sequence.token_ids, limit)
            asked.setdefault(source, []).append((share, request))
        for source, rows in asked.items():
            drafts = source.propose([request for _, request in rows])
            for (share, request), draft in zip(rows, drafts, strict=True):
                # Cut here too: a source that says too much must not write past the cache.
                proposals[share.ticket.number] = _gated(
                    share.ticket, draft.first(request.max_tokens)
                )
        return proposals


def _gated(ticket: Ticket, draft: Draft) -> _Proposal:
    context = GateContext(ticket.sequence.num_output_tokens, ticket.last_scores)
    admitted = ticket.request.mode.admit(draft, context)
    if len(admitted) < len(draft):
        return _Proposal(admitted, Why.GATE)
    return _Proposal(admitted, None if len(draft) else Why.NO_MATCH)


def _offer(share: Share, proposal: _Proposal | None) -> Offer:
    ticket = share.ticket
    draft = NO_DRAFT if proposal is None else proposal.draft
    return Offer(
        num_tokens=len(share.new_ids),
        decodes=share.decodes,
        num_draft_tokens=len(draft),
        kind=_kind(ticket, draft),
        samples=not ticket.request.params.greedy,
        history=ticket.history,
    )


def _kind(ticket: Ticket, draft: Draft) -> DraftKind:
    return DraftKind(draft.source, draft.match_length, ticket.request.domain)
