"""What a caller hands to the engine, what it gets back to hold, and the reasons for a refusal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoders.acceptance import History
from decoders.constraints import Constraint
from decoders.logprobs import token_logprobs
from decoders.modes import Mode, Standard
from decoders.noise import Noise
from decoders.params import FinishReason, ParameterError, SamplingParams
from decoders.sampling import TokenCounts
from decoders.sequence import Piece, TokenLogprob, TokenSequence
from decoders.stats import DecodeStats
from decoders.verifiers.base import Verifier
from decoders.verifiers.coupled import CoupledVerifier

_log = logging.getLogger(__name__)

_UNREAD = Standard()
_MAX_SCORED_TOKENS = 64
"""Of a prompt in one pass, where each has a row of logits as wide as the vocabulary."""


class EngineError(Exception):
    """The engine cannot take the request now."""


class QueueFull(EngineError):
    """The bounded queue has no room for these requests."""


class EngineStopped(EngineError):
    """The engine is not running."""


class PromptTooLong(ParameterError):
    """The prompt leaves no room for one output token."""

    def __init__(self, num_tokens: int, max_length: int) -> None:
        super().__init__(
            "prompt",
            f"has {num_tokens} tokens; with one answer token it must fit into {max_length}",
        )


Listener = Callable[[Piece], None]
"""Called in the engine's thread with each piece of one answer; must return at once. The last piece
has a finish reason."""

PrefillListener = Callable[[Sequence[float] | None], bool]
"""Called in the engine's thread, once, when the prompt is in the cache and before the first draft;
must return at once. It is given what the engine's probe reads, None where that failed, and says
whether the row may draft. Where it fails itself, the row may not."""


@dataclass(frozen=True)
class Request:
    """One sequence to decode."""

    prompt_ids: Sequence[int]
    params: SamplingParams = SamplingParams()
    mode: Mode = field(default_factory=Standard)
    verifier: Verifier = field(default_factory=CoupledVerifier)
    """A lossy one keeps this request's account and cannot be shared with another."""
    listener: Listener | None = None
    scope: str = ""
    """Who may share computed prompts with whom: rows of one scope only, for example one caller's."""
    domain: str = ""
    """What the text is about, as far as it bears on how often drafts are accepted."""
    constraint: Constraint | None = None
    """What the answer may say. It keeps this answer's place and cannot be shared with another."""
    on_prefill: PrefillListener | None = None
    """Who hears what the probe reads. A row that then may not draft goes on in standard mode, and is
    verified exactly."""
    patient: bool = False
    """Whether the row has a slot only while no other request waits for one, and is given up when one
    does."""
    with_margins: bool = False
    """Whether to keep how close each choice was: `Ticket.margins`."""
    noise: Noise | None = None
    """In place of the noise that ``params`` ask for; for proofs that enumerate every choice."""


