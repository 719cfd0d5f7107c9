"""Records as JSON text and back. Whatever is encoded here can be decoded here, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from gateway.audit.record import (
    Access,
    DecisionRecord,
    EvidenceEvent,
    Feedback,
    OutcomeRecord,
    PolicyChange,
    Shadow,
    TextFacts,
)

Record = (
    DecisionRecord
    | OutcomeRecord
    | PolicyChange
    | Feedback
    | TextFacts
    | Access
    | Shadow
    | EvidenceEvent
)

_encoder = msgspec.json.Encoder()
_decision_decoder = msgspec.json.Decoder(DecisionRecord)
_outcome_decoder = msgspec.json.Decoder(OutcomeRecord)
_change_decoder = msgspec.json.Decoder(PolicyChange)
_feedback_decoder = msgspec.json.Decoder(Feedback)
_text_decoder = msgspec.json.Decoder(TextFacts)
_access_decoder = msgspec.json.Decoder(Access)
_shadow_decoder = msgspec.json.Decoder(Shadow)
_event_decoder = msgspec.json.Decoder(EvidenceEvent)
_decode: dict[type, Callable[[str | bytes], object]] = {
    DecisionRecord: _decision_decoder.decode,
    OutcomeRecord: _outcome_decoder.decode,
    PolicyChange: _change_decoder.decode,
    Feedback: _feedback_decoder.decode,
    TextFacts: _text_decoder.decode,
    Access: _access_decoder.decode,
    Shadow: _shadow_decoder.decode,
    EvidenceEvent: _event_decoder.decode,
}


def encode(record: Record) -> str:
    """JSON text of ``record``. Raises ValueError naming the field that JSON cannot hold.

    A lone surrogate (it can come in with a file name in an error message) becomes ``?``.
    """
    try:
        text = _encoder.encode(record)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(record)
        text = json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")
    try:
        # NaN is written as null, which would come to light when somebody reads the record.
        _decode[type(record)](text)
    except msgspec.DecodeError as error:
        raise ValueError(f"{type(record).__name__} cannot be read back: {error}") from error
    return text.decode("utf-8")


def decode_decision(text: str) -> DecisionRecord:
    """The decision record that `encode` wrote."""
    return _decision_decoder.decode(text)


def decode_outcome(text: str) -> OutcomeRecord:
    """The outcome record that `encode` wrote."""
    return _outcome_decoder.decode(text)


def decode_change(text: str) -> PolicyChange:
    """The policy change that `encode` wrote."""
    return _change_decoder.decode(text)


def decode_feedback(text: str) -> Feedback:
    """The feedback that `encode` wrote."""
    return _feedback_decoder.decode(text)


def decode_text(text: str) -> TextFacts:
    """The facts of a captured text that `encode` wrote."""
    return _text_decoder.decode(text)


def decode_access(text: str) -> Access:
    """The access that `encode` wrote."""
    return _access_decoder.decode(text)


def decode_shadow(text: str) -> Shadow:
    """The result of a shadow run that `encode` wrote."""
    return _shadow_decoder.decode(text)


def decode_event(text: str) -> EvidenceEvent:
    """The evidence event that `encode` wrote."""
    return _event_decoder.decode(text)
