"""Attention of packed rows over the slot cache.

The rows of one step are packed into a single sequence for everything but attention, so a row costs
what its own tokens cost, whatever the other rows bring. Attention runs per group of rows over views
of the cache, padded to one rectangle a group; tokens that decode have code of their own where
there is some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor

from decoders.cache import SlotCache
from decoders.models.attention_code import Attend
from decoders.models.base import Row
from decoders.models.decoding import DecodingTokens


@dataclass(frozen=True)
class _Group:
    """Consecutive tokens of the packed batch whose rows attend together."""

    first_token: int
    last_token: int
    first_slot: int
    last_slot: int
    width: int
    """Query tokens per row, padding included."""
    length: int
    """Cached tokens read, those of this step included."""
    place: tuple[Tensor, Tensor] | None
    """(row, column) of each token in the rectangle; None when the tokens fill it in order."""
    mask: Tensor | None
    """Added to the attention scores, [rows, 1, heads per key/value head × width, length]; None where
    all is visible."""


class Plan:
    """What attention must know of one step: made once, used by every layer."""

    def __init__(
        self,
        rows: Sequence[Row],
        cache: SlotCache,
        *,
        heads_per_kv_head: int,
        dtype: torch.dtype,
        device: torch.device,
        code: Attend | None = None,
    ) -> None:
        """``dtype`` is that of the queries; ``code`` is for the tokens that decode."""
        self._cache = cache
        self._share = heads_per_kv_head
        self._dtype = dtype
        self._device = device
        order = sorted(range(len(rows)), key=lambda i: (_is_prefill(rows[i]), rows[i].slot))
        packed = [rows[i] for i in order]
        self.token_ids = self._tensor([token_id for row in packed for token_id in row.token_ids])
        """[n], the packed batch."""
        positions = [_positions(row) for row in packed]
        self.positions = self._tensor([at for own in positions for at in own])
        """[n], each token's position in its sequence."""
        self.logit_places = self._tensor(_logit_places(rows, order))
        """Where the wanted logits stand in the packed batch, in the order of ``rows``."""
        self.places = self._tensor(
            [
                row.slot * cache.max_length + at
                for row, own in zip(packed, positions, strict=True)
                for at in own
            ]
        )
        """[n], slot × max_length + position of each token."""
        # Decoding rows together; each longer row by itself, since padding to it would be waste.
        decoding = [row for row in packed if not _is_prefill(row)]
        bundles = [[row] for row in packed[len(decoding) :]]
        self._decoding: DecodingTokens | None = None
        first_token = 0
        if decoding and code is not None:
            self._decoding = DecodingTokens(decoding, code, heads_per_kv_head)
            first_token = self._decoding.num_tokens
        elif decoding:
            bundles.insert(0, decoding)
        self._groups = self._grouped(bundles, first_token)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None
    ) -> Tensor:
        """Cache ``keys`` and ``values`` [n, kv_heads, head_dim]; attend with ``queries`` [n, heads, …].

        Returns [n, heads, head_dim].
        """
        self._cache.write(layer, self.places, keys, values)
        parts = [self._attend(group, layer, queries, scaling) for group in self._groups]
        if self._decoding is not None:
            mine = queries[: self._decoding.num_tokens]
            stored = self._cache.stored(layer)
            parts.insert(0, self._decoding.attend(mine, *stored, scaling))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, group: _Group, layer: int, queries: Tensor, scaling: float | None) -> Tensor:
        keys, values = self._cache.read(layer, group.first_slot, group.last_slot, group.length)
        num_rows, num_kv_heads = keys.shape[:2]
        mine = queries[group.first_token : group.last_token]
        num_heads, head_dim = mine.shape[1:]
        if group.place is not None:
            padded = mine.new_zeros((num_rows, group.width, num_heads, head_dim))
            padded[group.place] = mine
            mine = padded
        # Query heads that share a key/value head become more query rows of it: nothing is repeated.
        share = num_heads // num_kv_heads
        rows = mine.reshape(num_rows, group.width, num_kv_heads, share, head_dim)
        rows = rows.permute(0, 2, 3, 1, 4).reshape(num_rows, num_kv_heads, -1, head_dim)
        out = F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=group.mask, scale=scaling
        )
        out = out.reshape(num_rows, num_kv_heads, share, group.width, -1).permute(0, 3, 1, 2, 4)
        out = out.reshape(num_rows, group.width, num_heads, -1)
        return out[group.place] if group.place is not None else out.flatten(0, 1)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _grouped(self, bundles: Sequence[Sequence[Row]], first_token: int) -> list[_Group]:
        groups: list[_Group] = []
        for bundle in bundles:
            groups.append(self._group(bundle, first_token))
            first_token = groups[-1].last_token
        return groups

    def _group(self, rows: Sequence[Row], first_token: int) -> _Group:
        first_slot, last_slot = rows[0].slot, rows[-1].slot + 1
        width = max(len(row.token_ids) for row in rows)
        length = max(row.start + len(row.token_ids) for row in rows)
        num_tokens = sum(len(row.token_ids) for row in rows)
        num_rows = last_slot - first_slot
        place = None
        if num_tokens != num_rows * width:
            place = (
                self._tensor([row.slot - first_slot for row in rows for _ in row.token_ids]),
                self._tensor([i for row in rows for i in range(len(row.token_ids))]),
            )
        return _Group(
            first_token=first_token,
            last_token=first_token + num_tokens,
            first_slot=first_slot,
            last_slot=last_slot,
            width=width,
            length=length,
            place=place,
            mask=None if num_rows == width == 1 else self._mask(rows, num_rows, width, length),
        )

    def _mask(self, rows: Sequence[Row], num_rows: int, width: int, length: int) -> Tensor:
        # Padding queries see position 0, so that no row of the softmax is empty; nobody reads them.
        last_visible = torch.zeros((num_rows, width), dtype=torch.int64)
        for row in rows:
            last_visible[row.slot - rows[0].slot, : len(row.token_ids)] = torch.tensor(
                _positions(row)
            )
        hidden = torch.arange(length) > last_visible.unsqueeze(-1)
        mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        return mask.repeat(1, self._share, 1).unsqueeze(1).to(self._device)


def _is_prefill(row: Row) -> bool:
    """Whether the row brings part of a prompt rather than a decode step and its draft."""
    return row.num_logits < len(row.token_ids)


def _positions(row: Row) -> list[int]:
    return list(range(row.start, row.start + len(row.token_ids)))


def _logit_places(rows: Sequence[Row], order: Sequence[int]) -> list[int]:
    ends: dict[int, int] = {}
    end = 0
    for i in order:
        end += len(rows[i].token_ids)
        ends[i] = end
    return [at for i, row in enumerate(rows) for at in range(ends[i] - row.num_logits, ends[i])]
