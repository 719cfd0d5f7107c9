"""A stack of linear layers like a model's, and decode steps over it, asked for line by line.

Run as ``python -m decoders.models.stack WIDTH INNER LAYERS THREADS`` (0: torch's own number of
threads): each line of standard input is a number of rows, and comes back when a decode step of so
many rows is done. Meanwhile another thread ticks, as an event loop does.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import cycle, islice

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from decoders.models.linear import NUM_SIZES, Kernel, Linear

_BYTES = 160 << 20
"""Weights at most, more than a cache holds; further layers use those of the first ones again."""
_TICK_SECONDS = 0.002


class Stack:
    """The linear layers of a model of random weights, with the small operations between them."""

    def __init__(self, width: int, inner: int, layers: int) -> None:
        shapes = ((2 * width, width), (width, width), (2 * inner, width), (width, inner))
        size = 4 * sum(outputs * inputs for outputs, inputs in shapes)
        distinct = [
            tuple(_linear(outputs, inputs) for outputs, inputs in shapes)
            for _ in range(max(1, min(layers, _BYTES // size)))
        ]
        self._layers = list(islice(cycle(distinct), layers))
        self._width = width

    @torch.inference_mode()
    def step(self, rows: int) -> Tensor:
        """[rows, width] through all layers."""
        x = torch.ones(rows, self._width)
        for qkv, out, gate_up, down in self._layers:
            x = x + out(F.rms_norm(qkv(x)[:, : self._width], (self._width,)))
            gate, up = gate_up(F.rms_norm(x, (self._width,))).chunk(2, dim=-1)
            x = down.add_to(x, F.silu(gate) * up)
        return x


def _linear(outputs: int, inputs: int) -> Linear:
    layer = Linear(torch.full((outputs, inputs), 1e-3))
    layer.use((Kernel.PANELS,) * NUM_SIZES)
    return layer


def _tick() -> None:
    while True:
        time.sleep(_TICK_SECONDS)


def main() -> None:
    """Answer until standard input ends."""
    width, inner, layers, threads = (int(argument) for argument in sys.argv[1:])
    if threads:
        torch.set_num_threads(threads)
    stack = Stack(width, inner, layers)
    threading.Thread(target=_tick, daemon=True).start()
    for line in sys.stdin:
        stack.step(int(line))
        sys.stdout.write(f"{int(line)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
