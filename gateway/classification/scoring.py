"""The probabilities that labelled rows get: from any classifier, or as somebody worked them out before.

Knows nothing of how a classifier works: whatever says ``domain`` of a request is measured alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.classification.base import Classifier
from gateway.classification.rows import Row
from gateway.errors import ConfigError, Problem
from gateway.types import DOMAINS, Signal

Probabilities = npt.NDArray[np.float64]
"""Shape (rows, domains), or (domains,) of one row."""
Score = Callable[[Row], Probabilities]
Progress = Callable[[int, int], None]
"""Called with the number of rows that are done and of those to do."""


def score_with(classifier: Classifier) -> Score:
    """Each row as a request of its own. Raises ConfigError for a classifier without domains."""

    def score(row: Row) -> Probabilities:
        signals = classifier.classify(row.request()).signals
        if not any(signal.name == "domain" for signal in signals):
            hint = "name one that gives the signal `domain`"
            raise ConfigError([Problem("it says nothing of domains", path="classifier", hint=hint)])
        return vector(signals)

    return score


def vector(signals: Sequence[Signal]) -> Probabilities:
    """The probability of each domain, shape (domains,); 0.0 where no signal gives it."""
    probabilities = np.zeros(len(DOMAINS))
    for signal in signals:
        if signal.name == "domain" and signal.value in DOMAINS:
            at = DOMAINS.index(signal.value)
            probabilities[at] = max(probabilities[at], signal.score)
    return probabilities


def score_all(score: Score, rows: Sequence[Row], progress: Progress | None = None) -> Probabilities:
    """The probabilities of all rows, shape (rows, domains)."""
    probabilities = np.zeros((len(rows), len(DOMAINS)))
    for at, row in enumerate(rows):
        probabilities[at] = score(row)
        if progress is not None:
            progress(at + 1, len(rows))
    return probabilities


def read_probabilities(path: Path, rows: int) -> Probabilities:
    """Probabilities that were worked out before, from an ``.npy`` file of shape (rows, domains).

    For figures that do not flatter: each row scored by a model that has not seen its source.
    Raises ConfigError for a file that does not fit the rows.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise _broken(path, f"cannot read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise _broken(path, "not an .npy file of numbers") from None
    shape = (rows, len(DOMAINS))
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind != "f":
        was = getattr(found, "shape", "an archive")
        raise _broken(path, f"holds {was}, not floats of shape {shape}")
    if not ((found >= 0) & (found <= 1)).all():
        raise _broken(path, "holds values that are no probabilities")
    return found.astype(np.float64)


def _broken(path: Path, message: str) -> ConfigError:
    hint = f"np.save(path, probabilities), one row a line of the data, columns {', '.join(DOMAINS)}"
    return ConfigError([Problem(message, path=path, hint=hint)])
