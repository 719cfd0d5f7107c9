"""`draftgate compare`: answers held side by side, from made-up ones and from a small model's."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from gateway.cli import compare as command
from gateway.cli import main
from gateway.errors import InvalidRequest
from gateway.experiments import compare_report
from gateway.experiments.arms import AGAIN, STANDARD, Drafting, arms
from gateway.experiments.compare import Comparison, Options, plan, summarize
from gateway.experiments.decoding import Answer
from gateway.experiments.grid import markdown
from gateway.experiments.prompts import Prompt
from gateway.experiments.verdict import limits_of
from gateway.tally import Moments, Tally
from gateway.types import Mode

PROMPTS = tuple(Prompt(id=f"p{i}", prompt="x", domain="code", gold=("blue",)) for i in range(8))
ARMS = arms([Mode.SPECULATIVE], ["coupled"], Drafting())
REJECTION = arms([Mode.SPECULATIVE], ["rejection"], Drafting())
OPTIONS = Options(draws=99)
Law = Callable[[np.random.Generator, Prompt], Sequence[int]]


def fair(generator: np.random.Generator, prompt: Prompt) -> list[int]:
    return [int(token) for token in generator.choice(6, size=16)]


def without_zero(generator: np.random.Generator, prompt: Prompt) -> list[int]:
    return [int(token) for token in 1 + generator.choice(5, size=16)]


def answers(
    law: Law = fair,
    *,
    copied: bool,
    samples: int = 3,
    temperature: float = 0.7,
    text: str = "It is blue.",
    tally: Tally | None = None,
) -> list[Answer]:
    """Of all arms; ``copied`` gives the speculative arm the answers of standard mode."""
    generator = np.random.default_rng(7)
    found = []
    for prompt, sample in itertools.product(PROMPTS, range(samples)):
        standard = fair(generator, prompt)
        tokens = {
            STANDARD: standard,
            "speculative": standard if copied else law(generator, prompt),
            AGAIN: fair(generator, prompt),
        }
        found += [
            Answer(
                prompt=prompt.id,
                group=prompt.kind,
                temperature=temperature,
                arm=arm,
                sample=sample,
                seed=0,
                token_ids=tuple(ids),
                text=text if arm == "speculative" else "It is perhaps blue.",
                margins=(0.25,) * len(ids) if arm == STANDARD else (),
                tally=tally if arm == "speculative" else None,
                proposed=8,
                accepted=6,
                steps=4,
            )
            for arm, ids in tokens.items()
        ]
    return found


def compared(found: list[Answer]) -> tuple[Comparison, Comparison]:
    """The speculative arm, and standard mode beside itself."""
    summary = summarize(found, ARMS, PROMPTS, planned=len(found), options=OPTIONS)
    reference, one, control = summary.comparisons
    assert (reference.arm, one.arm, control.arm) == (STANDARD, "speculative", AGAIN)
    assert reference.independent == control.independent
    assert not reference.unsound
    assert not control.unsound
    return one, control


def test_with_shared_seeds_the_tokens_are_the_same_and_with_others_they_look_as_different_as_any() -> (
    None
):
    one, control = compared(answers(copied=True))

    assert one.shared is not None
    assert (one.shared.exact.share, one.shared.tokens, one.divergence) == (1.0, 1.0, None)
    assert (one.verdict, one.unsound) == ("the same tokens", False)
    assert one.independent is not None
    assert control.independent is not None
    assert control.shared is None
    # The trap: an exact decoder agrees with other answers no more than standard mode with itself.
    assert one.independent == control.independent
    assert one.independent.exact.hits == 0
    assert 0.05 < one.independent.tokens < 0.4


def test_another_law_is_seen_in_answers_alone() -> None:
    one, control = compared(answers(without_zero, copied=False, samples=8))

    assert one.separation is not None
    assert one.separation.p == pytest.approx(0.01)
    assert control.separation is not None
    assert control.separation.p > 0.05
    by_default = drawn_otherwise(answers(without_zero, copied=False, samples=8))
    assert by_default.verdict == "another law: two samples differ"
    assert by_default.unsound


def drawn_otherwise(found: list[Answer]) -> Comparison:
    """The speculative arm as a verifier's that promises the law and not the tokens."""
    name = REJECTION[1].name
    renamed = [
        msgspec.structs.replace(one, arm=name) if one.arm == "speculative" else one for one in found
    ]
    summary = summarize(renamed, REJECTION, PROMPTS, planned=len(found), options=Options())
    return next(one for one in summary.comparisons if one.arm == name)


def test_other_tokens_with_the_same_law_are_no_fault() -> None:
    one = drawn_otherwise(answers(copied=False))

    assert not one.unsound
    assert one.verdict == "other tokens; nothing speaks against the same law"
    assert one.divergence is not None
    assert one.divergence.margin == 0.25


