"""Pooled hidden states of labelled prompts, as a probe of the same model will see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoders.models.base import ModelError, Row, Watchable
from gateway.backends.local.loading import config_error, load
from gateway.backends.local.probe import normalised, prefix_length
from gateway.probe import BLOCK, Blocks

_PASS_TOKENS = 256
_SLOT = 0
Turns = Sequence[tuple[str, str]]
"""Role and content of each message."""


class PromptPooler:
    """Runs prompts through one model, and keeps the means of their hidden states."""

    def __init__(
        self,
        model: str,
        *,
        layers: Sequence[int],
        max_tokens: int,
        device: str = "auto",
        cache: Path | None = None,
    ) -> None:
        """Of longer prompts the first ``max_tokens`` count.

        Raises ConfigError for a model that cannot be loaded, or that lacks one of the layers.
        """
        self.layers = tuple(layers)
        self._max_tokens = max_tokens
        self._seen: list[Tensor] = []
        try:
            self._loaded, _ = load(
                model,
                dtype="auto",
                device=device,
                num_slots=1,
                max_length=max_tokens + 1,
                threads=torch.get_num_threads(),
                cache_dir=cache,
            )
            if not isinstance(self._loaded.model, Watchable):
                raise ModelError(f"{self._loaded.name} shows no hidden states")
            self._loaded.model.watch(self)
        except (ModelError, ValueError) as error:
            raise config_error(error) from error
        self.name = self._loaded.name
        self.weights = self._loaded.weights
        self.prefix = self._common_prefix()
        """With what every chat begins; read once, and in no prompt's means."""
        if self.prefix:
            self._read(self.prefix, 0)

    def see(self, places: Tensor, hidden: Sequence[Tensor]) -> None:
        """Keep the normalised states of a pass, [n, layers × hidden_size]."""
        self._seen.append(torch.cat([normalised(state) for state in hidden], dim=1))

    def pool(self, turns: Turns) -> Blocks:
        """The means over every `BLOCK` tokens of a conversation that ends with the user."""
        token_ids = self._encode(turns)[: self._max_tokens]
        start = prefix_length(self.prefix, token_ids)
        self._read(token_ids[start:], start)
        states = torch.cat(self._seen).cpu().numpy()
        if not start and self.prefix:
            self._read(self.prefix, 0)  # the next one will want it in the slot again
        starts = np.arange(0, len(states), BLOCK)
        sizes = np.diff(np.append(starts, len(states)))
        means = np.add.reduceat(states, starts, axis=0) / sizes[:, None]
        return Blocks(means=means.astype(np.float16), sizes=sizes)

    def _read(self, token_ids: Sequence[int], start: int) -> None:
        self._seen = []
        for at in range(0, len(token_ids), _PASS_TOKENS):
            part = tuple(token_ids[at : at + _PASS_TOKENS])
            self._loaded.model.forward([Row(_SLOT, start + at, part, 0)])

    def _encode(self, turns: Turns) -> list[int]:
        tokenizer = self._loaded.tokenizer
        if not tokenizer.has_chat_template:
            return tokenizer.encode("\n".join(content for _, content in turns))
        return tokenizer.encode_chat([{"role": role, "content": text} for role, text in turns])

    def _common_prefix(self) -> tuple[int, ...]:
        if not self._loaded.tokenizer.has_chat_template:
            return ()
        one, other = self._encode([("user", "hello")]), self._encode([("user", "9 zebras")])
        length = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        return tuple(one[:length])
