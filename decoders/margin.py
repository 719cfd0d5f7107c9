"""How close each choice was: what the chosen token had before the next best one."""

from __future__ import annotations

import torch
from torch import Tensor

from decoders.noise import CounterBased, Noise, Purpose, gumbel


def margins(scores: Tensor, noise: Noise, position: int) -> list[float]:
    """Best minus second best of each row of ``scores`` [n, vocab], with the noise of a choice there.

    In nats after the temperature; row i is of output position ``position + i``. Infinite where one
    token alone is possible, not a number where the choice does not follow from noise that is added.
    """
    if not isinstance(noise, CounterBased):
        return [float("nan")] * len(scores)
    perturbed = scores.to(torch.float64)
    keys = noise.keys(position, len(scores), Purpose.CHOICE)
    noisy = [key for key in keys if key is not None]
    if noisy:  # of one sequence all have a key, or none
        perturbed = perturbed + gumbel(noisy, scores.shape[-1], scores.device)
    best, second = perturbed.topk(2, dim=-1).values.unbind(dim=-1)
    found: list[float] = (best - second).tolist()
    return found
