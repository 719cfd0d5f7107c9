"""Linear layers in the layout that is fastest for the number of tokens at hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

# Measured on two cores with AVX-512 and AMX: in float32, oneDNN's packed weights beat the plain
# product from 3 tokens on, where the output is wide (1.6x at 9 tokens, 2.2x for an LM head); below
# that the plain product wins. In bfloat16 packed weights win everywhere (1.3x to 2x).
_PACKED_MIN_TOKENS = 3
_PACKED_MIN_OUTPUTS = 2048


class Linear:
    """``x @ weight.T + bias`` for ``weight`` [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._packed: Tensor | None = None
        self._min_tokens = 1
        wide = weight.shape[0] >= _PACKED_MIN_OUTPUTS
        if weight.device.type == "cpu" and (weight.dtype == torch.bfloat16 or wide):
            self._packed = _pack(weight)
            if weight.dtype != torch.bfloat16:
                self._min_tokens = _PACKED_MIN_TOKENS
            elif self._packed is not None:
                self._weight = weight.new_empty(0)  # never used again

    def __call__(self, x: Tensor) -> Tensor:
        """[n, inputs] to [n, outputs]."""
        if self._packed is None or x.shape[0] < self._min_tokens:
            return F.linear(x, self._weight, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout; None where this build of torch has none for it."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        torch.ops.mkldnn._linear_pointwise(
            weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], ""
        )
    except (AttributeError, RuntimeError):
        return None
    return packed
