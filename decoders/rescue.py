"""What to try in place of a step that failed, so that a fault costs only the row that it belongs to.

A step has no effect until it is committed, so its parts can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from decoders.draft import NO_DRAFT
from decoders.drafter import Share


def parts_of(shares: Sequence[Share], error: Exception) -> list[list[Share]]:
    """The halves of the rows; of one row for which memory ran out, less of it; else nothing."""
    middle = len(shares) // 2
    if middle:
        return [list(shares[:middle]), list(shares[middle:])]
    (share,) = shares
    if not isinstance(error, torch.OutOfMemoryError):
        return []
    if len(share.draft):
        return [[replace(share, draft=NO_DRAFT)]]
    count = len(share.new_ids) // 2
    if not count:
        return []
    return [[replace(share, new_ids=share.new_ids[:count], decodes=False)]]
