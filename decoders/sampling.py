"""From logits to a token: the logits processors, and the noise that makes the choice.

The processors are pure functions of the logits and the tokens before them. The noise is counter
based: a function of (seed, output position, token id) alone, so the choice at a position does not
depend on how many positions one forward evaluated, on the other rows, or on earlier rejections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from decoders.params import SamplingParams

_MASK64 = (1 << 64) - 1
# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
_WEYL = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
# Looked at first for top-p: sorting a whole vocabulary costs more than a small model's forward.
_NUCLEUS_CANDIDATES = 256
_CPU = torch.device("cpu")


class Purpose(IntEnum):
    """What a draw is for. Draws for different purposes at one position are independent."""

    CHOICE = 0
    """The target's own choice in the `coupled` verifier, and a draft model's proposal beside it."""
    ACCEPT = 1
    """Whether a draft token stands."""
    RESIDUAL = 2
    """The token in place of one that does not."""
    BONUS = 3
    """The token where there is no draft, or after one that stood whole."""
    CANDIDATE = 4
    """A further candidate beside the draft token; the j-th has purpose CANDIDATE + j."""


class Noise(Protocol):
    """The source of randomness of one sequence."""

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> Sequence[int]:
        """One token id per row of ``scores`` [n, vocab], drawn with `law` of that row.

        Row i is the choice at output position ``position + i``; ``-inf`` is never chosen.
        """
        ...

    def accept(self, probability: float, position: int) -> bool:
        """True with ``probability``, by a draw for purpose ACCEPT at output ``position``."""
        ...

    def law(self, scores: Tensor) -> Tensor:
        """The law that `choose` draws with, float64, for each row of ``scores`` [..., vocab]."""
        ...


class Greedy:
    """No noise: the most likely token, the smallest id of equals."""

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> list[int]:
        """The argmax of each row of ``scores`` [n, vocab]."""
        chosen: list[int] = scores.argmax(dim=-1).tolist()
        return chosen

    def accept(self, probability: float, position: int) -> bool:
        """Whether it is certain: a draft token is the most likely token or it is not."""
        return probability >= 1.0

    def law(self, scores: Tensor) -> Tensor:
        """All mass on the argmax of each row."""
        best = scores.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, best, 1.0)


class GumbelNoise:
    """Gumbel-max sampling: argmax(log p + G) has law p when G is standard Gumbel noise."""

    def __init__(self, seed: int) -> None:
        self.seed = seed & _MASK64

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> list[int]:
        """The argmax of scores + noise for each row of ``scores`` [n, vocab]."""
        count, vocab_size = scores.shape
        stream = _stream(self.seed, purpose)
        noise = gumbel(stream, position, count, vocab_size, scores.device)
        chosen: list[int] = (scores + noise).argmax(dim=-1).tolist()
        return chosen

    def accept(self, probability: float, position: int) -> bool:
        """Whether a uniform number falls below ``probability``."""
        bits = random_bits(_stream(self.seed, Purpose.ACCEPT), position, 1, 1, _CPU)
        return (int(bits.item()) + 0.5) * 2.0**-53 < probability

    def law(self, scores: Tensor) -> Tensor:
        """Softmax of each row."""
        return scores.to(torch.float64).softmax(dim=-1)


def noise_for(params: SamplingParams, seed: int) -> Noise:
    """The noise that ``params`` ask for: none at temperature 0."""
    return Greedy() if params.greedy else GumbelNoise(seed)


def random_bits(
    seed: int, position: int, count: int, vocab_size: int, device: torch.device
) -> Tensor:
    """53 random bits for each of ``count`` output positions × token ids, as int64 [count, vocab_size].

    Integer arithmetic only, so the bits are the same on every device: SplitMix64 with one stream per
    (seed, position) and the token id as its counter.
    """
    keys = [_signed(_mix(_mix(seed) + (position + i + 1) * _WEYL)) for i in range(count)]
    key = torch.tensor(keys, dtype=torch.int64, device=device).unsqueeze(1)
    counter = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    bits = key + counter * _signed(_WEYL)
    bits = (bits ^ _shift(bits, 30)) * _signed(_MIX_1)
    bits = (bits ^ _shift(bits, 27)) * _signed(_MIX_2)
    return _shift(bits ^ _shift(bits, 31), 11)


def gumbel(seed: int, position: int, count: int, vocab_size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, float64 [count, vocab_size], row i for output position ``position + i``."""
    bits = random_bits(seed, position, count, vocab_size, device)
    # The middle of each of the 2^53 intervals: never 0 or 1, so never an infinite value.
    uniform = (bits.to(torch.float64) + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_()


def _stream(seed: int, purpose: int) -> int:
    """The seed itself for the choice, so that a logged seed means what it always meant."""
    return _mix(_mix(seed) ^ (purpose * _WEYL)) if purpose else seed


def _mix(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _shift(bits: Tensor, count: int) -> Tensor:
    """Logical right shift: torch's is arithmetic for int64."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


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


def process(
    logits: Tensor,
    params: SamplingParams,
    counts: TokenCounts | None = None,
    draft_ids: Sequence[int] = (),
    allowed: Tensor | None = None,
) -> Tensor:
    """The target's scores after all processors: softmax of a row is the law of its position.

    ``logits`` is floating point [len(draft_ids) + 1, vocab]; row i is conditioned on the first i draft
    tokens, in the forward pass and here. ``-inf`` marks tokens with probability 0. ``allowed`` is
    bool in the same shape: all others have probability 0, before anything looks at likely tokens.
    """
    scores = logits
    if params.logit_bias:
        scores = _add_bias(scores, params)
    if params.penalizes and counts is not None:
        scores = _penalize(scores, params, counts, draft_ids)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if params.greedy:
        return scores
    if params.temperature != 1.0:
        # From the maximum down: dividing by a small temperature then cannot overflow.
        scores = (scores - scores.amax(dim=-1, keepdim=True)) / params.temperature
    if params.min_p > 0.0:
        floor = scores.amax(dim=-1, keepdim=True) + math.log(params.min_p)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    if 0 < params.top_k < scores.shape[-1]:
        last = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if params.top_p < 1.0:
        scores = scores.masked_fill(scores < _nucleus_floor(scores, params.top_p), -torch.inf)
    return scores


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
    in_output = counts.along(draft_ids).to(scores.dtype)
    if params.repetition_penalty != 1.0:
        seen = counts.in_prompt | (in_output > 0)
        penalized = torch.where(
            scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty
        )
        scores = torch.where(seen, penalized, scores)
    scores = scores - params.frequency_penalty * in_output
    return scores - params.presence_penalty * (in_output > 0).to(scores.dtype)


def _nucleus_floor(scores: Tensor, top_p: float) -> Tensor:
    """The score [n, 1] of the last token of the smallest set of likeliest tokens with mass ≥ top_p.

    A floor rather than a set of indices: tokens that tie with the last one are kept, so the law
    does not depend on the order in which a sort happens to leave equals.
    """
    total = scores.logsumexp(dim=-1, keepdim=True)
    candidates = min(_NUCLEUS_CANDIDATES, scores.shape[-1])
    top = scores.topk(candidates, dim=-1).values
    mass = (top - total).exp().cumsum(dim=-1)
    if candidates < scores.shape[-1] and bool((mass[:, -1] < top_p).any()):
        top = scores.sort(dim=-1, descending=True).values
        mass = (top - total).exp().cumsum(dim=-1)
    last = (mass < top_p).sum(dim=-1, keepdim=True).clamp(max=top.shape[-1] - 1)
    return top.gather(-1, last)
