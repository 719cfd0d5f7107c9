"""The drafts of one step: sources propose, gates cut, the cost model has the last word.

A source is somebody else's code and never needed for an answer: when one fails, its rows decode
without a draft. How a draft is verified is not done here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from decoders.acceptance import DraftKind
from decoders.cost import Cost, Ruling, Why
from decoders.draft import NO_DRAFT, Dense, Draft
from decoders.drafts.base import DraftRequest, DraftSource, PricedDraftSource
from decoders.gates import GateContext
from decoders.offer import Offer
from decoders.price import Price, Reading
from decoders.request import Ticket
from decoders.sampling import process
from decoders.verifiers.base import wants_law
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
class _Wish:
    """A row that might have a draft, and whom to ask for it."""

    ticket: Ticket
    source: DraftSource
    request: DraftRequest
    context: GateContext
    price: Price | None
    """None where the draft costs nothing to draw."""


@dataclass(frozen=True)
class _Proposal:
    """What a row may have, and why it is no more."""

    draft: Draft
    why: Why | None
    """None where nothing has cut it."""


_NO_MATCH = _Proposal(NO_DRAFT, Why.NO_MATCH)
_UNASKED = _Proposal(NO_DRAFT, None)
"""The cost model has ruled against asking, and says why."""


class Drafter:
    """The engine's side of the draft sources, the gates and the cost model."""

    def __init__(self, vocab_size: int, cost: Cost) -> None:
        self._vocab_size = vocab_size
        self._cost = cost

    def draft(self, shares: Sequence[Share]) -> list[Share]:
        """The same shares, each with the draft that stands. Each source is asked once.

        What costs nothing to draw is there before the cost model rules; what has a price is drawn
        after that, and no more of it than was ruled.
        """
        wishes: list[_Wish] = []
        proposals: dict[int, _Proposal] = {}
        for share in shares:
            self._wish(share, wishes, proposals)
        proposals |= self._propose([wish for wish in wishes if wish.price is None])
        priced = {wish.ticket.number: wish for wish in wishes if wish.price is not None}
        rulings = self._cost.admit(
            [
                _offer(share, proposals.get(share.ticket.number), priced.get(share.ticket.number))
                for share in shares
            ]
        )
        ruled = {share.ticket.number: ruling for share, ruling in zip(shares, rulings, strict=True)}
        drawn = self._propose(
            [
                replace(wish, request=replace(wish.request, max_tokens=count))
                for number, wish in priced.items()
                if (count := ruled[number].num_draft_tokens)
            ]
        )
        proposals |= {number: drawn.get(number, _UNASKED) for number in priced}
        return [_drafted(share, proposals, ruled[share.ticket.number]) for share in shares]

    def settle(self, share: Share, position: int, num_accepted: int, last_scores: Tensor) -> None:
        """Count what became of a row's draft at output ``position``, and let the cost model learn.

        ``last_scores`` [vocab] is what the row's last token was chosen from.
        """
        ticket, draft = share.ticket, share.draft
        if ticket.mode.source(position) is None:
            return
        ticket.last_scores = last_scores.clone()
        if not len(draft):
            return
        ticket.stats.record_draft(draft.source, position, len(draft), num_accepted)
        self._cost.observe(_kind(ticket, draft), ticket.history, len(draft), num_accepted)

    def forget(self, ticket: Ticket) -> None:
        """Tell the source that the sequence has ended."""
        wanted = ticket.mode.source(ticket.sequence.num_output_tokens)
        if wanted is not None:
            try:
                wanted[0].forget(ticket.number)
            except Exception:  # noqa: BLE001 - logged: the row is over in any case
                _log.exception("a draft source failed to forget")

    def _wish(self, share: Share, wishes: list[_Wish], proposals: dict[int, _Proposal]) -> None:
        """Add a row that might have a draft to ``wishes``, or why it has none to ``proposals``."""
        ticket, sequence = share.ticket, share.ticket.sequence
        wanted = ticket.drafting.source(sequence.num_output_tokens)
        if wanted is None or not share.decodes or len(share.new_ids) > 1:
            return
        # The last token of an answer is never a draft's: each step emits one token more.
        source, limit = wanted[0], min(wanted[1], sequence.num_remaining_tokens - 1)
        if limit < 1:
            proposals[ticket.number] = _Proposal(NO_DRAFT, Why.END)
            return
        request = DraftRequest(
            ticket.number,
            sequence.token_ids,
            limit,
            sequence.num_output_tokens,
            ticket.noise,
            _scope(ticket),
            process=partial(_process, ticket, self._vocab_size),
            wants_law=wants_law(ticket.verifier),
        )
        context = GateContext(sequence.num_output_tokens, ticket.last_scores)
        price = None
        if isinstance(source, PricedDraftSource):
            if not ticket.mode.opens(context):
                proposals[ticket.number] = _Proposal(NO_DRAFT, Why.GATE)
                return
            price = _price(source, request)
            if price is None:
                proposals[ticket.number] = _NO_MATCH
                return
        wishes.append(_Wish(ticket, source, request, context, price))

    def _propose(self, wishes: Sequence[_Wish]) -> dict[int, _Proposal]:
        """What sources and gates let stand, by the number of the row."""
        proposals: dict[int, _Proposal] = {}
        asked: dict[DraftSource, list[_Wish]] = {}
        for wish in wishes:
            asked.setdefault(wish.source, []).append(wish)
        for source, rows in asked.items():
            try:
                proposals.update(self._ask(source, rows))
            except Exception:  # noqa: BLE001 - logged: an answer never needs a draft
                _log.exception("a draft source failed; its rows go on without a draft")
                proposals.update({wish.ticket.number: _NO_MATCH for wish in rows})
        return proposals

    def _ask(self, source: DraftSource, wishes: Sequence[_Wish]) -> dict[int, _Proposal]:
        drafts = source.propose([wish.request for wish in wishes])
        behind = _behind(wishes)
        proposals = {}
        for wish, draft in zip(wishes, drafts, strict=True):
            # Cut here too: a source that says too much must not write past the cache, nor a draft
            # model's padding reach the target.
            draft = draft.first(wish.request.max_tokens).within(self._vocab_size)
            if not len(draft) and wish.ticket.number in behind:
                proposals[wish.ticket.number] = _Proposal(NO_DRAFT, Why.BEHIND)
            else:
                proposals[wish.ticket.number] = _gated(wish, draft)
        return proposals


