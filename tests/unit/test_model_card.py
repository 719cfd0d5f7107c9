"""The model card is what was measured of the weights that ship."""

from __future__ import annotations

from pathlib import Path

from gateway.classification.card import SHIPPED_EVALUATION, read_evaluation
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.classification.domain import DomainClassifier
from gateway.classification.page import write_card
from gateway.routing.bars import thresholds
from gateway.routing.policy import load

ROOT = Path(__file__).parents[2]
FIX = "make card, with CARD_ROWS and CARD_OPTIONS; see docs/classification.md"


def test_the_shipped_figures_are_about_the_shipped_weights() -> None:
    shipped = DomainClassifier().content_hash

    assert read_evaluation(SHIPPED_EVALUATION).classifier_hash == shipped, FIX
    assert read_contract(SHIPPED_CONTRACT).classifier_hash == shipped, FIX


def test_the_page_is_written_from_the_shipped_figures() -> None:
    card = write_card(read_evaluation(SHIPPED_EVALUATION), read_contract(SHIPPED_CONTRACT))

    assert (ROOT / "docs" / "model-card.md").read_text(encoding="utf-8") == card, FIX


def test_the_figures_are_at_the_bars_of_the_shipped_policy() -> None:
    bars = thresholds(load(ROOT / "policies" / "default.yaml"))
    report = read_evaluation(SHIPPED_EVALUATION).report
    contract = read_contract(SHIPPED_CONTRACT)

    assert {one.domain: one.threshold for one in report.domains if one.banned} == bars, FIX
    assert all(one.threshold == bars[one.domain] for one in contract.domains), FIX
