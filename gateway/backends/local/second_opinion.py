"""What the probe says of one job's prompt, and whether the policy that decided lets the mode stand."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from gateway.backends.local.probe import DomainProbe
from gateway.opinion import Opinion, Review
from gateway.types import Mode

SOURCE = "probe"
_log = logging.getLogger(__name__)


class SecondOpinion:
    """Hears the readings of one job's rows. They have one prompt, so the first speaks for all."""

    def __init__(self, probe: DomainProbe, review: Review, decided: Mode) -> None:
        self._probe = probe
        self._review = review
        self._standard = decided is Mode.STANDARD
        self.opinion: Opinion | None = None
        """None until a prompt has been read."""

    def __call__(self, reading: Sequence[float] | None) -> bool:
        """Whether the row may draft as decided. What cannot be judged may not."""
        if self.opinion is None:
            self.opinion = self._judged(reading)
        return self._standard or (self.opinion.rule is None and self.opinion.error is None)

    def _judged(self, reading: Sequence[float] | None) -> Opinion:
        found = Opinion(source=SOURCE, content_hash=self._probe.content_hash)
        if reading is None:
            return msgspec.structs.replace(found, error="the probe gave no reading")
        scores = self._probe.named(reading)
        try:
            return msgspec.structs.replace(found, scores=scores, rule=self._review(scores))
        except Exception as error:  # noqa: BLE001 - kept: the outcome says it, and the row is tightened
            _log.exception("a second opinion could not be judged")
            return msgspec.structs.replace(
                found, scores=scores, error=f"{type(error).__name__}: {error}"
            )
