"""What `Gateway` says of itself, and what it would decide. Plain structs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from gateway.backends.base import BackendStatus
from gateway.types import Decision, Signals


class GatewayStatus(msgspec.Struct, frozen=True):
    """What health checks report."""

    ready: bool
    policy: str
    policy_hash: str
    warnings: tuple[str, ...]
    """What an operator should mend, although requests are answered."""
    backends: Mapping[str, BackendStatus]


class Verdict(NamedTuple):
    """A decision, what it was made from, and when."""

    decision: Decision
    signals: Signals
    now: datetime
