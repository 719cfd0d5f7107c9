"""Any transformers causal language model with full attention, on packed rows and a slot cache.

The rows of one step are packed into a single sequence for everything but attention, so a row costs
what its own tokens cost, whatever the other rows bring. Attention runs per group of rows over views
of the slot cache; it is registered with transformers as an attention implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from decoders.cache import SlotCache
from decoders.models.base import ModelError, Row

_ATTENTION = "draftgate_slots"
_POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
# What an attention layer may ask for that the slot attention does not do.
_UNSUPPORTED = ("softcap", "sliding_window", "s_aux", "position_bias")
# fp32 rounding between two orders of the same sums stays well below this; a wrong mask does not.
_SELF_CHECK_TOLERANCE = 1e-2


@dataclass(frozen=True)
class _Group:
    """Consecutive tokens of the packed batch whose rows attend together, padded to one rectangle."""

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


@dataclass(frozen=True)
class _Plan:
    """What attention must know of one step."""

    cache: SlotCache
    slots: Tensor
    positions: Tensor
    groups: tuple[_Group, ...]


class HFModel:
    """A transformers model as a `LanguageModel`."""

    def __init__(
        self, model: PreTrainedModel, *, vocab_size: int, num_slots: int, max_length: int
    ) -> None:
        if num_slots < 1 or max_length < 2:
            raise ModelError("num_slots must be at least 1 and max_length at least 2")
        _refuse_unsupported(model)
        self._model = model.eval()
        self.device = next(model.parameters()).device
        self._dtype = next(model.parameters()).dtype
        self._cache = SlotCache(num_slots, max_length)
        config = model.config.get_text_config()
        num_heads = config.num_attention_heads
        self._share = num_heads // (getattr(config, "num_key_value_heads", None) or num_heads)
        self.vocab_size = min(vocab_size, config.vocab_size)
        self.num_slots = num_slots
        self.max_length = max_length
        self._self_check()

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One pass over all rows; float32 logits [sum of num_logits, vocab_size]."""
        order = sorted(range(len(rows)), key=lambda i: (_is_prefill(rows[i]), rows[i].slot))
        packed = [rows[i] for i in order]
        token_ids = [token_id for row in packed for token_id in row.token_ids]
        positions = self._tensor([at for row in packed for at in _positions(row)])
        slots = self._tensor([row.slot for row in packed for _ in row.token_ids])
        plan = _Plan(self._cache, slots, positions, tuple(self._groups(packed)))
        output = self._model(
            input_ids=self._tensor(token_ids).unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._tensor(_logit_places(rows, order)),
            slot_plan=plan,
        )
        logits: Tensor = output.logits[0, :, : self.vocab_size].float()
        return logits

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys and values within the device."""
        self._cache.copy(source, target, length)

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _groups(self, packed: Sequence[Row]) -> list[_Group]:
        """Decoding rows together; each longer row by itself, since padding to it would be waste."""
        decoding = [row for row in packed if not _is_prefill(row)]
        bundles = ([decoding] if decoding else []) + [[row] for row in packed[len(decoding) :]]
        groups = []
        first_token = 0
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
        return mask.repeat(1, self._share, 1).unsqueeze(1).to(self.device)

    def _self_check(self) -> None:
        """Compare with the model's own forward pass, so that a model that differs is never served."""
        length = min(24, self.max_length)
        token_ids = tuple((7919 * i + 11) % self.vocab_size for i in range(length))
        split = length // 2
        try:
            first = self.forward([Row(self.num_slots - 1, 0, token_ids[:split], split)])
            second = self.forward(
                [Row(self.num_slots - 1, split, token_ids[split:], length - split)]
            )
            expected = self._reference(token_ids)
        except (TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
            raise ModelError(f"{self._name} cannot run on the slot cache: {error}") from error
        difference = (torch.cat([first, second]) - expected).abs().max()
        scale = expected.abs().max().clamp(min=1.0)
        tolerance = _SELF_CHECK_TOLERANCE if self._dtype == torch.float32 else 0.15
        if not bool(difference <= tolerance * scale):
            raise ModelError(
                f"{self._name} cannot be served exactly: on the slot cache its logits differ by "
                f"{difference.item():.3g} from its own forward pass"
            )

    @torch.inference_mode()
    def _reference(self, token_ids: Sequence[int]) -> Tensor:
        own = "sdpa" if self._model._supports_sdpa else "eager"
        self._model.set_attn_implementation(own)
        try:
            output = self._model(
                input_ids=self._tensor(list(token_ids)).unsqueeze(0), use_cache=False
            )
        finally:
            self._model.set_attn_implementation(_ATTENTION)
        logits: Tensor = output.logits[0, :, : self.vocab_size].float()
        return logits

    @property
    def _name(self) -> str:
        return type(self._model).__name__


def _is_prefill(row: Row) -> bool:
    """Whether the row brings part of a prompt rather than a decode step and its draft."""
    return row.num_logits < len(row.token_ids)


def _positions(row: Row) -> list[int]:
    return list(range(row.start, row.start + len(row.token_ids)))


def _logit_places(rows: Sequence[Row], order: Sequence[int]) -> list[int]:
    """Where the wanted logits stand in the packed batch, in the order of ``rows``."""
    ends: dict[int, int] = {}
    end = 0
    for i in order:
        end += len(rows[i].token_ids)
        ends[i] = end
    return [at for i, row in enumerate(rows) for at in range(ends[i] - row.num_logits, ends[i])]


def _refuse_unsupported(model: PreTrainedModel) -> None:
    name = type(model).__name__
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(f"{name} has an attention of its own, which the slot cache cannot replace")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ModelError(
            f"{name} has layers that cannot be rolled back after a rejected draft: "
            f"{', '.join(sorted(kinds))}; only full attention is served"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _POSITION_DEPENDENT_ROPE:
        raise ModelError(
            f"{name} uses {rope['rope_type']!r} rotary embeddings, which change with the longest "
            "row of a batch, so answers would depend on other requests"
        )
    model.set_attn_implementation(_ATTENTION)


def _slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_plan: _Plan,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention over the slot cache; query [1, heads, n, head_dim], key and value [1, kv_heads, n, ...].

    Returns [1, n, heads, head_dim].
    """
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if asked:
        raise NotImplementedError(f"attention with {', '.join(asked)}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    slot_plan.cache.write(
        layer,
        slot_plan.slots,
        slot_plan.positions,
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
    )
    tokens = query[0].transpose(0, 1)  # [n, heads, head_dim]
    parts = [_attend(group, tokens, slot_plan.cache, layer, scaling) for group in slot_plan.groups]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _attend(
    group: _Group, tokens: Tensor, cache: SlotCache, layer: int, scaling: float | None
) -> Tensor:
    keys, values = cache.read(layer, group.first_slot, group.last_slot, group.length)
    num_rows, num_kv_heads = keys.shape[:2]
    mine = tokens[group.first_token : group.last_token]
    num_heads, head_dim = mine.shape[1:]
    if group.place is not None:
        padded = mine.new_zeros((num_rows, group.width, num_heads, head_dim))
        padded[group.place] = mine
        mine = padded
    # Query heads that share a key/value head become more query rows of it: nothing is repeated.
    share = num_heads // num_kv_heads
    shape = (num_rows, group.width, num_kv_heads, share)
    rows = mine.reshape(*shape, head_dim).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(num_rows, num_kv_heads, share * group.width, head_dim)
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=group.mask, scale=scaling)
    out = out.reshape(num_rows, num_kv_heads, share, group.width, -1).permute(0, 3, 1, 2, 4)
    out = out.reshape(num_rows, group.width, num_heads, -1)
    return out[group.place] if group.place is not None else out.flatten(0, 1)


AttentionInterface.register(_ATTENTION, _slot_attention)