def _behind(wishes: Sequence[_Wish]) -> set[int]:
    """The rows of one source, by number, that its model cannot have read wholly in this step."""
    priced = [(wish.ticket.number, wish.price) for wish in wishes if wish.price is not None]
    if not priced:
        return set()
    reading = Reading(priced[0][1].chunk_tokens)
    return {
        number
        for number, price in sorted(priced, key=lambda row: row[1].num_behind)
        if reading.take(price.num_behind) < price.num_behind
    }


def _gated(wish: _Wish, draft: Draft) -> _Proposal:
    if not len(draft):
        return _NO_MATCH
    admitted = wish.ticket.mode.admit(draft, wish.context)
    possible = _possible(wish, admitted)
    if len(possible) < len(admitted):
        return _Proposal(possible, Why.CONSTRAINT)
    return _Proposal(possible, Why.GATE if len(admitted) < len(draft) else None)


def _possible(wish: _Wish, draft: Draft) -> Draft:
    """What the constraint lets stand of a draft that is judged as given; the rest would be rejected.

    One that is judged by its law stays whole: cut for its tokens it would no longer have that law.
    """
    constraint = wish.ticket.constraint
    if constraint is None or (wish.request.wants_law and isinstance(draft.law, Dense)):
        return draft
    return draft.select(constraint.count_allowed(draft.token_ids)).one_hot()


def _drafted(share: Share, proposals: Mapping[int, _Proposal], ruling: Ruling) -> Share:
    """The share with as much of its proposal as the ruling admits; why is counted."""
    proposal = proposals.get(share.ticket.number)
    if proposal is None:
        return share
    draft = proposal.draft.first(ruling.num_draft_tokens)
    whole = len(draft) == len(proposal.draft)
    why = proposal.why if whole and proposal.why is not None else ruling.why
    share.ticket.stats.record_why(why.value)
    return replace(share, draft=draft)


def _price(source: PricedDraftSource, request: DraftRequest) -> Price | None:
    try:
        return source.price(request)
    except Exception:  # noqa: BLE001 - logged: an answer never needs a draft
        _log.exception("a draft source failed to name its price; its row goes on without a draft")
        return None


def _process(ticket: Ticket, vocab_size: int, logits: Tensor, drafted: Sequence[int]) -> Tensor:
    """A draft model's logits [1, vocab] as the target's are processed, over the target's ids."""
    width = logits.shape[-1]
    if width < vocab_size:
        logits = torch.nn.functional.pad(logits, (0, vocab_size - width), value=-torch.inf)
    allowed = None
    if ticket.constraint is not None:
        rows = ticket.constraint.allowed(drafted)
        allowed = None if rows is None else rows[-1:].to(logits.device)
    logits = logits[:, :vocab_size]
    return process(logits, ticket.request.params, ticket.counts, drafted, allowed)


def _offer(share: Share, proposal: _Proposal | None, wish: _Wish | None) -> Offer:
    ticket = share.ticket
    offer = Offer(
        num_tokens=len(share.new_ids),
        decodes=share.decodes,
        num_cached=ticket.num_cached,
        samples=not ticket.request.params.greedy,
        history=ticket.history,
        num_remaining=ticket.sequence.num_remaining_tokens,
    )
    if wish is not None and isinstance(wish.source, PricedDraftSource):
        kind = DraftKind(wish.source.name, domain=ticket.request.domain)
        return replace(offer, num_draft_tokens=wish.request.max_tokens, kind=kind, price=wish.price)
    draft = NO_DRAFT if proposal is None else proposal.draft
    return replace(offer, num_draft_tokens=len(draft), kind=_kind(ticket, draft))


def _scope(ticket: Ticket) -> str | None:
    """Whose ended answers the row may draft from: its own scope's, if they cannot bend its law."""
    coupled = isinstance(ticket.verifier, CoupledVerifier)
    return ticket.request.scope if coupled else None


def _kind(ticket: Ticket, draft: Draft) -> DraftKind:
    return DraftKind(draft.source, draft.match_length, ticket.request.domain)
