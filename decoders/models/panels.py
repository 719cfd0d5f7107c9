"""A linear layer for few tokens, as fast as its weights come from memory: see `panel_code`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from decoders.models.panel_code import PANEL_WIDTH, product


@dataclass(frozen=True)
class Panels:
    """Weights cut into panels of outputs, in each of which one input's weights lie together."""

    weights: Tensor
    """[panels, inputs, PANEL_WIDTH], the last panel filled with zeros; bfloat16 where that holds them
    without loss, else float32."""
    num_outputs: int


def panels(weight: Tensor) -> Panels | None:
    """``weight`` [outputs, inputs] in panels; None where it is not float32 on a CPU that has the code."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or product() is None:
        return None
    num_outputs, num_inputs = weight.shape
    half = weight.bfloat16()
    if torch.equal(half.float(), weight) and product(half=True) is not None:
        weight = half
    padded = F.pad(weight, (0, 0, 0, -num_outputs % PANEL_WIDTH))
    cut = padded.view(-1, PANEL_WIDTH, num_inputs).transpose(1, 2).contiguous()
    return Panels(cut, num_outputs)


def panel_product(x: Tensor, weight: Panels) -> Tensor:
    """[n, inputs] to [n, outputs]. A row's bits depend on that row alone, not on n."""
    run = product(half=weight.weights.dtype == torch.bfloat16)
    count, num_inputs, _ = weight.weights.shape
    if run is None or x.dtype != torch.float32 or x.shape[1] != num_inputs:
        raise ValueError(f"no panel product of {tuple(x.shape)} {x.dtype} and {num_inputs} inputs")
    x = x.contiguous()
    y = x.new_empty(x.shape[0], count * PANEL_WIDTH)
    if not len(x):
        return x.new_empty(0, weight.num_outputs)
    run(
        x.data_ptr(),
        weight.weights.data_ptr(),
        y.data_ptr(),
        x.shape[0],
        num_inputs,
        count * PANEL_WIDTH,
        torch.get_num_threads(),
    )
    if weight.num_outputs == y.shape[1]:
        return y
    return y[:, : weight.num_outputs].contiguous()