class Ticket:
    """A request in the engine's hands."""

    def __init__(
        self, request: Request, sequence: TokenSequence, noise: Noise, number: int
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.noise = noise
        self.number = number
        self.mode = request.mode
        self.verifier = request.verifier
        self.unread = request.on_prefill is not None
        """Whether somebody waits to hear what is in the prompt; nothing is drafted before."""
        self.restricted = False
        """Whether the row was refused its drafts by who heard that."""
        self.constraint = request.constraint
        self.error: str | None = None
        self.pushed_out = False
        """Whether its place in the queue went to somebody else."""
        self.done = threading.Event()
        self.slot = -1
        self.num_cached = 0
        self.follows: Ticket | None = None
        """The row whose prompt this one waits to copy."""
        self.prompt_logprobs: list[TokenLogprob] = []
        """Of the prompt's tokens from the second on, as far as they are computed; where wanted."""
        self.counts: TokenCounts | None = None
        self.history = History()
        self.last_scores: Tensor | None = None
        """[vocab]: softmax is the law of the last emitted token; kept for rows that may draft."""
        self.margins: list[float] = []
        """One an emitted token, where wanted: best minus second best score, noise included."""
        self._measured: Tensor | None = None
        self.cancelled = False
        self.evicted = False
        """Whether the engine gave up the patient row for another."""
        self.submitted_at = time.perf_counter()
        self.admitted_at = 0.0
        self.first_token_at = 0.0

    @property
    def stats(self) -> DecodeStats:
        """The counts so far; final once `done` is set."""
        return self.sequence.stats

    @property
    def drafting(self) -> Mode:
        """What the row drafts by now."""
        return _UNREAD if self.unread else self.mode

    def hear(self, reading: Sequence[float] | None) -> None:
        """Pass on what the probe reads in the prompt, and take drafts away where the answer is no."""
        listener, self.unread = self.request.on_prefill, False
        try:
            may_draft = listener is None or listener(reading)
        except Exception:  # noqa: BLE001 - logged: who cannot judge must not let a draft through
            _log.exception("who was to hear of a prompt failed; its row decodes without drafts")
            may_draft = False
        if not may_draft:
            self.restricted = True
            self.mode = Standard()
            if not self.verifier.exact:
                self.verifier = CoupledVerifier()

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are wanted."""
        return self.request.params.prompt_logprobs is not None

    @property
    def most_tokens(self) -> int:
        """How many tokens of the row one pass may take."""
        return _MAX_SCORED_TOKENS if self.scores_prompt else self.sequence.num_prompt_tokens

    def score(self, logits: Tensor) -> None:
        """Note what the next tokens of the prompt have under their rows of ``logits`` [n, vocab].

        Raises ArithmeticError where those are no numbers.
        """
        num_top = self.request.params.prompt_logprobs
        if num_top is None or not len(logits):
            return
        if bool(torch.isnan(logits).any()):
            raise ArithmeticError("the model's logits are not numbers")
        first = 1 + len(self.prompt_logprobs)
        token_ids = self.sequence.token_ids[first : first + len(logits)]
        self.prompt_logprobs += token_logprobs(logits, token_ids, num_top)

    @property
    def num_pending(self) -> int:
        """Tokens of the sequence that are not in the cache: 1 once the prompt is in."""
        return len(self.sequence.token_ids) - self.num_cached

    def count_step(self, position: int) -> None:
        """Count a pass that emitted, its first token at output ``position``, and take its time."""
        now = time.perf_counter()
        self.stats.num_steps += 1
        if position == 0:
            self.first_token_at = now
            self.stats.prefill_seconds = now - self.admitted_at
        self.stats.decode_seconds = now - self.first_token_at

    def add_measured(self, columns: Tensor) -> None:
        """Add what was measured of emitted tokens, [n, columns]; it stays on the device."""
        if columns.numel():
            total = columns.sum(dim=0)
            self._measured = total if self._measured is None else self._measured + total

    def read_measured(self) -> Sequence[float]:
        """The sums of the columns over all tokens so far; empty where nothing was measured."""
        if self._measured is None:
            return ()
        try:
            sums: list[float] = self._measured.tolist()
        except Exception:  # noqa: BLE001 - logged: no answer needs it, and its row must end
            _log.exception("what was measured of a row could not be read")
            return ()
        return sums

    def blame(self, error: BaseException) -> None:
        """Say what failed the row."""
        self.error = f"{type(error).__name__}: {error}"

    def cancel(self) -> None:
        """Drop the row before the engine's next forward pass. Safe from any thread, and repeatable."""
        self.cancelled = True

    def close(self, reason: FinishReason | None, piece: Piece) -> None:
        """Tell the listener, and at the end whoever waits."""
        try:
            if self.request.listener is not None:
                self.request.listener(piece)
        except Exception:  # noqa: BLE001 - logged: a caller's fault must not reach the other rows
            _log.exception("a listener failed")
        finally:
            if reason is not None:
                self.done.set()
