"""The noise that makes a choice, and the choice: a token for each row of scores.

The noise is counter based: a pure function of (seed, purpose, output position, token id), so the
choice at a position does not depend on how many positions one forward evaluated, on the other rows,
or on earlier rejections. Integer arithmetic only until the last step, so the bits are the same on
every device: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) with one key for each (seed, purpose, position) and the token id as its counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, chain, islice
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decoders.noise_code import LEADING_ONES, MIX_1, MIX_2, WEYL, find
from decoders.params import SamplingParams

_MASK64 = (1 << 64) - 1
_LARGEST = 1.0 - 2.0**-53
# The noise is between -log(-log(2^-54)) = -3.63 and -log(-log(1 - 2^-53)) = 36.74, and above
# -log(-log(1 - 2^-12)) = 8.32 only if the upper `LEADING_ONES` bits are ones.
_FAR = 41.0
_NEAR = 12.0
# The share of tokens that are not far from the likeliest, up to which no other bits are worked out.
_FEW = 0.1
NO_TOKEN = -1
"""In place of a token id where the scores are not numbers, or leave no token possible."""


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

        Row i is the choice at output position ``position + i``; ``-inf`` is never chosen. NO_TOKEN
        where a score is not a number.
        """
        ...

    def accept(self, probability: float, position: int) -> bool:
        """True with ``probability``, by a draw for purpose ACCEPT at output ``position``."""
        ...

    def law(self, scores: Tensor) -> Tensor:
        """The law that `choose` draws with, float64, for each row of ``scores`` [..., vocab]."""
        ...


@runtime_checkable
class CounterBased(Protocol):
    """Noise that is added to the scores and follows from keys, so that many rows can choose at once."""

    def keys(self, position: int, count: int, purpose: int) -> Sequence[int | None]:
        """A key of `gumbel` for each of ``count`` output positions; None for no noise."""
        ...


class Greedy:
    """No noise: the most likely token, the smallest id of equals."""

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> Sequence[int]:
        """The argmax of each row of ``scores`` [n, vocab]."""
        return _choose(scores, self.keys(position, len(scores), purpose))

    def accept(self, probability: float, position: int) -> bool:
        """Whether it is certain: a draft token is the most likely token or it is not."""
        return probability >= 1.0

    def law(self, scores: Tensor) -> Tensor:
        """All mass on the argmax of each row."""
        best = scores.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, best, 1.0)

    def keys(self, position: int, count: int, purpose: int) -> Sequence[int | None]:
        """None for every position."""
        return [None] * count


class GumbelNoise:
    """Gumbel-max sampling: argmax(log p + G) has law p when G is standard Gumbel noise."""

    def __init__(self, seed: int) -> None:
        """Only the low 64 bits of ``seed`` count."""
        self.seed = seed % (1 << 64)

    def choose(self, scores: Tensor, position: int, purpose: int = Purpose.CHOICE) -> Sequence[int]:
        """The argmax of scores + noise for each row of ``scores`` [n, vocab]."""
        return _choose(scores, self.keys(position, len(scores), purpose))

    def accept(self, probability: float, position: int) -> bool:
        """Whether a uniform number falls below ``probability``."""
        return uniform(stream(self.seed, Purpose.ACCEPT), position) < probability

    def law(self, scores: Tensor) -> Tensor:
        """Softmax of each row."""
        return scores.to(torch.float64).softmax(dim=-1)

    def keys(self, position: int, count: int, purpose: int) -> Sequence[int | None]:
        """One for each position."""
        return position_keys(stream(self.seed, purpose), position, count)


def noise_for(params: SamplingParams, seed: int) -> Noise:
    """The noise that ``params`` ask for: none at temperature 0."""
    return Greedy() if params.greedy else GumbelNoise(seed)


@dataclass(frozen=True)
class Draw:
    """What one row wants chosen: a token at each of ``count`` output positions from ``position`` on."""

    noise: Noise
    position: int
    count: int
    purpose: int = Purpose.CHOICE


def choose(scores: Tensor, draws: Sequence[Draw]) -> list[Sequence[int]]:
    """The tokens of every draw, as `Noise.choose` gives them, with one read from the device.

    ``scores`` is [sum of the counts, vocab], draw after draw.
    """
    ends = list(accumulate(draw.count for draw in draws))
    parts = [scores[end - draw.count : end] for end, draw in zip(ends, draws, strict=True)]
    chosen: dict[int, Sequence[int]] = {}
    keys: dict[int, Sequence[int | None]] = {}
    for i, draw in enumerate(draws):
        if isinstance(draw.noise, CounterBased):
            keys[i] = draw.noise.keys(draw.position, draw.count, draw.purpose)
        else:
            chosen[i] = draw.noise.choose(parts[i], draw.position, draw.purpose)
    if keys:
        together = torch.cat([parts[i] for i in keys]) if chosen else scores
        tokens = iter(_choose(together, list(chain.from_iterable(keys.values()))))
        chosen |= {i: list(islice(tokens, len(some))) for i, some in keys.items()}
    return [chosen[i] for i in range(len(draws))]


def _choose(scores: Tensor, keys: Sequence[int | None]) -> list[int]:
    """The argmax of each row of ``scores`` [n, vocab] + the noise of its key."""
    noisy = [(i, key) for i, key in enumerate(keys) if key is not None]
    if len(noisy) == len(keys):
        best = _noisy_best(scores, [key for _, key in noisy])
    else:
        best = scores.argmax(dim=-1)
        if noisy:
            at = torch.tensor([i for i, _ in noisy]).to(scores.device, non_blocking=True)
            best[at] = _noisy_best(scores[at], [key for _, key in noisy])
    # Not so for what is no number, either.
    possible = scores.gather(-1, best.unsqueeze(-1))[:, 0] > -torch.inf
    tokens: list[int] = best.where(possible, NO_TOKEN).tolist()
    return tokens


