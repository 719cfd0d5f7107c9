"""The Llama family's forward pass, written out: fused projections, no Python work per head.

Serves what has the shape of Llama (Llama, Mistral without a window, Qwen2, Qwen3, SmolLM, …):
pre-norm blocks of rotary attention and a gated SiLU network. The weights are the transformers
model's own; the result equals its forward pass to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor, nn
from transformers import PreTrainedModel

from decoders.cache import SlotCache
from decoders.models.attention import Plan
from decoders.models.base import Row
from decoders.models.linear import Linear

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def fits(model: PreTrainedModel) -> bool:
    """Whether `FusedModel` can serve this model."""
    config = model.config
    return (
        config.model_type in _ARCHITECTURES
        and getattr(config, "hidden_act", None) == "silu"
        and getattr(config, "pretraining_tp", 1) == 1
    )


@dataclass(frozen=True)
class _Layer:
    """One block. Norms of queries and keys are None but for Qwen3."""

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class FusedModel:
    """A Llama-shaped model as a `LanguageModel`."""

    def __init__(self, model: Any, *, vocab_size: int, num_slots: int, max_length: int) -> None:
        """``model`` is one that `fits`; its structure is known, its class is any of the family's."""
        config = model.config
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._epsilon = config.rms_norm_eps
        self._embedding = model.get_input_embeddings().weight.detach()
        self._layers = [_layer(block) for block in model.model.layers]
        self._norm = model.model.norm.weight.detach()
        self.vocab_size = min(vocab_size, config.vocab_size)
        self._head = Linear(model.get_output_embeddings().weight.detach()[: self.vocab_size])
        self._cos, self._sin = self._rotations(model, max_length)
        self._cache = SlotCache(num_slots, max_length)
        self.num_slots = num_slots
        self.max_length = max_length

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One pass over all rows; float32 logits [sum of num_logits, vocab_size]."""
        plan = Plan(
            rows,
            self._cache,
            heads_per_kv_head=self._num_heads // self._num_kv_heads,
            dtype=self._embedding.dtype,
            device=self._embedding.device,
        )
        hidden = self._embedding[plan.token_ids]  # [n, hidden]
        cos, sin = self._cos[plan.positions], self._sin[plan.positions]  # [n, 1, head_dim]
        for number, layer in enumerate(self._layers):
            attended = self._attention(
                plan, number, layer, self._rms(hidden, layer.attention_norm), cos, sin
            )
            hidden = hidden + attended
            hidden = hidden + _gated(layer, self._rms(hidden, layer.mlp_norm))
        logits = self._head(self._rms(hidden[plan.logit_places], self._norm))
        return logits.float()

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._cache.reset(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys and values within the device."""
        self._cache.copy(source, target, length)

    def _attention(
        self, plan: Plan, number: int, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        qkv = layer.qkv(x).view(len(x), -1, self._head_dim)  # [n, heads + 2 kv_heads, head_dim]
        num_rotated = self._num_heads + self._num_kv_heads
        rotated, values = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                (
                    self._rms(rotated[:, : self._num_heads], layer.query_norm),
                    self._rms(rotated[:, self._num_heads :], layer.key_norm),
                ),
                dim=1,
            )
        # Half a roll and the sign in the table are the rotation of pairs (x_i, x_{i + head_dim/2}).
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        out = plan.attend(number, queries, keys, values, None)
        return layer.attention_out(out.reshape(len(x), -1))

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._epsilon)

    def _rotations(self, model: Any, max_length: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of every position, [max_length, 1, head_dim]."""
        positions = torch.arange(max_length, device=self._embedding.device).unsqueeze(0)
        with torch.inference_mode():
            cos, sin = model.model.rotary_emb(self._embedding, positions)
        half = self._head_dim // 2
        signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        return cos[0].unsqueeze(1).clone(), signed.unsqueeze(1)


def _gated(layer: _Layer, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(F.silu(gate) * up)


def _layer(block: Any) -> _Layer:
    attention, mlp = block.self_attn, block.mlp
    return _Layer(
        attention_norm=block.input_layernorm.weight.detach(),
        qkv=_fused(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_weight(getattr(attention, "q_norm", None)),
        key_norm=_weight(getattr(attention, "k_norm", None)),
        attention_out=_fused(attention.o_proj),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate_up=_fused(mlp.gate_proj, mlp.up_proj),
        down=_fused(mlp.down_proj),
    )


def _weight(norm: Any) -> Tensor | None:
    return None if norm is None else norm.weight.detach()


def _fused(*layers: nn.Linear) -> Linear:
    """One linear layer with the outputs of several, one after the other."""
    biases = [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    return Linear(torch.cat([layer.weight.detach() for layer in layers]), bias)
