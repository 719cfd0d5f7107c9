"""Pre-allocated key/value cache: one slot per sequence, written at per-token positions.

Nothing is ever cropped: how much of a slot is valid is the caller's integer. A copy is made only of
a prefix that two sequences share.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class SlotCache:
    """Keys and values of every layer, each [num_slots, max_length, num_kv_heads, head_dim].

    One token's numbers lie together, so a step writes each layer with one flat copy by index.
    """

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.num_slots = num_slots
        self.max_length = max_length
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` [n, num_kv_heads, head_dim] of n tokens.

        ``places`` [n] is slot × max_length + position.
        """
        if layer not in self._layers:
            self._layers[layer] = (self._allocate(keys), self._allocate(values))
        stored_keys, stored_values = self._layers[layer]
        stored_keys.flatten(0, 1).index_copy_(0, places, keys)
        stored_values.flatten(0, 1).index_copy_(0, places, values)

    def read(self, layer: int, first: int, stop: int, length: int) -> tuple[Tensor, Tensor]:
        """Views [stop - first, num_kv_heads, length, head_dim] of slots first..stop-1."""
        keys, values = self._layers[layer]
        return (
            keys[first:stop, :length].transpose(1, 2),
            values[first:stop, :length].transpose(1, 2),
        )

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer that was written."""
        return self._layers[layer]

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to slot ``target``."""
        for keys, values in self._layers.values():
            keys[target, :length] = keys[source, :length]
            values[target, :length] = values[source, :length]

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """Zero a slot: values that are not numbers would reach through every mask."""
        for keys, values in self._layers.values():
            keys[slot].zero_()
            values[slot].zero_()

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not uninitialised memory: a masked position still takes part as 0 × value, and
        # 0 × NaN is NaN. On CPU, numpy's zeros are pages that cost memory only once they are used.
        shape = (self.num_slots, self.max_length, *like.shape[1:])
        if like.device.type != "cpu":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        raw = np.zeros(int(np.prod(shape)) * like.element_size(), dtype=np.uint8)
        return torch.from_numpy(raw).view(like.dtype).view(shape)
