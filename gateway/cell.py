"""`Cell`: the kind of traffic that evidence is gathered by. Knows nothing of evidence."""

from __future__ import annotations

import hashlib

import msgspec

from gateway.types import Decision, Mode, Signals

NO_DOMAIN = "none"
_OTHER = "other"
_ID_LENGTH = 12

_encoder = msgspec.json.Encoder()


class Cell(msgspec.Struct, frozen=True, order=True):
    """Domain × mode × verifier × model × draft source."""

    domain: str
    """The most probable one; ``none`` where no classifier named any."""
    mode: str
    verifier: str
    model: str
    """As the request names it."""
    draft: str = ""
    """The draft source; empty in standard mode."""

    @property
    def id(self) -> str:
        """What people and URLs call it: a digest, as a model's name may hold anything."""
        if self == OTHER:
            return _OTHER
        text = _encoder.encode(msgspec.structs.astuple(self))
        return hashlib.sha256(text).hexdigest()[:_ID_LENGTH]

    @property
    def text(self) -> str:
        """All of it in one line, for people."""
        parts = (self.domain, self.mode, self.verifier, self.model, self.draft)
        return _OTHER if self == OTHER else " / ".join(filter(None, parts))

    @property
    def is_standard(self) -> bool:
        """Whether nothing slower could be decoded."""
        return self.mode == Mode.STANDARD.value


OTHER = Cell(_OTHER, _OTHER, _OTHER, _OTHER)
"""All cells beyond the limit, together."""


def decided_cell(signals: Signals, model: str, decision: Decision) -> Cell:
    """The cell to which a request belongs if what was decided is what runs."""
    return Cell(
        domain=domain_of(signals),
        mode=decision.mode.value,
        verifier=decision.verifier,
        model=model,
        draft="" if decision.draft is None else decision.draft.source,
    )


def domain_of(signals: Signals) -> str:
    """The most probable domain."""
    top = signals.top("domain")
    return NO_DOMAIN if top is None else top.value
