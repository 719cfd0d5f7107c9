"""The seam to classifiers, and `classify`, which asks all of them about one request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.types import ChatRequest, Signal, Signals


class Reading(msgspec.Struct, frozen=True):
    """What one classifier says of one request."""

    signals: tuple[Signal, ...]
    scored_tokens: int = 0
    total_tokens: int = 0
    """Both in the classifier's own units; equal unless text was left unscored."""


class Classifier(Protocol):
    """A producer of signals: a pure function of the request, safe to call from any thread."""

    @property
    def content_hash(self) -> str:
        """Identifies the weights or rules, for the decision record."""
        ...

    def classify(self, request: ChatRequest) -> Reading:
        """Read the whole request. Never raises on text: empty, huge, binary-looking or in any language."""
        ...


async def classify(
    request: ChatRequest, classifiers: Mapping[str, Classifier], *, timeout_seconds: float
) -> Signals:
    """All signals of one request.

    A classifier that fails or is late sets ``error``, so that the policy's ``on_classifier_error`` applies.
    A prompt of token ids counts as text left unscored, whether a classifier says so or not.
    """
    names = tuple(classifiers)

    async def read(name: str) -> Reading:
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.to_thread(classifiers[name].classify, request)

    readings = await asyncio.gather(*map(read, names), return_exceptions=True)
    failures = [
        f"{name}: {type(reading).__name__}: {reading}".rstrip(": ")
        for name, reading in zip(names, readings, strict=True)
        if isinstance(reading, BaseException)
    ]
    good = [reading for reading in readings if isinstance(reading, Reading)]
    signals = _merge(good, {name: classifiers[name].content_hash for name in names}, failures)
    if isinstance(request.prompt, tuple) and not signals.truncated:
        unread = signals.scored_tokens + max(len(request.prompt), 1)
        signals = msgspec.structs.replace(signals, total_tokens=unread)
    return signals


def _merge(
    readings: Sequence[Reading], hashes: Mapping[str, str], failures: Sequence[str]
) -> Signals:
    return Signals(
        items=tuple(signal for reading in readings for signal in reading.signals),
        scored_tokens=sum(reading.scored_tokens for reading in readings),
        total_tokens=sum(reading.total_tokens for reading in readings),
        classifiers=hashes,
        error="; ".join(failures) or None,
    )
