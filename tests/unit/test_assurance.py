"""What is known of the bans of a policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gateway.assurance import NO_CONTRACT, Assured
from gateway.classification.contract import SHIPPED_CONTRACT, Contract, read_contract
from gateway.classification.domain import DomainClassifier
from gateway.classification.promise import Labelled, Target, promise
from gateway.routing.policy import Policy, load, parse_policy
from gateway.types import DOMAINS

POLICIES = Path(__file__).parents[2] / "policies"


@pytest.fixture(scope="module")
def contract() -> Contract:
    """Medical from 0.1 on: nine of ten rows reach it, and two of five others."""
    scores, labels = np.zeros((15, len(DOMAINS))), np.zeros((15, len(DOMAINS)), dtype=np.bool_)
    labels[:10, 0] = True
    scores[:, 0] = [0.9] * 9 + [0.05] + [0.5] * 2 + [0.01] * 3
    return promise(
        Labelled(scores, labels, ["a"] * 15, ()),
        {"medical": 0.1},
        Target(0.2, 0.95),
        classifier="domain",
        classifier_hash="c" * 64,
    )


def policy(threshold: float, domain: str = "medical", more: str = "") -> Policy:
    text = (
        "version: 1\nname: p\nrules:\n  - id: r\n    ban: [speculative, hybrid]\n"
        f"    when: {{domain: {{is: {domain}, min_probability: {threshold}}}{more}}}\n"
    )
    return parse_policy(text, "p.yaml", verifiers=("coupled",), draft_sources=("suffix",))


@pytest.mark.parametrize("threshold", [0.1, 0.02])
def test_a_bar_that_is_as_low_as_the_contracts_is_covered(
    contract: Contract, threshold: float
) -> None:
    assured = Assured(contract, hashes=["x", "c" * 64])

    (found,) = assured.guarantees(policy(threshold))

    assert found.recall is not None
    assert (found.threshold, found.contract_threshold) == (threshold, 0.1)
    assert (found.recall.hits, found.recall.rows, found.recall.share) == (9, 10, 0.9)
    assert found.miss_bound == contract.domains[0].miss_bound
    assert found.false_bans is not None
    assert (found.false_bans.share, found.classifier_hash) == (0.4, "c" * 64)
    assert assured.warnings(policy(threshold)) == ()


def test_a_looser_bar_has_no_contract_and_that_is_warned_of(contract: Contract) -> None:
    assured = Assured(contract, hashes=["c" * 64])

    (found,) = assured.guarantees(policy(0.3))
    (warning,) = assured.warnings(policy(0.3))

    assert (found.note, found.recall, found.classifier_hash) == (NO_CONTRACT, None, None)
    assert NO_CONTRACT in warning
    assert "from 0.3 on, what it catches was measured at 0.1" in warning


def test_a_domain_that_is_not_in_the_contract_is_shown_and_not_warned_of(
    contract: Contract,
) -> None:
    assured = Assured(contract)

    assert assured.guarantees(policy(0.1, "code"))[0].note == NO_CONTRACT
    assert assured.warnings(policy(0.1, "code")) == ()


def test_a_contract_about_other_weights_says_nothing_of_these(contract: Contract) -> None:
    assured = Assured(contract, hashes=["d" * 64])

    (found,) = assured.guarantees(policy(0.1))
    (warning,) = assured.warnings(policy(0.1))

    assert found.recall is None
    assert found.note == warning
    assert "classifier cccccccccccc, which is not loaded" in warning
    assert assured.warnings(policy(0.1, "code")) == ()


def test_without_a_contract_nothing_is_known_and_nothing_warned_of() -> None:
    assert Assured().guarantees(policy(0.1))[0].note == NO_CONTRACT
    assert Assured().warnings(policy(0.1)) == ()


def test_what_limits_a_ban_is_said(contract: Contract) -> None:
    found = Assured(contract).guarantees(policy(0.1, more=", stream: true"))[0]

    assert found.note == "the rule asks for more"
    assert found.recall is not None


@pytest.mark.parametrize("name", ["all-standard", "default", "fastest", "healthcare", "legal"])
def test_the_shipped_contract_is_about_the_shipped_weights_and_covers_every_shipped_policy(
    name: str,
) -> None:
    assured = Assured(read_contract(SHIPPED_CONTRACT), hashes=[DomainClassifier().content_hash])

    assert assured.warnings(load(POLICIES / f"{name}.yaml")) == ()
