"""Which answers are decoded again in standard mode."""

from __future__ import annotations

import hashlib


def is_chosen(decision_id: str, rate: float) -> bool:
    """Whether a request is one of the share ``rate`` that is decoded again: by its id alone."""
    bits = hashlib.sha256(f"draftgate shadow 1\n{decision_id}".encode()).digest()[:8]
    return int.from_bytes(bits) < rate * 2**64
