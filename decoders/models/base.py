"""The seams to a model and to its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class ModelError(Exception):
    """A model that cannot be loaded, or that cannot be served exactly. The message says why."""


@dataclass(frozen=True)
class Row:
    """One sequence's share of a forward pass."""

    slot: int
    start: int
    """How many of the sequence's tokens the cache holds; the first new token's position."""
    token_ids: tuple[int, ...]
    num_logits: int
    """Logits are wanted after each of the last ``num_logits`` tokens."""


class LanguageModel(Protocol):
    """A causal language model with a slot of key/value cache for each sequence.

    A slot has no length of its own: `Row.start` says how much of it is valid, so rolling back
    rejected tokens means passing a smaller start.
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids that may be emitted (padding of the embedding matrix excluded)."""
        ...

    @property
    def max_length(self) -> int:
        """Tokens one slot holds."""
        ...

    @property
    def num_slots(self) -> int:
        """Sequences that can be in progress at once."""
        ...

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One pass over all rows; float32 logits [sum of num_logits, vocab_size], row after row."""
        ...

    def reset(self, slot: int) -> None:
        """Forget what a slot holds, after its row has failed."""
        ...


class Watcher(Protocol):
    """Sees the hidden states of every token that a model computes."""

    @property
    def layers(self) -> Sequence[int]:
        """The layers after which it looks, counted from 1, in ascending order."""
        ...

    def see(self, places: Tensor, hidden: Sequence[Tensor]) -> None:
        """Look at n tokens of a pass, their states after each of `layers` [n, hidden_size] each.

        ``places`` [n] is slot × max_length + position. It must neither keep nor change the states,
        and never raises.
        """
        ...


@runtime_checkable
class Watchable(Protocol):
    """A model that shows its hidden states."""

    def watch(self, watcher: Watcher) -> None:
        """Show them from the next pass on. Raises ModelError for layers that it cannot show."""
        ...


def check_watched(layers: Sequence[int], num_layers: int) -> None:
    """Raise ModelError unless these are layers of a model with ``num_layers``, without its last.

    What comes after the last layer is normalised in some models and not in others.
    """
    ascending = all(a < b for a, b in pairwise(layers))
    if not layers or not ascending or layers[0] < 1 or layers[-1] >= num_layers:
        raise ModelError(
            f"no hidden states can be shown after the layers {', '.join(map(str, layers)) or '-'}: "
            f"name some of 1 to {num_layers - 1}, in ascending order"
        )


@runtime_checkable
class PrefixCopier(Protocol):
    """A model that can copy the start of one slot to another for less than computing it costs."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make the first ``length`` positions of slot ``target`` those of slot ``source``."""
        ...


@runtime_checkable
class OwnArithmetic(Protocol):
    """A model whose last bits depend on more than weights, dtype and libraries."""

    @property
    def arithmetic(self) -> str:
        """A short hash of what they depend on: models that differ in it may differ in rounding."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens that the model expects around it."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        ``tools`` are functions as chat templates expect them, for a template that shows them.

        Raises ParameterError when the model's chat template refuses the messages.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...