def test_too_few_answers_to_tell_are_not_taken_for_the_same_law() -> None:
    one = drawn_otherwise([row for row in answers(copied=False) if row.prompt == "p0"])

    assert one.mmd is not None
    assert (one.mmd.enumerated, one.mmd.least) == (True, 0.1)  # 2 of 20 labellings
    assert (one.verdict, one.unsound) == ("other tokens; too few answers to tell", False)


@pytest.mark.parametrize(
    ("dtype", "margin", "unsound"),
    [
        ("float32", 0.01, True),
        ("float32", 0.0005, False),
        ("bfloat16", 0.01, False),
        ("bfloat16", 0.2, True),
        ("bfloat16-weights", 0.01, True),
        ("float32", None, False),
    ],
)
def test_other_tokens_for_the_same_seed_are_a_fault_unless_rounding_explains_them(
    dtype: str, margin: float | None, unsound: bool
) -> None:
    found = answers(copied=True)
    at = next(i for i, one in enumerate(found) if one.arm == "speculative")
    found[at] = msgspec.structs.replace(found[at], token_ids=(9, *found[at].token_ids[1:]))
    found = [
        msgspec.structs.replace(one, dtype=dtype, margins=(margin,) * len(one.margins))
        for one in found
    ]

    one, _ = compared(found)

    assert one.unsound is unsound
    assert (one.verdict == "wrong: other tokens for the same seed") is unsound


def test_a_pair_without_a_margin_hides_no_fault() -> None:
    found = answers(copied=True)
    mine = [i for i, one in enumerate(found) if one.arm == "speculative"]
    for i in mine[:2]:
        found[i] = msgspec.structs.replace(found[i], token_ids=(9, *found[i].token_ids[1:]))
    first = next(i for i, one in enumerate(found) if one.arm == STANDARD)
    found[first] = msgspec.structs.replace(found[first], margins=(None,) * 16)

    one, _ = compared(found)

    assert one.unsound
    assert one.divergence is not None
    assert one.divergence.margin == 0.25


def test_an_arm_without_a_pair_is_not_said_to_be_the_same() -> None:
    found = [
        one
        for one in answers(copied=True)
        if one.arm == AGAIN or (one.prompt == "p0") == (one.arm == STANDARD)
    ]

    one, _ = compared(found)

    assert one.shared is not None
    assert one.shared.exact.rows == 0
    assert one.verdict == "nothing to hold it against"


def test_alpha_is_over_all_that_a_run_finds() -> None:
    one = limits_of(1e-3, None, [0.0], ARMS)
    many = limits_of(1e-3, None, [0.0, 0.7, 1.0], ARMS)

    # At temperature 0 there is no test; of two others there are two each.
    assert (one.p, many.p) == (5e-4, pytest.approx(5e-4 / 4))
    assert 1 / (1 + many.draws) <= many.p
    assert many.log_e == pytest.approx(math.log(3 * 3 / 5e-4))


def test_the_engines_own_measurements_are_added_up() -> None:
    tally = Tally(
        num_tokens=16,
        log_factors={"leak": 0.5, "tail": -math.inf},
        surprisal=Moments(17.0, 16.0, 4.0),
        tail=Moments(3.0, 2.0, 1.0),
    )

    one, control = compared(answers(copied=True, tally=tally))

    # 24 answers: the average of e^12 and 0 is past 1000.
    assert one.log10_e == pytest.approx((24 * 0.5 - math.log(2)) / math.log(10))
    assert one.unsound
    assert one.entropy == pytest.approx(1.0)
    assert one.surprisal.mean == pytest.approx(1 / 16)
    assert one.tail.ratio == pytest.approx(1.5)
    assert (control.log10_e, control.entropy) == (0.0, None)


def test_a_token_that_the_model_rules_out_is_a_fault_whatever_else_is_fine() -> None:
    one, _ = compared(answers(copied=True, tally=Tally(num_tokens=16, num_impossible=1)))

    assert one.unsound
    assert one.verdict.startswith("wrong")


def test_texts_are_compared_prompt_by_prompt() -> None:
    one, control = compared(answers(copied=True))

    assert one.quality.hedges == 0.0
    assert one.quality.hedges_difference is not None
    assert one.quality.hedges_difference.mean == pytest.approx(-25.0)
    assert not one.quality.hedges_equivalence.equivalent
    # Two arms that hedge in every answer alike leave nothing to tell how much they vary.
    assert control.quality.hedges_equivalence.p is None
    assert (one.acceptance_rate, one.mean_acceptance_length) == (0.75, 4.0)
    assert one.factuality is not None
    assert control.factuality is not None
    assert one.factuality.f1 > control.factuality.f1
    assert one.factuality.f1_gap is not None
    assert one.factuality.f1_gap.mean == pytest.approx(one.factuality.f1 - control.factuality.f1)


