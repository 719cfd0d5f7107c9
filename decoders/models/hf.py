"""Any transformers causal language model with full attention, on packed rows and a slot cache.

The slot attention is registered with transformers as an attention implementation; everything else
of the forward pass is the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from decoders.cache import SlotCache
from decoders.models.attention import Plan
from decoders.models.base import ModelError, Row, Watcher, check_watched

_ATTENTION = "draftgate_slots"
_POSITION_DEPENDENT_ROPE = ("dynamic", "longrope")
# What an attention layer may ask for that the slot attention does not do.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class HFModel:
    """A transformers model that is not refused, as a `LanguageModel`."""

    def __init__(
        self, model: PreTrainedModel, *, vocab_size: int, num_slots: int, max_length: int
    ) -> None:
        model.set_attn_implementation(_ATTENTION)
        self._model = model.eval()
        self._weights = next(model.parameters())
        self._cache = SlotCache(num_slots, max_length)
        config = model.config.get_text_config()
        num_heads = config.num_attention_heads
        self._share = num_heads // (getattr(config, "num_key_value_heads", None) or num_heads)
        self.vocab_size = min(vocab_size, config.vocab_size)
        self.num_slots = num_slots
        self.max_length = max_length
        self._num_layers: int = config.num_hidden_layers
        self._watcher: Watcher | None = None

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One pass over all rows; float32 logits [sum of num_logits, vocab_size]."""
        plan = Plan(
            rows,
            self._cache,
            heads_per_kv_head=self._share,
            dtype=self._weights.dtype,
            device=self._weights.device,
        )
        output = self._model(
            input_ids=plan.token_ids.unsqueeze(0),
            position_ids=plan.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=plan.logit_places,
            slot_plan=plan,
            output_hidden_states=self._watcher is not None,
        )
        if self._watcher is not None:
            states = output.hidden_states  # the first are the embeddings
            self._watcher.see(plan.places, [states[layer][0] for layer in self._watcher.layers])
        logits: Tensor = output.logits[0, :, : self.vocab_size].float()
        return logits

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._cache.reset(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys and values within the device."""
        self._cache.copy(source, target, length)

    def watch(self, watcher: Watcher) -> None:
        """Show the hidden states after some layers."""
        check_watched(watcher.layers, self._num_layers)
        self._watcher = watcher


def refuse_unsupported(model: PreTrainedModel, max_length: int) -> None:
    """Raise ModelError, with the reason, for a model that the slot cache cannot serve exactly."""
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
    window = getattr(config, "sliding_window", None)
    if window is not None and window < max_length and not getattr(config, "layer_types", None):
        raise ModelError(
            f"{name} attends over a sliding window of {window} tokens, which cannot be rolled back; "
            f"it can be served with max_length up to {window}"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _POSITION_DEPENDENT_ROPE:
        raise ModelError(
            f"{name} uses {rope['rope_type']!r} rotary embeddings, which change with the longest "
            "row of a batch, so answers would depend on other requests"
        )


def _slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_plan: Plan,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The slot attention in transformers' terms: query [1, heads, n, head_dim], key and value alike.

    Returns [1, n, heads, head_dim].
    """
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if asked:
        raise NotImplementedError(f"attention with {', '.join(asked)}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    return slot_plan.attend(layer, queries, keys, values, scaling).unsqueeze(0), None


AttentionInterface.register(_ATTENTION, _slot_attention)
