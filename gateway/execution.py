"""`Execution`: what a backend really did for one request. Knows nothing of HTTP, torch or storage."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.opinion import Opinion
from gateway.tally import Tally
from gateway.types import Mode, Usage


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend really did for one request, counted where it was done; never copied from the decision.

    Sums run over all choices of the request.
    """

    backend: str = ""
    """The backend's name in the configuration."""
    model: str = ""
    mode: Mode | None = None
    """The mode that ran; ``None`` when nothing ran."""
    verifier: str | None = None
    verifier_class: str | None = None
    """``exact`` or ``lossy``; None where another engine has speculated, which does not tell how."""
    distortion: float = 0.0
    """What a lossy verifier has spent of its budget, for the choice that spent most."""
    usage: Usage = Usage()
    num_steps: int = 0
    """Target forward passes that gave at least one token to this request."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    longest_draft: int = 0
    """Most draft tokens proposed in one step."""
    accept_counts: tuple[int, ...] = ()
    """``accept_counts[k]``: drafts of which exactly k tokens were accepted."""
    drafts_by_source: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Draft source → (proposed, accepted) tokens."""
    first_draft_position: int | None = None
    """Smallest output position at which a draft token was proposed."""
    why_k: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Why drafts were as long as they were → steps: ``limit``, ``cost``, ``no_match``, ``gate``, …"""
    tightened_by: str | None = None
    """The source of the opinion that made the backend decode in standard mode; None: as decided."""
    fallback: str | None = None
    """Why another mode ran, which the decision allows in place of its own: ``no_arm``, ``arm_down``,
    ``unsupported`` or ``no_continuation``; None: as decided, or as ``tightened_by``."""
    attested_by: str = "engine"
    """Who counted: the ``engine`` itself; ``server-metrics``, where another engine's server would have
    shown drafts; ``config-only``, where nothing but the configuration says what it does."""
    opinion: Opinion | None = None
    tally: Tally | None = None
    """What was measured of the emitted tokens; None where the backend measures nothing."""
    output_digests: tuple[str, ...] = ()
    """`token_digest` of what each answer emitted, in the order of their seeds, those included that are
    no choice; empty where the backend has no tokens, or emitted none."""
    output_lengths: tuple[int, ...] = ()
    """How many tokens each digest is of."""
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    fingerprint: str = ""
    """Hash of the model's weights file list, dtype and engine version."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens / proposed draft tokens; None where none was proposed."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Emitted tokens / target passes that emitted; None where none did. Standard decoding has 1."""
        return self.usage.completion_tokens / self.num_steps if self.num_steps else None
