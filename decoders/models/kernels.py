"""Times the kernels of a model's linear layers: which is fastest differs from processor to processor.

Only for models on CPU; on other devices there is one kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from decoders.models.linear import NUM_SIZES, PLAIN_ONLY, Kernel, Kernels, Linear, pack, product

Shape = tuple[int, int]
"""(outputs, inputs)."""
KernelChoice = Callable[[Sequence[Linear]], Mapping[Shape, Kernels]]
"""Which kernels the layers of each shape shall use; a shape left out keeps `Kernel.PLAIN`."""

_MIN_BYTES = 16 << 20
"""Weights of a model for which the kernels make no difference worth measuring."""
_PASS_BYTES = 64 << 20
"""Weights read in one timed pass: more than a cache holds, because a forward pass reads them all."""
_ROUNDS = 4
_SECONDS = 0.5
"""For one shape and one number of tokens, more or less."""
# A second copy of the weights, or an order of sums other than transformers', must be worth having.
_MARGIN = {Kernel.PLAIN: 1.0, Kernel.TURNED: 1.05, Kernel.PACKED: 1.1}


def plain_kernels(layers: Sequence[Linear]) -> Mapping[Shape, Kernels]:
    """The `KernelChoice` that measures nothing."""
    return {}


@torch.inference_mode()
def measure_kernels(layers: Sequence[Linear]) -> Mapping[Shape, Kernels]:
    """The `KernelChoice` that times every kernel: about five seconds for a small model."""
    weights = [layer.weight for layer in layers]
    if weights[0].device.type != "cpu" or sum(w.nbytes for w in weights) < _MIN_BYTES:
        return {}
    shapes: dict[Shape, list[Tensor]] = {}
    for weight in weights:
        outputs, inputs = weight.shape
        alike = shapes.setdefault((outputs, inputs), [])
        if sum(w.nbytes for w in alike) < _PASS_BYTES:
            alike.append(weight)
    return {shape: _fastest_kernels(alike) for shape, alike in shapes.items()}


def _fastest_kernels(weights: Sequence[Tensor]) -> Kernels:
    layouts = {Kernel.PLAIN: list(weights), Kernel.TURNED: list(weights)}
    packed = [p for weight in weights if (p := pack(weight)) is not None]
    if len(packed) == len(weights):
        layouts[Kernel.PACKED] = packed
    kernels = []
    for size in range(NUM_SIZES):
        num_tokens = 1 << size
        # What many tokens cost is arithmetic, for which one layer is as good as many.
        count = max(1, len(weights) // num_tokens)
        x = weights[0].new_ones(num_tokens, weights[0].shape[1])
        kernels.append(_fastest(x, {kernel: w[:count] for kernel, w in layouts.items()}))
    return tuple(kernels)


def _fastest(x: Tensor, layouts: Mapping[Kernel, Sequence[Tensor]]) -> Kernel:
    """Least time of interleaved rounds: whatever disturbs a round makes it slower, never faster."""
    end = time.perf_counter() + _SECONDS
    least: dict[Kernel, float] = {}
    for _ in range(_ROUNDS):
        for kernel, weights in layouts.items():
            start = time.perf_counter()
            for weight in weights:
                product(kernel, x, weight)
            seconds = time.perf_counter() - start
            least[kernel] = min(seconds, least.get(kernel, seconds))
        if time.perf_counter() > end:
            break
    return min(least, key=lambda kernel: least[kernel] * _MARGIN[kernel])


def named(choice: Mapping[Shape, Kernels]) -> dict[str, list[str]]:
    """A choice as a JSON document."""
    return {f"{o}x{i}": [k.value for k in kernels] for (o, i), kernels in choice.items()}


def parsed(document: object) -> Mapping[Shape, Kernels]:
    """The choice that `named` wrote. Raises ValueError for anything else."""
    if not isinstance(document, dict):
        raise ValueError("not a choice of kernels")
    choice: dict[Shape, Kernels] = {}
    for shape, names in document.items():
        outputs, _, inputs = shape.partition("x")
        kernels = tuple(Kernel(name) for name in names)
        if len(kernels) != len(PLAIN_ONLY):
            raise ValueError("a kernel for each size is wanted")
        choice[int(outputs), int(inputs)] = kernels
    return choice
