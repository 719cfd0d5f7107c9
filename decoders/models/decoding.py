"""The decoding tokens of one step in attention, by the code of `attention_code`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from decoders.models.attention_code import Attend, attend, scratch_length
from decoders.models.base import Row


class DecodingTokens:
    """Each token attends to what its slot holds up to its own position, and to nothing behind."""

    def __init__(self, rows: Sequence[Row], run: Attend, heads_per_kv_head: int) -> None:
        firsts = accumulate((len(row.token_ids) for row in rows), initial=0)
        fields = [
            (first, len(row.token_ids), row.slot, row.start + 1)
            for first, row in zip(firsts, rows, strict=False)
        ]
        self._run = run
        self._threads = torch.get_num_threads()
        self._rows = torch.tensor(fields, dtype=torch.int64)
        longest = max((row.start + len(row.token_ids) for row in rows), default=0)
        most = max((len(row.token_ids) for row in rows), default=0)
        self._shared = heads_per_kv_head
        self._query_step = scratch_length(longest)
        self._scratch = torch.empty(self._threads, most * heads_per_kv_head * self._query_step)
        self.num_tokens = sum(len(row.token_ids) for row in rows)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None
    ) -> Tensor:
        """``queries`` [n, heads, head_dim]; ``keys``, ``values`` [slots, max_length, kv_heads, head_dim].

        Returns [n, heads, head_dim]. A row's bits depend on that row alone.
        """
        queries = queries.contiguous()
        out = torch.empty_like(queries)
        num_heads, head_dim = queries.shape[1:]
        self._run(
            queries.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            self._rows.data_ptr(),
            self._scratch.data_ptr(),
            self.num_tokens,
            num_heads,
            self._shared,
            keys.stride(0),
            keys.stride(1),
            self._scratch.stride(0),
            self._query_step,
            head_dim**-0.5 if scaling is None else scaling,
            self._threads,
        )
        return out


def decoding_code(head_dim: int, dtype: torch.dtype, device: torch.device) -> Attend | None:
    """The code for such a model; None where there is none."""
    return attend(head_dim) if device.type == "cpu" and dtype == torch.float32 else None
