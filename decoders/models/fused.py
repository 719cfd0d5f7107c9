"""The Llama family's forward pass, written out: fused projections, no Python work per head.

Serves what has the shape of Llama (Llama, Mistral without a window, Qwen2, Qwen3, SmolLM, …):
pre-norm blocks of rotary attention and a gated SiLU network. The weights are the transformers
model's own; the result equals its forward pass to rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import Tensor, nn
from transformers import PreTrainedModel

from decoders.cache import SlotCache
from decoders.models.attention import Plan
from decoders.models.base import Row, Watcher, check_watched
from decoders.models.decoding import decoding_code
from decoders.models.kernels import KernelChoice, plain_kernels
from decoders.models.linear import PLAIN_ONLY, Linear
from decoders.models.norm import RMSNorm

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

    attention_norm: RMSNorm
    qkv: Linear
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    attention_out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


class FusedModel:
    """A Llama-shaped model as a `LanguageModel`."""

    def __init__(
        self,
        model: Any,
        *,
        vocab_size: int,
        num_slots: int,
        max_length: int,
        choose: KernelChoice = plain_kernels,
    ) -> None:
        """``model`` is one that `fits`; its structure is known, its class is any of the family's."""
        config = model.config
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        epsilon = config.rms_norm_eps
        self._embedding = model.get_input_embeddings().weight.detach()
        self._layers = [_layer(block, epsilon, self._head_dim) for block in model.model.layers]
        self._norm = RMSNorm(model.model.norm.weight.detach(), epsilon)
        self.vocab_size = min(vocab_size, config.vocab_size)
        self._head = Linear(model.get_output_embeddings().weight.detach()[: self.vocab_size])
        self._use(choose)
        self._rotations = self._all_rotations(model, max_length)
        self._cache = SlotCache(num_slots, max_length)
        self._code = decoding_code(self._head_dim, self._embedding.dtype, self._embedding.device)
        self.num_slots = num_slots
        self.max_length = max_length
        self._watcher: Watcher | None = None
        self._watched: frozenset[int] = frozenset()

    @property
    def arithmetic(self) -> str:
        """Of the kernel of every layer at every size, and of the attention of decoding tokens."""
        kernels = [tuple(linear.kernels) for linear in self._linears()]
        return hashlib.sha256(repr((kernels, self._code is None)).encode()).hexdigest()[:8]

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One pass over all rows; float32 logits [sum of num_logits, vocab_size]."""
        plan = Plan(
            rows,
            self._cache,
            heads_per_kv_head=self._num_heads // self._num_kv_heads,
            dtype=self._embedding.dtype,
            device=self._embedding.device,
            code=self._code,
        )
        hidden = self._embedding[plan.token_ids]  # [n, hidden]
        rotations = self._rotations[plan.positions]  # [n, 1, head_dim / 2]
        shown: list[Tensor] = []
        for number, layer in enumerate(self._layers):
            attended = self._attend(plan, number, layer, layer.attention_norm(hidden), rotations)
            hidden = layer.attention_out.add_to(hidden, attended)
            hidden = layer.down.add_to(hidden, _gated(layer, layer.mlp_norm(hidden)))
            if number in self._watched:
                shown.append(hidden)
        if self._watcher is not None:
            self._watcher.see(plan.places, shown)
        if not len(plan.logit_places):
            return torch.empty((0, self.vocab_size), device=hidden.device)
        logits: Tensor = self._head(self._norm(hidden[plan.logit_places]))
        return logits.float()

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._cache.reset(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys and values within the device."""
        self._cache.copy(source, target, length)

    def watch(self, watcher: Watcher) -> None:
        """Show the hidden states after some layers."""
        check_watched(watcher.layers, len(self._layers))
        self._watcher = watcher
        self._watched = frozenset(layer - 1 for layer in watcher.layers)

    def _attend(
        self, plan: Plan, number: int, layer: _Layer, x: Tensor, rotations: Tensor
    ) -> Tensor:
        """[n, hidden] to [n, heads × head_dim]."""
        qkv = layer.qkv(x).view(len(x), -1, self._head_dim)  # [n, heads + 2 kv_heads, head_dim]
        num_rotated = self._num_heads + self._num_kv_heads
        rotated, values = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
            rotated = torch.cat((layer.query_norm(queries), layer.key_norm(keys)), dim=1)
        rotated = _rotated(rotated, rotations)
        queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        return plan.attend(number, queries, keys, values, None).reshape(len(x), -1)

    def _use(self, choose: KernelChoice) -> None:
        layers = self._linears()
        kernels = choose(layers).by_shape
        for linear in layers:
            outputs, inputs = linear.weight.shape
            linear.use(kernels.get((outputs, inputs), PLAIN_ONLY))

    def _linears(self) -> list[Linear]:
        layers = [self._head]
        for layer in self._layers:
            layers += (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
        return layers

    def _all_rotations(self, model: Any, max_length: int) -> Tensor:
        """cos + i·sin of every position, complex [max_length, 1, head_dim / 2]."""
        positions = torch.arange(max_length, device=self._embedding.device).unsqueeze(0)
        with torch.inference_mode():
            cos, sin = model.model.rotary_emb(self._embedding[:1].float(), positions)
        half = self._head_dim // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half]).unsqueeze(1)


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    """[n, heads, head_dim] with each pair of neighbours turned: one complex product."""
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs.mul_(rotations)).flatten(-2).to(x.dtype)


def _gated(layer: _Layer, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def _layer(block: Any, epsilon: float, head_dim: int) -> _Layer:
    attention, mlp = block.self_attn, block.mlp
    return _Layer(
        attention_norm=RMSNorm(block.input_layernorm.weight.detach(), epsilon),
        qkv=_fused(
            _paired(_part(attention.q_proj), head_dim),
            _paired(_part(attention.k_proj), head_dim),
            _part(attention.v_proj),
        ),
        query_norm=_paired_norm(getattr(attention, "q_norm", None), epsilon, head_dim),
        key_norm=_paired_norm(getattr(attention, "k_norm", None), epsilon, head_dim),
        attention_out=_fused(_part(attention.o_proj)),
        mlp_norm=RMSNorm(block.post_attention_layernorm.weight.detach(), epsilon),
        gate_up=_fused(_part(mlp.gate_proj), _part(mlp.up_proj)),
        down=_fused(_part(mlp.down_proj)),
    )


_Part = tuple[Tensor, Tensor | None]
"""Weight and bias of a linear layer."""


def _part(layer: nn.Linear) -> _Part:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def _paired(part: _Part, head_dim: int) -> _Part:
    """The same outputs in an order in which what a rotation turns together is side by side.

    Models rotate the pairs (x_i, x_{i + head_dim/2}) of each head. Queries and keys in one other
    order have the same products.
    """
    weight, bias = part
    order = _pair_order(weight.shape[0], head_dim)
    return weight[order], None if bias is None else bias[order]


def _paired_norm(norm: Any, epsilon: float, head_dim: int) -> RMSNorm | None:
    if norm is None:
        return None
    weight: Tensor = norm.weight.detach()
    return RMSNorm(weight[_pair_order(head_dim, head_dim)], epsilon)


def _pair_order(count: int, head_dim: int) -> Tensor:
    return torch.arange(count).view(-1, 2, head_dim // 2).transpose(1, 2).flatten()


def _fused(*parts: _Part) -> Linear:
    """One linear layer with the outputs of several, one after the other."""
    biases = [bias for _, bias in parts if bias is not None]
    return Linear(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None)
