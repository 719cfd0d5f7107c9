"""`draftgate matrix`: what counts as faster, what is suggested, and the policy that comes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli.matrix import _entry
from gateway.documents.layout import laid_out
from gateway.experiments import matrix_report
from gateway.experiments.arms import Arm, Drafting, arms
from gateway.experiments.matrix import Measured, measured
from gateway.experiments.policy_file import write_policy
from gateway.experiments.prompts import Prompt
from gateway.experiments.suggestion import Suggestion, decided, suggest
from gateway.experiments.timing import Timed, TimedBlock, blocks
from gateway.routing import testing
from gateway.routing.cases import CaseFile
from gateway.routing.policy import Policy, load
from gateway.routing.schema import PolicyEntry
from gateway.tally import Tally
from gateway.types import DOMAINS, Mode

ROOT = Path(__file__).parents[2]
DRAFTING = Drafting()
ARMS = arms([Mode.SPECULATIVE, Mode.HYBRID], ["coupled"], DRAFTING)
TEXT = tuple(range(16))


def block(
    name: str,
    ratio: float,
    *,
    domain: str = "code",
    number: int = 0,
    token_ids: tuple[int, ...] = TEXT,
    loop: bool = False,
    tally: Tally | None = None,
    after: float = 1.0,
) -> TimedBlock:
    """The speculative arm is ``ratio`` times as fast as standard mode, hybrid as fast as that."""

    def one(arm: Arm, seconds: float, ids: tuple[int, ...]) -> Timed:
        mine = arm.name == "speculative"
        return Timed(
            prompt=name,
            domain=domain,
            arm=arm.name,
            round=number,
            token_ids=ids,
            seconds=seconds,
            steps=8 if mine else 16,
            proposed=10 if mine else 0,
            accepted=8 if mine else 0,
            loop=loop,
            tally=tally if mine else None,
            model="m",
        )

    standard, speculative, hybrid = ARMS
    answers = (
        one(standard, 1.0, TEXT),
        one(speculative, 1.0 / ratio, token_ids),
        one(hybrid, 1.0, TEXT),
    )
    return TimedBlock(prompt=name, round=number, answers=answers, before=1.0, after=after)


def speculative(found: Sequence[TimedBlock]) -> Measured:
    return next(one for one in measured(found, ARMS, alpha=1e-3) if one.mode == "speculative")


def test_a_speedup_is_the_geometric_mean_over_prompts_of_paired_ratios() -> None:
    found = speculative([block("a", 2.0), block("a", 8.0, number=1), block("b", 1.0)])

    assert found.speedup is not None
    assert found.speedup.mean == pytest.approx(2.0)  # of 4, of two rounds, and 1
    assert (found.prompts, found.answers, found.acceptance_rate) == (2, 3, 0.8)
    assert found.mean_acceptance_length == 2.0
    assert speculative([block("a", 2.0)]).speedup.low is None  # type: ignore[union-attr]


def test_what_says_nothing_about_speed_does_not_count_and_is_said() -> None:
    found = speculative(
        [
            block("a", 2.0),
            block("b", 9.0, token_ids=(9,) * 16),
            block("c", 9.0, loop=True),
            block("d", 9.0, after=3.0),
        ]
    )

    assert (found.prompts, found.answers) == (1, 4)
    assert found.left_out == {"other tokens": 1, "loop": 1, "disturbed": 1}
    assert (found.equal.hits, found.equal.rows) == (3, 4)


def test_evidence_against_a_mode_is_seen() -> None:
    bet = Tally(num_tokens=16, log_factors={"leak": 5.0})

    assert speculative([block("a", 2.0, tally=Tally(num_tokens=16))]).sound
    assert not speculative([block("a", 2.0, tally=bet), block("b", 2.0, tally=bet)]).sound
    assert not speculative([block("a", 2.0, tally=Tally(num_tokens=1, num_impossible=1))]).sound


def test_the_order_of_the_arms_rotates() -> None:
    prompts = [Prompt(id=str(i), prompt="x") for i in range(3)]

    found = blocks(prompts, ARMS, 2)

    assert [one.arms[0].name for one in found[:3]] == ["standard", "speculative", "hybrid"]
    assert found[3].arms[0].name == "speculative"
    assert all(sorted(one.arms, key=ARMS.index) == list(ARMS) for one in found)


# ---- suggestions ----------------------------------------------------------------------------------


BARE = "version: 1\nname: bare\n"
"""Standard mode for everybody, without a ban that says so."""


def policy(name: str) -> Policy:
    path = ROOT / "policies" / f"{name}.yaml"
    return load(path, text=BARE if name == "bare" else None)


def measurements(ratio: float = 2.0, domains: Sequence[str] = DOMAINS) -> tuple[Measured, ...]:
    found = [
        block(f"{domain}-{i}", ratio * (1 + i / 100), domain=domain)
        for domain in domains
        for i in range(4)
    ]
    return measured(found, ARMS, alpha=1e-3)


def suggestions(name: str, ratio: float = 2.0) -> dict[str, Suggestion]:
    found = suggest(measurements(ratio), policy(name), min_speedup=1.0)
    return {one.domain: one for one in found}


def test_what_is_faster_for_sure_is_suggested_unless_the_policy_bans_it() -> None:
    found = suggestions("default")

    fast = {name for name, one in found.items() if one.mode is Mode.SPECULATIVE}
    assert fast == set(DOMAINS) - {"medical", "legal", "creative_writing"}
    assert "banned by medical" in found["medical"].reason
    assert "banned by creative" in found["creative_writing"].reason
    assert all(one.mode is Mode.STANDARD for one in suggestions("default", 1.0).values())


@pytest.mark.parametrize("domain", ["medical", "legal"])
def test_a_guarded_domain_is_sped_up_only_where_the_policy_does_so_already(domain: str) -> None:
    refused, allowed = suggestions("bare")[domain], suggestions("fastest")[domain]

    assert refused.mode is Mode.STANDARD
    assert "speed is no reason" in refused.reason
    assert refused.measured is not None
    assert allowed.mode is Mode.SPECULATIVE
    assert suggestions("bare")["code"].mode is Mode.SPECULATIVE


def test_nothing_is_suggested_that_evidence_speaks_against() -> None:
    wrong = Tally(num_tokens=16, num_impossible=1)
    found = measured([block(str(i), 2.0 + i / 9, tally=wrong) for i in range(4)], ARMS, alpha=1e-3)

    (one,) = suggest(found, policy("fastest"), min_speedup=1.0)

    assert one.mode is Mode.STANDARD
    assert "evidence speaks against speculative" in one.reason


def test_a_mode_that_gave_other_tokens_is_not_suggested_however_fast_it_was() -> None:
    found = measured(
        [block(str(i), 2.0 + i / 9, token_ids=(9,) * 16 if i == 3 else TEXT) for i in range(6)],
        ARMS,
        alpha=1e-3,
    )

    (one,) = suggest(found, policy("fastest"), min_speedup=1.0)

    assert one.mode is Mode.STANDARD
    assert "speculative gave other tokens" in one.reason


def test_all_cells_share_alpha() -> None:
    bet = Tally(num_tokens=16, log_factors={"leak": 8.5})
    alone = [block("a", 2.0, tally=bet)]
    many = [*alone, *(block(d, 2.0, domain=d) for d in DOMAINS[1:])]

    assert not speculative(alone).sound
    assert next(one for one in measured(many, ARMS, alpha=1e-3) if one.arm == "speculative").sound


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("default", 2.0),
        ("default", 1.0),
        ("all-standard", 2.0),
        ("fastest", 2.0),
        ("bare", 2.0),
        ("../examples/policies/conditions", 2.0),
    ],
)
def test_the_policy_that_is_written_is_valid_and_passes_its_tests(
    name: str, ratio: float, tmp_path: Path
) -> None:
    current = policy(name)
    rows = measurements(ratio, ("medical", "legal", "code", "creative_writing"))
    wanted = suggest(rows, current, min_speedup=1.0)
    path, tests = tmp_path / "suggested.yaml", tmp_path / "suggested_test.yaml"

    written = write_policy(wanted, rows, current, _entry(current), DRAFTING, path)
    path.write_text(written.policy)
    tests.write_text(written.tests)

    made = load(path)
    assert testing.run(made, tests).passed
    assert laid_out(written.policy, path, PolicyEntry) == written.policy
    assert laid_out(written.tests, tests, CaseFile) == written.tests
    bans = {rule.id for rule in current.rules if rule.kind == "ban"}
    assert bans <= {rule.id for rule in made.rules}
    for domain in ("medical", "legal"):
        for other in ({}, {"code": 0.97}):
            before = decided(current, {domain: 0.95, **other})
            after = decided(made, {domain: 0.95, **other})
            assert before.mode is not Mode.STANDARD or after.mode is Mode.STANDARD
    if ratio > 1 and name == "default":
        assert "# code, speculative: 2.03x (" in written.policy
        assert decided(made, {"code": 0.95}).mode is Mode.SPECULATIVE
        assert written.differences == ()


def test_the_matrix_is_shown_with_what_is_missing() -> None:
    rows = measurements()
    found = matrix_report.Matrix(
        blocks=3, planned=40, policy="p", alpha=1e-3, measured=rows, suggestions=()
    )

    first, _ = matrix_report.grids(found)

    assert len(first.rows) == 2 * len(DOMAINS)
    assert any("Interrupted: 3 of 40" in note for note in first.notes)
    ElementTree.fromstring(matrix_report.chart(found))


def test_the_command_measures_a_model_and_writes_a_policy(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"id": f"{d}{i}", "prompt": d[:3] * 5, "domain": d} for d in ("code", "legal") for i in "ab"
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "cost_model": "off"}
    config = tmp_path / "draftgate.yaml"
    config.write_text(json.dumps({"backends": {"local": {"type": "local", "options": options}}}))
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(config))
    out = tmp_path / "out"
    line = ["matrix", str(prompts), "--model", str(tiny_model), "--max-tokens", "9", "--json"]

    first = CliRunner().invoke(main, [*line, "--out", str(out)])
    second = CliRunner().invoke(main, [*line, "--out", str(out)])

    assert first.exit_code == second.exit_code == 0, first.output
    assert json.loads(first.stdout) == json.loads(second.stdout)
    found = json.loads(first.stdout)
    assert (found["blocks"], found["planned"]) == (4, 4)
    assert {one["domain"] for one in found["suggestions"]} == {"code", "legal"}
    assert all(one["equal"]["share"] == 1.0 for one in found["measured"])
    checked = CliRunner().invoke(main, ["policy", "test", str(out / "suggested.yaml")])
    assert checked.exit_code == 0, checked.output


def test_an_unknown_domain_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x", "domain": "poetry"}')

    result = CliRunner().invoke(main, ["matrix", str(prompts)])

    assert result.exit_code == 2
    assert "'poetry'; known are medical" in result.output
