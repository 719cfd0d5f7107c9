"""What identifies a model's weights, whatever file they come from."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from transformers import PreTrainedModel

_SAMPLES = 4096
"""Numbers looked at of each tensor, spread evenly: a fine-tuned model differs from its base in most."""


def weights_hash(model: PreTrainedModel) -> str:
    """A hash of the weights' shapes and samples, the same in float32 and bfloat16.

    Names do not count, nor does the order: both belong to the library.
    """
    digests = sorted({_digest(weight.detach()) for weight in model.parameters()})
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _digest(weight: Tensor) -> str:
    step = max(1, weight.numel() // _SAMPLES)
    samples = weight.reshape(-1)[::step].to(torch.bfloat16).view(torch.int16).cpu().numpy()
    return hashlib.sha256(str(tuple(weight.shape)).encode() + samples.tobytes()).hexdigest()
