"""The model card as a page, written from an evaluation and a contract, and from nothing else."""

from __future__ import annotations

from gateway.classification.card import Evaluation
from gateway.classification.contract import Contract


def write_card(evaluation: Evaluation, contract: Contract) -> str:
    """Markdown. The same figures give the same page."""
    return f"# Model card\n\n{evaluation.report.rows} {contract.rows}\n"
