"""What decoding really did, as raw counts; every rate is derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoders.evidence import Evidence


@dataclass
class DecodeStats:
    """Counts of one sequence. Times are seconds of wall clock."""

    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    """Emitted tokens, an end-of-sequence token included."""
    num_steps: int = 0
    """Target forward passes that emitted at least one token."""
    num_drafts: int = 0
    """Steps with at least one draft token."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    longest_draft: int = 0
    """Most draft tokens proposed in one step."""
    accept_counts: list[int] = field(default_factory=list)
    """``accept_counts[k]``: drafts of which exactly k tokens were accepted."""
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Draft source → (proposed, accepted) tokens."""
    first_draft_position: int | None = None
    """Smallest output position at which a draft token was proposed."""
    why_k: dict[str, int] = field(default_factory=dict)
    """Why the steps that might have had a draft had as many tokens of it as they had, and how often."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values were there already, from a prompt that began alike."""
    distortion: float = 0.0
    """Sum over the emitted tokens of TV(law they were drawn from, target's law), given what came
    before; above 0 only with a lossy verifier. Bounds the total variation of the whole answer."""
    logprob: float = 0.0
    """Natural-log probability of the emitted tokens together under the target model, before any
    processor; counted where log-probabilities are wanted."""
    evidence: Evidence | None = None
    """What the meter says of the emitted tokens; there once the sequence has ended."""
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    """From admission to the first token."""
    decode_seconds: float = 0.0
    """From the first token to the last."""

    def record_draft(self, source: str, position: int, proposed: int, accepted: int) -> None:
        """Count one verified draft of ``proposed`` tokens whose first stood at output ``position``."""
        self.num_drafts += 1
        self.num_draft_tokens += proposed
        self.longest_draft = max(self.longest_draft, proposed)
        self.num_accepted_tokens += accepted
        self.accept_counts += [0] * (accepted + 1 - len(self.accept_counts))
        self.accept_counts[accepted] += 1
        before = self.by_source.get(source, (0, 0))
        self.by_source[source] = (before[0] + proposed, before[1] + accepted)
        if self.first_draft_position is None:
            self.first_draft_position = position

    def record_why(self, why: str) -> None:
        """Count one step by why its draft was as long as it was."""
        self.why_k[why] = self.why_k.get(why, 0) + 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens / proposed draft tokens; 0.0 where none was proposed."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per target pass, the bonus token included; 1.0 for standard decoding."""
        return self.num_output_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first / seconds after the first; 0.0 where there was only one."""
        return (self.num_output_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0
