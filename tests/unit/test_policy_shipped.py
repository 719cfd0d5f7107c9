"""Every policy that Draftgate ships is valid, and its own cases hold and reach each of its rules."""

from pathlib import Path

import pytest

from gateway.routing.files import TESTS, beside
from gateway.routing.policy import load
from gateway.routing.testing import run

POLICIES = Path(__file__).parents[2] / "policies"
NAMES = ("all-standard", "default", "fastest", "healthcare", "legal")


def test_the_folder_holds_these_policies_and_no_other() -> None:
    found = {path.stem for path in POLICIES.glob("*.yaml")}

    assert {name for name in found if not name.endswith(("_test", "_proof"))} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_of_a_shipped_policy_hold_and_reach_every_rule(name: str) -> None:
    path = POLICIES / f"{name}.yaml"
    report = run(load(path), beside(path, TESTS))

    assert [(case.name, case.differences) for case in report.results if not case.passed] == []
    assert report.uncovered == ()


def test_no_shipped_rule_expires() -> None:
    assert not any(rule.expires for name in NAMES for rule in load(POLICIES / f"{name}.yaml").rules)
