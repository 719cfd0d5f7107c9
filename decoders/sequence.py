"""One sequence: its tokens, its text, and where it ends. Knows nothing of models, slots or drafts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from decoders.detokenize import Detokenizer, StopStrings
from decoders.params import FinishReason, SamplingParams
from decoders.stats import DecodeStats


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probability of an emitted token under the target model, before any processor."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens at that position and their log-probabilities, likeliest first."""


@dataclass(frozen=True)
class Piece:
    """What one step adds to an answer."""

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    step: tuple[int, int, int] = (0, 0, 0)
    """Tokens that were emitted; draft tokens that were proposed, and of those accepted."""

    def of_step(self, emitted: int, proposed: int, accepted: int) -> Piece:
        """The piece with the counts of its step."""
        return replace(self, step=(emitted, proposed, accepted))


class SequenceText:
    """The text side of a sequence: pieces, stop strings, and the log-probabilities that go with them."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stop = StopStrings(stop)
        self._decoded = 0
        self._shown = 0
        self._waiting: list[tuple[int, TokenLogprob]] = []

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stop.found

    def push(self, token_id: int, logprob: TokenLogprob | None) -> tuple[str, bool]:
        """Add one token; return the text to show now, and whether a stop string ended it."""
        piece = self._detokenizer.push(token_id)
        if logprob is not None:
            self._waiting.append((self._decoded, logprob))
        self._decoded += len(piece)
        text, stopped = self._stop.push(piece)
        self._shown += len(text)
        return text, stopped

    def flush(self) -> str:
        """The text held back, once no token can follow and no stop string was found."""
        text, stopped = self._stop.push(self._detokenizer.flush())
        if not stopped:
            text += self._stop.flush()
        self._shown += len(text)
        return text

    def logprobs(self, *, final: bool) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens whose text has begun to show; all others wait.

        At the end a token stays if it stands before the cut that a stop string made.
        """
        end = self._shown + 1 if final and self._shown == self._decoded else self._shown
        ready = tuple(logprob for start, logprob in self._waiting if start < end)
        self._waiting = [entry for entry in self._waiting if entry[0] >= end]
        return ready


class TokenSequence:
    """Prompt and output tokens of one answer, and the conditions that end it."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        decode: Callable[[Sequence[int]], str],
        eos_ids: Collection[int],
        max_length: int,
    ) -> None:
        self.token_ids = list(prompt_ids)
        self.num_prompt_tokens = len(prompt_ids)
        self.params = params
        room = max_length - len(prompt_ids)
        self.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        self.finish_reason: FinishReason | None = None
        self.stats = DecodeStats(num_prompt_tokens=len(prompt_ids))
        self.end_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_ids)
        )
        """Tokens that end the answer and have no text."""
        self._text = SequenceText(decode, params.stop)

    @property
    def stop(self) -> str | None:
        """The stop string that ended it; None where something else did."""
        return self._text.stop

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far; also the output position of the next one."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """The emitted tokens, an end-of-sequence token included."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_remaining_tokens(self) -> int:
        """How many tokens may still be emitted."""
        return self.max_tokens - self.num_output_tokens

    def extend(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> tuple[Piece, int]:
        """Emit tokens one by one until the answer ends; return what to show and how many were emitted.

        A block is cut exactly where token-by-token decoding would have stopped: at an
        end-of-sequence or stop token, then at a stop string, then at the length limit.
        """
        text = ""
        emitted = 0
        for i, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            emitted += 1
            text += self._emit(token_id, logprobs[i] if logprobs else None)
            if self.finish_reason is not None:
                break
        self.stats.num_output_tokens = self.num_output_tokens
        final = self.finish_reason is not None
        return Piece(text, self._text.logprobs(final=final), self.finish_reason), emitted

    def _emit(self, token_id: int, logprob: TokenLogprob | None) -> str:
        if token_id in self.end_ids:
            self.finish_reason = FinishReason.STOP
            return self._text.flush()
        text, stopped = self._text.push(token_id, logprob)
        if stopped:
            self.finish_reason = FinishReason.STOP
        elif self.num_remaining_tokens <= 0:
            self.finish_reason = FinishReason.LENGTH
            text += self._text.flush()
        return text
