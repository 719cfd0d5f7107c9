"""The verdicts of one step: the logits of all rows through processors and verifiers.

Rows are taken together as far as their verifiers are equal, so that the usual step costs a fixed
number of tensor operations and one read from the device, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from decoders.drafter import Share
from decoders.meter import Meter
from decoders.noise import NO_TOKEN
from decoders.request import Ticket
from decoders.sampling import Context, TokenCounts, process_rows
from decoders.verifiers.base import DraftedRow, Verdict, Verifier, split


@dataclass(frozen=True)
class Verified:
    """What one row emits, and what from."""

    verdict: Verdict
    logits: Tensor
    """[len(draft) + 1, vocab], the target's own."""
    scores: Tensor
    """The same after all processors."""
    measured: Tensor
    """What the meter says of each token of the verdict."""


def verify_rows(
    shares: Sequence[Share], logits: Tensor, meter: Meter
) -> list[Verified | Exception]:
    """Judge the drafts of rows that all decode, and measure; what fails for a row is in its place.

    ``logits`` is [sum of len(draft) + 1, vocab], row after row.
    """
    parts = split(logits, [_row(share) for share in shares])
    results: dict[int, Verified | Exception] = {}
    for verifier, members in _grouped(shares):
        mine = [shares[i] for i in members]
        together = logits if len(mine) == len(shares) else torch.cat([parts[i] for i in members])
        results |= zip(members, _isolated(verifier, mine, together, meter), strict=True)
    return [results[i] for i in range(len(shares))]


def _grouped(shares: Sequence[Share]) -> list[tuple[Verifier, list[int]]]:
    groups: list[tuple[Verifier, list[int]]] = []
    for i, share in enumerate(shares):
        verifier = share.ticket.verifier
        group = next((members for other, members in groups if other == verifier), None)
        if group is None:
            groups.append((verifier, [i]))
        else:
            group.append(i)
    return groups


def _isolated(
    verifier: Verifier, shares: Sequence[Share], logits: Tensor, meter: Meter
) -> list[Verified | Exception]:
    """All rows together; where that fails one by one, so that a fault is its own row's."""
    try:
        return _verified(verifier, shares, logits, meter)
    except Exception as error:  # noqa: BLE001 - kept: the engine fails the row with it
        if len(shares) == 1:
            return [error]
    parts = split(logits, [_row(share) for share in shares])
    alone = (
        _isolated(verifier, [share], part, meter) for share, part in zip(shares, parts, strict=True)
    )
    return list(chain.from_iterable(alone))


def _verified(
    verifier: Verifier, shares: Sequence[Share], logits: Tensor, meter: Meter
) -> list[Verified | Exception]:
    rows = [_row(share) for share in shares]
    scores = process_rows(logits, [_context(share, logits) for share in shares])
    verdicts = verifier.verify(scores, rows)
    measured = meter.measure(verifier, scores, rows, verdicts)
    return [
        Verified(verdict, own, processed, columns)
        if verdict.token_ids[-1] != NO_TOKEN
        else ArithmeticError("the model's logits are not numbers, or leave no token possible")
        for verdict, own, processed, columns in zip(
            verdicts, split(logits, rows), split(scores, rows), measured, strict=True
        )
    ]


def _row(share: Share) -> DraftedRow:
    ticket = share.ticket
    return DraftedRow(share.draft, ticket.noise, ticket.sequence.num_output_tokens)


def _context(share: Share, logits: Tensor) -> Context:
    ticket = share.ticket
    params = ticket.request.params
    if ticket.counts is None and params.penalizes:
        ticket.counts = _token_counts(ticket, logits)
    draft_ids = share.draft.token_ids
    return Context(
        params, len(draft_ids) + 1, ticket.counts, draft_ids, _allowed(ticket, draft_ids, logits)
    )


def _allowed(ticket: Ticket, draft_ids: Sequence[int], logits: Tensor) -> Tensor | None:
    """What the row's constraint says along the draft, bool [len(draft_ids) + 1, vocab]."""
    if ticket.constraint is None:
        return None
    allowed = ticket.constraint.allowed(draft_ids)
    return None if allowed is None else allowed.to(logits.device)


def _token_counts(ticket: Ticket, logits: Tensor) -> TokenCounts:
    sequence = ticket.sequence
    prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
    return TokenCounts(prompt_ids, sequence.output_ids, logits.shape[-1], logits.device)
