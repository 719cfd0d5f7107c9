"""What was measured of a classifier, as the file that ships beside its weights.

The model card is written from it, and from nothing else.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.classification.evaluation import Report
from gateway.classification.json_file import read_json
from gateway.classification.rows import Corpus

SHIPPED_EVALUATION = Path(__file__).parent / "weights" / "evaluation.json"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A report, and what it is about."""

    classifier: str
    classifier_hash: str
    """Of the weights that are served."""
    held_out: bool
    """Whether each row was scored by a model that had not seen its source."""
    policy: str
    """Name and version of the policy whose bars were used."""
    data: tuple[Corpus, ...]
    """What it was measured on."""
    training: tuple[Corpus, ...] = ()
    """What the weights were trained on, where that was said."""
    report: Report


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a file that ``draftgate classifier evaluate --json`` wrote. Raises ConfigError."""
    hint = "write it with: draftgate classifier evaluate ROWS --json > FILE"
    return read_json(path, Evaluation, what="an evaluation", hint=hint)
