"""Weighs the evidence of several stages: a linear sum for each domain. Knows no texts."""

from __future__ import annotations

import msgspec
import numpy as np

from gateway.classification.stages import Floats
from gateway.types import DOMAINS

BAN_DOMAINS = ("medical", "legal")
"""Judged by the most suspicious window and reading; the others by the typical window as it stands."""

IS_BAN = np.isin(DOMAINS, BAN_DOMAINS)


class Stack(msgspec.Struct, frozen=True):
    """Logit of a domain = its evidence times its weights, plus its bias."""

    weights: Floats
    """Shape (kinds of evidence of all stages, domains)."""
    bias: Floats
    """Shape (domains,)."""

    def logits(self, evidence: Floats) -> Floats:
        """Of evidence of shape (…, kinds, domains), shape (…, domains)."""
        logits: Floats = (evidence * self.weights).sum(axis=-2) + self.bias
        return logits
