"""The language classifier: in which language a request is written. Knows nothing of domains or policies.

A signal about the request as a whole, so it reads a sample and reports no token counts: text beyond the
sample is not text that went unscored.
"""

from __future__ import annotations

import hashlib
import re
import threading
from importlib.metadata import version
from typing import Any

from gateway.classification.base import Reading
from gateway.types import ChatRequest, Signal

SAMPLE_CHARACTERS = 4_000
"""Read in all, shared out over the user's turns, the last one first."""
MIN_LETTER_BYTES = 12
"""UTF-8 bytes of letters: about two English words, or four ideographs."""
MIN_SCORE = 0.2
"""Below it a guess among a hundred languages is no answer."""
UNDETERMINED = "und"

_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_NOT_LETTERS = re.compile(r"[\W\d_]+")


class LanguageClassifier:
    """Signal ``language``: an ISO 639-1 code, or ``und`` with score 0 for text too short to tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identifier: Any = None
        identity = (
            f"py3langid {version('py3langid')} {SAMPLE_CHARACTERS} {MIN_LETTER_BYTES} {MIN_SCORE}"
        )
        self._hash = hashlib.sha256(identity.encode()).hexdigest()

    @property
    def content_hash(self) -> str:
        """SHA-256 over the library's version and the limits above."""
        return self._hash

    def classify(self, request: ChatRequest) -> Reading:
        """Judge the user's own words without code blocks; every message when the user wrote none."""
        language, score = self._language(_sample(request))
        signal = Signal(name="language", value=language, score=score, source="language")
        return Reading((signal,))

    def _language(self, text: str) -> tuple[str, float]:
        letters = _NOT_LETTERS.sub(" ", text).strip()
        if len(letters.replace(" ", "").encode("utf-8", "ignore")) < MIN_LETTER_BYTES:
            return UNDETERMINED, 0.0
        language, score = self._load().classify(letters.encode("utf-8", "ignore").decode())
        return (language, min(score, 1.0)) if score >= MIN_SCORE else (UNDETERMINED, 0.0)

    def _load(self) -> Any:
        # About a second, so it is paid at the first request and once.
        with self._lock:
            if self._identifier is None:
                from py3langid.langid import MODEL_FILE, LanguageIdentifier

                identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
                # Only ISO 639-1; the library knows three-letter codes and "no language" as well.
                identifier.set_languages([code for code in identifier.labels if len(code) == 2])
                self._identifier = identifier
            return self._identifier


def _sample(request: ChatRequest) -> str:
    turns = [message.text for message in request.messages if message.role == "user"]
    pieces: list[str] = []
    left = SAMPLE_CHARACTERS
    for text in reversed(turns or request.texts()):
        # Cut first: a huge text costs no more than a long one.
        prose = _FENCED.sub(" ", text[: 4 * SAMPLE_CHARACTERS])[:left]
        pieces.append(prose)
        left -= len(prose)
        if left <= 0:
            break
    return "\n".join(reversed(pieces))
