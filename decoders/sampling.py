"""From logits to scores: the logits processors, for all rows of a step together.

They are pure functions of the logits and the tokens before them. What is chosen is `decoders.noise`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.noise import reading_is_free
from decoders.params import SamplingParams

# Looked at first for top-p: sorting a whole vocabulary costs more than a small model's forward.
_NUCLEUS_CANDIDATES = 256


class TokenCounts:
    """How often each token stands in a sequence; kept only for rows whose penalties need it."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.in_prompt[[token_id for token_id in prompt_ids if token_id < vocab_size]] = True
        self.in_output = torch.zeros(vocab_size, dtype=torch.int32, device=device)
        self.add(output_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count tokens that were emitted."""
        for token_id in token_ids:
            self.in_output[token_id] += 1

    def along(self, draft_ids: Sequence[int]) -> Tensor:
        """Output counts [len(draft_ids) + 1, vocab]: row i counts the first i draft tokens too."""
        rows = self.in_output.expand(len(draft_ids) + 1, -1).clone()
        for i, token_id in enumerate(draft_ids):
            rows[i + 1 :, token_id] += 1
        return rows


@dataclass(frozen=True)
class Context:
    """What the processors know of one row at one step."""

    params: SamplingParams
    num_positions: int = 1
    """How many positions are scored: the last of those behind each of the first i draft tokens."""
    counts: TokenCounts | None = None
    """Of the tokens before the draft; needed where the parameters penalise."""
    draft_ids: Sequence[int] = ()
    allowed: Tensor | None = None
    """Bool [num_positions, vocab]: all other tokens have probability 0, before anything looks at
    likely tokens. None: all are allowed."""


def process(
    logits: Tensor,
    params: SamplingParams,
    counts: TokenCounts | None = None,
    draft_ids: Sequence[int] = (),
    allowed: Tensor | None = None,
) -> Tensor:
    """`process_rows` of one row."""
    return process_rows(logits, [Context(params, len(logits), counts, draft_ids, allowed)])


def process_rows(logits: Tensor, contexts: Sequence[Context]) -> Tensor:
    """The target's scores after all processors: softmax of a row is the law of its position.

    ``logits`` is floating point [sum of num_positions, vocab], context after context; the last row of
    one is conditioned on all of its draft tokens, the one before on all but one, in the forward pass
    and here. ``-inf`` marks tokens with probability 0. What comes out for one context does not depend
    on the others, to the last bit but for the rounding of top-p's mass.
    """
    scores = _add_history(logits, contexts)
    spread = [context.params for context in contexts for _ in range(context.num_positions)]
    return _truncate(_temper(scores, spread), spread)


def _add_history(logits: Tensor, contexts: Sequence[Context]) -> Tensor:
    """Bias, penalties and what is allowed, where a row asks for them: one by one, as sizes differ."""
    parts, changed, first = [], False, 0
    for context in contexts:
        part = logits[first : first + context.num_positions]
        first += context.num_positions
        if context.params.logit_bias:
            part, changed = _add_bias(part, context.params), True
        if context.params.penalizes and context.counts is not None:
            part, changed = _penalize(part, context.params, context.counts, context.draft_ids), True
        if context.allowed is not None:
            part, changed = part.masked_fill(~context.allowed, -torch.inf), True
        parts.append(part)
    if not changed:
        return logits
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _temper(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Divide by the temperature, one of ``params`` for each row of ``scores``."""
    if all(row.greedy or row.temperature == 1.0 for row in params):
        return scores
    # From the maximum down: dividing by a small temperature then cannot overflow. Rows that are
    # not divided stay as they are, to the bit.
    divided = [0.0 if row.greedy or row.temperature == 1.0 else 1.0 for row in params]
    temperature = [row.temperature if on else 1.0 for row, on in zip(params, divided, strict=True)]
    on, divisor = _columns(scores, divided, temperature)
    top = scores.amax(dim=-1, keepdim=True)
    return (scores - top.where(on > 0, 0.0)).div_(divisor)


def _truncate(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Min-p, top-k and top-p, one of ``params`` for each row of ``scores``."""
    cut = [i for i, row in enumerate(params) if _truncates(row, scores.shape[-1])]
    if not cut:
        return scores
    if len(cut) == len(params):
        return _truncate_all(scores, params)
    at = torch.tensor(cut).to(scores.device, non_blocking=True)
    return scores.index_copy(0, at, _truncate_all(scores[at], [params[i] for i in cut]))


def _truncates(params: SamplingParams, vocab_size: int) -> bool:
    kept = params.min_p > 0.0 or 0 < params.top_k < vocab_size or params.top_p < 1.0
    return kept and not params.greedy


def _truncate_all(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    if any(row.min_p > 0.0 for row in params):
        (share,) = _columns(
            scores, [math.log(row.min_p) if row.min_p else -math.inf for row in params]
        )
        scores = _drop(scores, scores.amax(dim=-1, keepdim=True) + share)
    vocab_size = scores.shape[-1]
    kept = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in params]
    if min(kept) < vocab_size:
        most = max(count for count in kept if count < vocab_size)
        top = scores.topk(most, dim=-1).values
        (last,) = _columns(scores, [count - 1 for count in kept], dtype=torch.int64)
        floor = top.gather(-1, last.clamp(max=most - 1))
        scores = _drop(scores, floor.where(last < most, -torch.inf))
    if any(row.top_p < 1.0 for row in params):
        scores = _drop(scores, _nucleus_floor(scores, [row.top_p for row in params]))
    return scores


def _drop(scores: Tensor, floor: Tensor) -> Tensor:
    """No more of each row of ``scores`` than what reaches its ``floor`` [n, 1]."""
    return scores.masked_fill(scores < floor, -torch.inf)


def _columns(
    scores: Tensor, *columns: Sequence[float], dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """One column [n, 1] for each list of n numbers, brought to the device together."""
    host = torch.tensor(columns, dtype=dtype or scores.dtype)
    return host.to(scores.device, non_blocking=True).unsqueeze(-1).unbind()


def entropy(scores: Tensor) -> float:
    """Entropy in nats of the law softmax(scores), ``scores`` [vocab]; ``-inf`` has no part in it."""
    law = scores.log_softmax(dim=-1)
    return -float((law.exp() * law.clamp(min=torch.finfo(law.dtype).min)).sum())


def _add_bias(scores: Tensor, params: SamplingParams) -> Tensor:
    scores = scores.clone()
    for token_id, bias in params.logit_bias.items():
        if token_id < scores.shape[-1]:
            scores[:, token_id] += bias
    return scores


def _penalize(
    scores: Tensor, params: SamplingParams, counts: TokenCounts, draft_ids: Sequence[int]
) -> Tensor:
    in_output = counts.along(draft_ids)[-len(scores) :].to(scores.dtype)
    if params.repetition_penalty != 1.0:
        seen = counts.in_prompt | (in_output > 0)
        penalized = torch.where(
            scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty
        )
        scores = torch.where(seen, penalized, scores)
    scores = scores - params.frequency_penalty * in_output
    return scores - params.presence_penalty * (in_output > 0).to(scores.dtype)


def _nucleus_floor(scores: Tensor, top_p: Sequence[float]) -> Tensor:
    """The score [n, 1] of the last token of the smallest set of likeliest tokens with mass ≥ top_p.

    ``-inf`` where top_p is 1. A floor rather than a set of indices: tokens that tie with the last
    one are kept, so the law does not depend on the order in which a sort happens to leave equals.
    """
    (wanted,) = _columns(scores, [share if share < 1.0 else 0.0 for share in top_p])
    total = scores.logsumexp(dim=-1, keepdim=True)
    candidates = scores.shape[-1]
    if reading_is_free(scores.device):
        candidates = min(_NUCLEUS_CANDIDATES, candidates)
    top = scores.topk(candidates, dim=-1).values
    mass = (top - total).exp().cumsum(dim=-1)
    if candidates < scores.shape[-1] and bool((mass[:, -1:] < wanted).any()):
        top = scores.sort(dim=-1, descending=True).values
        mass = (top - total).exp().cumsum(dim=-1)
    last = (mass < wanted).sum(dim=-1, keepdim=True).clamp(max=top.shape[-1] - 1)
    return top.gather(-1, last).where(wanted > 0.0, -torch.inf)
