"""What a caller asks of one answer: the sampling knobs, checked on construction, and why an answer ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class ParameterError(ValueError):
    """A sampling parameter is out of range; ``param`` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param} {message}")
        self.param = param


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The processors apply in the order in which they are listed here.

    ``logit_bias``, then ``repetition_penalty`` (prompt and output; Keskar et al., arXiv 1909.05858),
    ``frequency_penalty`` and ``presence_penalty`` (output only), what a constraint and ``min_tokens``
    forbid, ``temperature``, ``min_p``
    (Nguyen et al., arXiv 2407.01082), ``top_k``, ``top_p`` (Holtzman et al., arXiv 1904.09751).
    Raises ParameterError for a value out of range.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id → amount added to its logit."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    """0 takes the most likely token; else at least 1e-6, below which the scores would overflow."""
    min_p: float = 0.0
    """Drops tokens less likely than this share of the most likely one."""
    top_k: int = 0
    """Keeps the k most likely tokens and those that tie with the last of them; 0 keeps all."""
    top_p: float = 1.0
    """Keeps the most likely tokens up to this mass, and those that tie with the last of them."""
    max_tokens: int | None = None
    """``None``: as many as the context holds; 0 only reads the prompt."""
    min_tokens: int = 0
    """No token that ends the answer comes before so many; stop strings and ``max_tokens`` may."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer as an end-of-sequence token does: emitted, without text."""
    ignore_eos: bool = False
    """Whether an end-of-sequence token is a token like any other."""
    seed: int | None = None
    """Any integer; only its low 64 bits count. ``None`` draws one."""
    logprobs: int | None = None
    """``None``: none; k: the emitted token's log-probability and the k most likely tokens'."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, of which the first has none: it follows nothing."""

    def __post_init__(self) -> None:
        """Check every field."""
        if self.temperature != 0.0:
            self._check_float("temperature", self.temperature, 1e-6, 100.0)
        self._check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        self._check_float("min_p", self.min_p, 0.0, 1.0)
        self._check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        self._check_int("top_k", self.top_k, 0)
        if self.max_tokens is not None:
            self._check_int("max_tokens", self.max_tokens, 0)
        self._check_int("min_tokens", self.min_tokens, 0)
        if self.logprobs is not None:
            self._check_int("logprobs", self.logprobs, 0)
        if self.prompt_logprobs is not None:
            self._check_int("prompt_logprobs", self.prompt_logprobs, 0)
        for token_id in self.stop_token_ids:
            self._check_int("stop_token_ids", token_id, 0)
        if any(not text for text in self.stop):
            raise ParameterError("stop", "must not contain an empty string")
        for token_id, bias in self.logit_bias.items():
            if token_id < 0 or not bias < math.inf:
                raise ParameterError("logit_bias", f"has a bad entry {token_id}: {bias}")
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether the law depends on which tokens came before."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @staticmethod
    def _check_float(
        name: str, value: float, low: float, high: float, *, open_low: bool = False
    ) -> None:
        inside = low < value <= high if open_low else low <= value <= high
        if not inside:  # also true for NaN
            interval = f"({low:g}, {high:g}]" if open_low else f"[{low:g}, {high:g}]"
            raise ParameterError(name, f"must be a number in {interval}, not {value}")

    @staticmethod
    def _check_int(name: str, value: int, low: int) -> None:
        if value < low:
            raise ParameterError(name, f"must be at least {low}, not {value}")
