"""Linear layers, each with the kernel that is fastest for the number of tokens at hand."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from decoders.models.panels import Panels, panel_product, panels


class Kernel(StrEnum):
    """A way to compute the same product."""

    PLAIN = "plain"
    """``x @ weight.T``."""
    TURNED = "turned"
    """``(weight @ x.T).T``: other blocks of the same memory."""
    PACKED = "packed"
    """oneDNN's, over weights in a layout of its own."""
    PANELS = "panels"
    """Our own for float32, over weights cut into panels."""


Layout = Tensor | Panels
"""Weights as a kernel reads them."""


NUM_SIZES = 8
"""Kernels are chosen for 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more tokens."""
Kernels = tuple[Kernel, ...]
"""One kernel for each of the `NUM_SIZES` ranges of tokens."""

PLAIN_ONLY: Kernels = (Kernel.PLAIN,) * NUM_SIZES


def size_of(num_tokens: int) -> int:
    """Which of the ranges a number of tokens falls into."""
    return min((num_tokens - 1).bit_length(), NUM_SIZES - 1)


class Linear:
    """``x @ weight.T + bias`` for ``weight`` [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._turned = weight.t()
        self._bias = bias
        self._layouts: dict[Kernel, Layout] = {}
        self._kernels = PLAIN_ONLY

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs]; empty once no kernel in use reads it."""
        return self._weight

    @property
    def kernels(self) -> Kernels:
        """What is used."""
        return self._kernels

    def use(self, kernels: Kernels) -> None:
        """Use these from now on, and keep the weights in the layouts that they need and no other.

        What cannot be had here falls back to `Kernel.PLAIN`. To be called once.
        """
        found = {kernel: lay_out(kernel, self._weight) for kernel in set(kernels)}
        self._layouts = {
            kernel: weights for kernel, weights in found.items() if weights is not None
        }
        self._kernels = tuple(k if k in self._layouts else Kernel.PLAIN for k in kernels)
        if not {Kernel.PLAIN, Kernel.TURNED} & set(self._kernels):
            self._weight = self._weight.new_empty(0)
            self._turned = self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """[n, inputs] to [n, outputs]."""
        kernel = self._kernels[size_of(x.shape[0])]
        if kernel is not Kernel.PLAIN:
            y = product(kernel, x, self._layouts[kernel])
            return y if self._bias is None else y.add_(self._bias)
        if self._bias is None:
            return torch.mm(x, self._turned)
        return torch.addmm(self._bias, x, self._turned)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual`` [n, outputs] plus the product, as a new tensor."""
        if self._bias is None and self._kernels[size_of(x.shape[0])] is Kernel.PLAIN:
            return torch.addmm(residual, x, self._turned)
        return self(x).add_(residual)


def lay_out(kernel: Kernel, weight: Tensor) -> Layout | None:
    """``weight`` [outputs, inputs] as ``kernel`` reads it; None where that is not to be had here."""
    if kernel is Kernel.PANELS:
        return panels(weight)
    return _packed(weight) if kernel is Kernel.PACKED else weight


def product(kernel: Kernel, x: Tensor, weights: Layout) -> Tensor:
    """[n, inputs] to [n, outputs], over weights as `lay_out` gives them."""
    if isinstance(weights, Panels):
        return panel_product(x, weights)
    if kernel is Kernel.PACKED:
        return _packed_product(x, weights)
    return _turned_product(x, weights) if kernel is Kernel.TURNED else torch.mm(x, weights.t())


def _packed(weight: Tensor) -> Tensor | None:
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        _packed_product(weight.new_zeros(1, weight.shape[1]), packed)
    except (AttributeError, RuntimeError):
        return None
    return packed


def _packed_product(x: Tensor, packed: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y


def _turned_product(x: Tensor, weight: Tensor) -> Tensor:
    """[n, inputs] and [outputs, inputs] to a contiguous [n, outputs]."""
    return torch.mm(weight, x.t()).t().contiguous()
