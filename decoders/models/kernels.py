"""Times the kernels of a model's linear layers: which is fastest differs from processor to processor.

Only for models on CPU; on other devices there is one kernel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoders.measurements import Form, spread
from decoders.models.linear import NUM_SIZES, Kernel, Kernels, Layout, Linear, lay_out, product

Shape = tuple[int, int]
"""(outputs, inputs)."""


@dataclass(frozen=True)
class KernelTable:
    """Which kernels the layers of each shape use; a shape left out uses `Kernel.PLAIN` alone."""

    by_shape: Mapping[Shape, Kernels] = field(default_factory=dict)
    spread: float = field(default=0.0, compare=False)
    """How much its measurement was disturbed: see `decoders.measurements.spread`."""


KernelChoice = Callable[[Sequence[Linear]], KernelTable]

_MIN_BYTES = 16 << 20
"""Weights of a model for which the kernels make no difference worth measuring."""
_PASS_BYTES = 64 << 20
"""Weights read in one timed pass: more than a cache holds, because a forward pass reads them all."""
_ROUNDS = 4
_SECONDS = 0.5
"""For one shape and one number of tokens, more or less."""
_HOPELESS = 2.0
"""How many times as long as the fastest a kernel may take to be timed once more."""
# A second copy of the weights, or an order of sums other than transformers', must be worth having.
_MARGIN = {Kernel.PLAIN: 1.0, Kernel.TURNED: 1.05, Kernel.PANELS: 1.05, Kernel.PACKED: 1.1}


def plain_kernels(layers: Sequence[Linear]) -> KernelTable:
    """The `KernelChoice` that measures nothing."""
    return KernelTable()


def choice_matters(layers: Sequence[Linear]) -> bool:
    """Whether there is a choice on this device, and enough weights to make a difference."""
    weights = [layer.weight for layer in layers]
    return weights[0].device.type == "cpu" and sum(w.nbytes for w in weights) >= _MIN_BYTES


@torch.inference_mode()
def measure_kernels(layers: Sequence[Linear]) -> KernelTable:
    """The `KernelChoice` that times every kernel: a few seconds for a small model."""
    shapes: dict[Shape, list[Tensor]] = {}
    for layer in layers:
        outputs, inputs = layer.weight.shape
        alike = shapes.setdefault((outputs, inputs), [])
        if sum(weight.nbytes for weight in alike) < _PASS_BYTES:
            alike.append(layer.weight)
    samples: list[Sequence[float]] = []
    table = {shape: _fastest_kernels(alike, samples) for shape, alike in shapes.items()}
    return KernelTable(table, spread(samples))


def _fastest_kernels(weights: Sequence[Tensor], samples: list[Sequence[float]]) -> Kernels:
    layouts: dict[Kernel, Sequence[Layout]] = {}
    # Where panels can be had, oneDNN's layout never was the faster one, and would be a third copy.
    for kernel in (Kernel.PLAIN, Kernel.TURNED, Kernel.PANELS, Kernel.PACKED):
        if kernel is Kernel.PACKED and Kernel.PANELS in layouts:
            continue
        laid = [found for w in weights if (found := lay_out(kernel, w)) is not None]
        if len(laid) == len(weights):
            layouts[kernel] = laid
    kernels = []
    for size in range(NUM_SIZES):
        num_tokens = 1 << size
        # What many tokens cost is arithmetic, for which one layer is as good as many.
        count = max(1, len(weights) // num_tokens)
        x = weights[0].new_ones(num_tokens, weights[0].shape[1])
        seconds = _rounds(x, {kernel: alike[:count] for kernel, alike in layouts.items()})
        samples += seconds.values()
        # Whatever disturbs a round makes it slower, never faster.
        kernels.append(min(seconds, key=lambda kernel: min(seconds[kernel]) * _MARGIN[kernel]))
    return tuple(kernels)


def _rounds(x: Tensor, layouts: Mapping[Kernel, Sequence[Layout]]) -> dict[Kernel, list[float]]:
    """Seconds of interleaved rounds."""
    end = time.perf_counter() + _SECONDS
    seconds: dict[Kernel, list[float]] = {kernel: [] for kernel in layouts}
    for _ in range(_ROUNDS):
        best = min(map(min, seconds.values())) if all(seconds.values()) else math.inf
        for kernel, weights in layouts.items():
            if seconds[kernel] and min(seconds[kernel]) > _HOPELESS * best:
                continue
            start = time.perf_counter()
            for weight in weights:
                product(kernel, x, weight)
            seconds[kernel].append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return seconds


def _written(table: KernelTable) -> object:
    return {f"{o}x{i}": [k.value for k in kernels] for (o, i), kernels in table.by_shape.items()}


def _read(document: object) -> KernelTable:
    if not isinstance(document, dict):
        raise TypeError("not a table of kernels")
    table: dict[Shape, Kernels] = {}
    for shape, names in document.items():
        outputs, _, inputs = shape.partition("x")
        if len(names) != NUM_SIZES:
            raise ValueError("a kernel for each size is wanted")
        table[int(outputs), int(inputs)] = tuple(Kernel(name) for name in names)
    return KernelTable(table)


KERNELS: Form[KernelTable] = Form("choice of kernels", _written, _read, lambda table: table.spread)
"""How a table is kept."""
