"""Digests by which the log recognises what it does not hold: a request's body, an answer's tokens.

The only place where they are made. Knows nothing of records.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


def digest(data: bytes) -> str:
    """The digest of a request's raw body, in hex."""
    return hashlib.sha256(data).hexdigest()


def token_digest(token_ids: Sequence[int]) -> str:
    """The digest of the token ids of one answer, each as four bytes, the lowest first; in hex."""
    return digest(struct.pack(f"<{len(token_ids)}I", *token_ids))
