"""Makes a transformers model servable, and holds it against its own forward pass before anybody asks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decoders.models.base import LanguageModel, ModelError, Row
from decoders.models.fused import FusedModel, fits
from decoders.models.hf import HFModel, refuse_unsupported
from decoders.models.kernels import KernelChoice, plain_kernels

_log = logging.getLogger(__name__)
# Rounding between two orders of the same sums stays well below these; a wrong mask does not.
_TOLERANCE = 1e-2
_TOLERANCE_HALF = 0.15
_CHECKED_TOKENS = 24


def adapt(
    model: PreTrainedModel,
    *,
    vocab_size: int,
    num_slots: int,
    max_length: int,
    choose: KernelChoice = plain_kernels,
) -> LanguageModel:
    """``model`` on a slot cache: written out where it has the shape of Llama, else as it is.

    ``choose`` says which kernels a written-out model uses.

    Raises ModelError for a model that could not be served exactly, with the reason.
    """
    if num_slots < 1 or max_length < 2:
        raise ModelError("num_slots must be at least 1 and max_length at least 2")
    refuse_unsupported(model, max_length)
    model.eval()
    length = min(_CHECKED_TOKENS, max_length)
    token_ids = tuple((7919 * i + 11) % vocab_size for i in range(length))
    expected = reference_logits(model, token_ids)
    if fits(model):
        try:
            fused = FusedModel(
                model,
                vocab_size=vocab_size,
                num_slots=num_slots,
                max_length=max_length,
                choose=choose,
            )
            _check(fused, model, token_ids, expected)
        except (ModelError, AttributeError, RuntimeError) as error:
            # An unusual member of the family, or no memory for the fused copies of its weights.
            _log.warning("%s is served unfused: %s", type(model).__name__, error)
        else:
            return fused
    served = HFModel(model, vocab_size=vocab_size, num_slots=num_slots, max_length=max_length)
    _check(served, model, token_ids, expected)
    return served


def cut(model: PreTrainedModel, num_layers: int) -> None:
    """Leave out all layers but the first ``num_layers``."""
    config, body = model.config.get_text_config(), getattr(model, model.base_model_prefix)
    whole = config.num_hidden_layers
    if not 1 <= num_layers <= whole:
        raise ModelError(f"the model has {whole} layers; it cannot be cut to {num_layers}")
    if not isinstance(getattr(body, "layers", None), torch.nn.ModuleList):
        raise ModelError(f"{type(model).__name__} cannot be cut: it has no list of layers")
    body.layers = body.layers[:num_layers]
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]


def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Float32 logits [n, vocab] of the model's own forward pass: its own attention and no cache."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=next(model.parameters()).device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(before)
    return logits


def _check(
    served: LanguageModel, model: PreTrainedModel, token_ids: Sequence[int], expected: Tensor
) -> None:
    """Raise ModelError unless ``served`` gives the expected logits, over its cache.

    In two passes of which all logits are wanted, as where tokens are decoded, and in one of which
    not all are, as of a prompt: the two have code of their own.
    """
    name = type(model).__name__
    split, slot = len(token_ids) // 2, served.num_slots - 1
    parts = (
        Row(slot, 0, tuple(token_ids[:split]), split),
        Row(slot, split, tuple(token_ids[split:]), len(token_ids) - split),
        Row(slot, 0, tuple(token_ids), len(token_ids) - 1),
    )
    try:
        logits = torch.cat([served.forward([row]) for row in parts])
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise ModelError(f"{name} cannot run on the slot cache: {error}") from error
    expected = torch.cat([expected, expected[1:]])[:, : served.vocab_size]
    difference = (logits - expected).abs().max()
    half = next(model.parameters()).dtype != torch.float32
    limit = (_TOLERANCE_HALF if half else _TOLERANCE) * expected.abs().max().clamp(min=1.0)
    if not bool(difference <= limit):
        raise ModelError(
            f"{name} cannot be served exactly: on the slot cache its logits differ by "
            f"{difference.item():.3g} from its own forward pass"
        )
