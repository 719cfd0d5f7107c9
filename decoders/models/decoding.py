"""The decoding tokens of one step in attention, by the code of `attention_code`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoders.models.attention_code import LANES, Attend, attend
from decoders.models.base import Row


class DecodingTokens:
    """Each token attends to what its slot holds up to its own position, and to nothing behind."""

    def __init__(self, rows: Sequence[Row], run: Attend) -> None:
        slots = [row.slot for row in rows for _ in row.token_ids]
        lengths = [row.start + i + 1 for row in rows for i in range(len(row.token_ids))]
        self._run = run
        self._threads = torch.get_num_threads()
        self._slots = torch.tensor(slots, dtype=torch.int64)
        self._lengths = torch.tensor(lengths, dtype=torch.int64)
        self._scratch = torch.empty(self._threads, max(lengths, default=0) + 2 * LANES)
        self.num_tokens = len(slots)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None
    ) -> Tensor:
        """``queries`` [n, heads, head_dim]; ``keys``, ``values`` [slots, max_length, kv_heads, head_dim].

        Returns [n, heads, head_dim]. A row's bits depend on that row alone.
        """
        queries = queries.contiguous()
        out = torch.empty_like(queries)
        num_heads, head_dim = queries.shape[1:]
        num_kv_heads = keys.shape[2]
        self._run(
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            self._slots.data_ptr(),
            self._lengths.data_ptr(),
            self._scratch.data_ptr(),
            self.num_tokens,
            num_heads,
            num_heads // num_kv_heads,
            keys.stride(0),
            keys.stride(1),
            self._scratch.stride(0),
            head_dim**-0.5 if scaling is None else scaling,
            self._threads,
        )
        return out


def decoding_code(head_dim: int, dtype: torch.dtype, device: torch.device) -> Attend | None:
    """The code for such a model; None where there is none."""
    return attend(head_dim) if device.type == "cpu" and dtype == torch.float32 else None