def test_at_temperature_0_there_is_no_law_to_test_and_one_sample_is_all() -> None:
    one, _ = compared(answers(copied=True, temperature=0.0, samples=1))

    assert (one.mmd, one.separation, one.entropy) == (None, None, None)
    tasks = plan(PROMPTS[:1], [0.0, 0.7], ARMS, samples=3, max_tokens=4, seed=0)
    assert len(tasks) == 3 * (1 + 3)
    assert len({task.key for task in tasks}) == len(tasks)


def test_seeds_are_shared_by_the_arms_and_not_by_standard_mode_again() -> None:
    tasks = plan(PROMPTS[:1], [0.7], ARMS, samples=1, max_tokens=4, seed=0)
    noise = {task.arm.name: task.noise for task in tasks}

    assert noise[STANDARD] == noise["speculative"] != noise[AGAIN]


def test_an_interrupted_run_is_summed_up_as_far_as_it_came() -> None:
    found = answers(copied=True)[:7]

    summary = summarize(found, ARMS, PROMPTS, planned=72, options=OPTIONS)
    nothing = summarize([], ARMS, PROMPTS, planned=72, options=OPTIONS)

    assert (summary.answers, summary.planned, nothing.comparisons) == (7, 72, ())
    assert "Interrupted: 7 of 72" in markdown(compare_report.grids(summary))
    for one in (summary, nothing):
        ElementTree.fromstring(compare_report.chart(one))


def test_arms_are_named_by_what_tells_them_apart() -> None:
    found = arms([Mode.STANDARD, Mode.HYBRID], ["coupled", "typical"], Drafting())

    assert [arm.name for arm in found] == ["standard", "hybrid coupled", "hybrid typical"]
    assert [arm.lossy for arm in found] == [False, False, True]
    assert found[1].decision.standard_first == 10
    with pytest.raises(InvalidRequest, match="Nothing to compare"):
        arms([Mode.STANDARD], ["coupled"], Drafting())


# ---- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"id": c, "prompt": c * 9, "domain": "code", "gold": ["x"]} for c in "abc"]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def run(
    prompts: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    config = tmp_path / "draftgate.yaml"
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "waiting": "passive"}
    backends = {"local": {"type": "local", "options": options}}
    config.write_text(json.dumps({"backends": backends}))
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(config))

    def invoke(*arguments: str) -> Result:
        line = ["compare", str(prompts), "--model", str(tiny_model), "--max-tokens", "12"]
        return CliRunner().invoke(main, [*line, *arguments])

    return invoke


def test_the_command_writes_its_results_and_goes_on_where_it_was_stopped(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["--temperature", "0,1", "--verifier", "coupled,rejection", "--mode", "speculative"]
    line += ["--max-tokens", "24"]
    out = tmp_path / "out"
    real, count = command.answers, 0

    async def stopped(*given: object, **named: object):  # type: ignore[no-untyped-def]
        nonlocal count
        async for answer in real(*given, **named):  # type: ignore[arg-type]
            yield answer
            count += 1
            if count == 9:
                raise KeyboardInterrupt

    monkeypatch.setattr(command, "answers", stopped)
    first = run(*line, "--out", str(out))

    assert first.exit_code == 130
    assert "Interrupted" in first.output
    kept = (out / "results.jsonl").read_bytes()
    assert kept.count(b"\n") == 9
    assert json.loads((out / "summary.json").read_text())["answers"] == 9

    monkeypatch.setattr(command, "answers", real)
    second = run(*line, "--out", str(out), "--json")

    assert second.exit_code == 0, second.output
    assert (out / "results.jsonl").read_bytes().startswith(kept)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["answers"] == summary["planned"] == 3 * 4 * (1 + 2)
    assert json.loads(second.stdout) == summary
    coupled = [one for one in summary["comparisons"] if one["arm"] == "speculative coupled"]
    assert [one["verdict"] for one in coupled] == ["the same tokens"] * 2
    assert any(one["acceptance_rate"] is not None for one in coupled)
    assert "| 1 | speculative rejection |" in (out / "table.md").read_text()
    ElementTree.fromstring((out / "plot.svg").read_text())

    third = run(*line, "--out", str(out), "--seed", "4")
    assert third.exit_code == 2
    assert "another seed" in third.output


def test_wrong_options_are_refused_before_a_model_is_loaded(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "experimenting", None)
    for line, message in (
        (("--temperature", "0,3"), "numbers from 0 to 2"),
        (("--mode", "fast"), "give some of standard"),
        (("--verifier", "none"), "give some of"),
        (("--mode", "standard"), "Nothing to compare"),
    ):
        result = run(*line)
        assert result.exit_code == 2
        assert message in result.output


def test_a_draft_source_that_lacks_its_model_is_said_before_decoding(
    run: Callable[..., Result],
) -> None:
    result = run("--draft-source", "model")

    assert result.exit_code == 2
    assert "needs a draft model" in result.output