def _noisy_best(scores: Tensor, keys: Sequence[int]) -> Tensor:
    """The argmax of each row of ``scores`` [n, vocab] + its noise, as int64 [n]."""
    if not reading_is_free(scores.device):
        return (scores + gumbel(keys, scores.shape[-1], scores.device)).argmax(dim=-1)
    lengths, token = _contenders(scores, keys)
    row = torch.arange(len(keys)).repeat_interleave(torch.tensor(lengths))
    states = torch.tensor(keys)[row] + _counter(scores.shape[-1], scores.device)[token]
    perturbed = scores[row, token] + _gumbel(states)
    parts = zip(perturbed.split_with_sizes(lengths), token.split_with_sizes(lengths), strict=True)
    return torch.stack([token_ids[values.argmax()] for values, token_ids in parts])


def _contenders(scores: Tensor, keys: Sequence[int]) -> tuple[list[int], Tensor]:
    """Ids of tokens among which each row's argmax of score + noise certainly is, row after row, and
    how many each row has.

    Logarithms in double precision are most of the work of a choice; few tokens need them. With the
    least noise L for the likeliest token, another wins only if it gets L + the distance of their
    scores, which is more than there is from `_FAR` on, and from `_NEAR` on takes 12 leading ones in
    the bits. What is no number contends.
    """
    code = find() if scores.dtype == torch.float32 else None
    if code is None:
        contend = _contending(scores, keys)
        return contend.sum(dim=-1).tolist(), contend.nonzero(as_tuple=True)[1]
    scores, of_rows = scores.contiguous(), torch.tensor(keys)
    num_rows, vocab_size = scores.shape
    tokens = torch.empty(num_rows, vocab_size, dtype=torch.int32)
    counts = torch.empty(num_rows, dtype=torch.int64)
    code(
        scores.data_ptr(),
        of_rows.data_ptr(),
        tokens.data_ptr(),
        counts.data_ptr(),
        num_rows,
        vocab_size,
        _NEAR,
        _FAR,
        torch.get_num_threads(),
    )
    lengths: list[int] = counts.tolist()
    found = [ids[:length] for ids, length in zip(tokens, lengths, strict=True)]
    return lengths, torch.cat(found).long()


def _contending(scores: Tensor, keys: Sequence[int]) -> Tensor:
    """The same as bool [n, vocab], where there is no code of ours."""
    top = scores.amax(dim=-1, keepdim=True)
    contend = (scores < top - _FAR).logical_not_()
    if int(contend.sum()) < _FEW * scores.numel():
        return contend
    # The last step of the generator leaves the upper half of the bits as it is.
    lucky = _almost_mixed(_states(keys, scores.shape[-1], scores.device))
    return (
        (scores < top - _NEAR)
        .logical_not_()
        .logical_or_(lucky.bitwise_right_shift_(64 - LEADING_ONES) == -1)
    )


def reading_is_free(device: torch.device) -> bool:
    """Whether the host may look at a tensor without waiting for all that was computed before."""
    return device.type == "cpu"


def stream(seed: int, purpose: int) -> int:
    """The seed of the draws for one purpose; of purpose 0 the seed itself, as it is logged."""
    return _mix(_mix(seed) ^ (purpose * WEYL)) if purpose else seed


def position_keys(seed: int, position: int, count: int) -> list[int]:
    """One key, an int64, for each of ``count`` output positions from ``position`` on."""
    mixed = _mix(seed)
    return [_signed(_mix(mixed + (position + i + 1) * WEYL)) for i in range(count)]


def uniform(seed: int, position: int) -> float:
    """One number of (0, 1) for an output position: that of token id 0."""
    (key,) = position_keys(seed, position, 1)
    return min(((_mix(key + WEYL) >> 11) + 0.5) * 2.0**-53, _LARGEST)


def random_bits(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """53 random bits for each of n keys × token ids, as int64 [n, vocab_size]."""
    return _mix_all(_states(keys, vocab_size, device))


def gumbel(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, float64 [n, vocab_size], row i for ``keys[i]``."""
    return _gumbel(_states(keys, vocab_size, device))


def _states(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    key = torch.tensor(keys, dtype=torch.int64).to(device, non_blocking=True)
    return key.unsqueeze(1) + _counter(vocab_size, device)


@lru_cache(maxsize=4)
def _counter(vocab_size: int, device: torch.device) -> Tensor:
    ids = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    return ids * _signed(WEYL)


def _gumbel(states: Tensor) -> Tensor:
    """Noise, float64, in place of generator states, which are overwritten."""
    # The middle of each of the 2^53 intervals; the last would round to 1, whose noise is infinite.
    numbers = _mix_all(states).to(torch.float64).add_(0.5).mul_(2.0**-53).clamp_(max=_LARGEST)
    return numbers.log_().neg_().log_().neg_()


def _mix_all(bits: Tensor) -> Tensor:
    bits = _almost_mixed(bits)
    _fold(bits, 31, torch.empty_like(bits))
    return bits.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1)


def _almost_mixed(bits: Tensor) -> Tensor:
    spare = torch.empty_like(bits)
    _fold(bits, 30, spare).mul_(_signed(MIX_1))
    return _fold(bits, 27, spare).mul_(_signed(MIX_2))


def _fold(bits: Tensor, count: int, spare: Tensor) -> Tensor:
    """bits ^= bits >> count, where the shift is logical: torch's is arithmetic for int64."""
    torch.bitwise_right_shift(bits, count, out=spare)
    return bits.bitwise_xor_(spare.bitwise_and_((1 << (64 - count)) - 1))


def _mix(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK64
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
