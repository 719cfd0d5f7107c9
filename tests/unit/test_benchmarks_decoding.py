from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import decoding, runs
from benchmarks.prompts import Prompt
from benchmarks.runs import HYBRID, MODEL, SPECULATIVE, STANDARD
from benchmarks.throughput import measure_throughput
from decoders.loader import load
from decoders.modes import Speculative, Standard
from decoders.profile import Profile
from decoders.testing import ScriptedDraftSource
from gateway.experiments.guard import Guard
from tests.tiny import build_tiny_model

ROWS = [
    {"id": "copy", "group": "code_edit", "turns": ["abc abc abc abc ab"]},
    {"id": "talk", "group": "multi_turn", "turns": ["Hello", "And?"]},
    {"id": "long", "group": "summarization", "turns": ["word " * 60]},
]
ARMS = ["generate", "generate + prompt lookup", "standard", "speculative (suffix)"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("benchmark")
    (made / "model").mkdir()
    build_tiny_model(made / "model")
    (made / "mine.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return made


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No reading of the clock decides anything, and no profile reaches the user's cache."""
    monkeypatch.setattr(Guard, "disturbed", lambda self, before, after: False)
    profile = Profile({(1, 1): 0.001, (2, 18): 0.002})
    monkeypatch.setattr("decoders.calibration.measure_model", lambda model: profile)
    monkeypatch.setattr("decoders.loader.DEFAULT_CACHE", tmp_path)
    monkeypatch.setattr("decoders.measurements.DEFAULT_CACHE", tmp_path)


def arguments(folder: Path, *more: str) -> list[str]:
    given = ["--model", str(folder / "model"), "--prompts", str(folder / "mine.jsonl")]
    return [*given, "--tokens", "8", *more]


def test_a_run_writes_rows_tables_and_a_picture(folder: Path) -> None:
    out = folder / "out.json"
    names = ",".join([*ARMS[:2], "speculative"])
    given = ("--temperature", "0,0.8", "--concurrency", "1,2", "--arms", names, "--out", str(out))

    decoding.main(arguments(folder, *given))

    found = runs.read(out)
    assert {run.prompt for run in found.runs} == {"copy", "talk/1", "talk/2"}
    assert set(found.left_out) == {"long"}
    assert len(found.runs) == len(ARMS) * 3 * 2
    for run in found.runs:
        # This model's padded ids, which we never give, are as likely as any to `generate`.
        theirs = run.arm.startswith("generate")
        assert (run.equal is None) == (theirs and run.temperature > 0), run
        assert run.equal or theirs, run
        assert 1 <= run.steps <= run.tokens <= 8
        assert 0 < run.prefill_seconds <= run.seconds
        assert run.arm != STANDARD or (run.steps, run.proposed) == (run.tokens, 0)
    assert sorted((row.temperature, row.concurrency, row.rows) for row in found.throughput) == [
        (temperature, width, arm)
        for temperature in (0.0, 0.8)
        for width in (1, 2)
        for arm in (SPECULATIVE, STANDARD)
    ]
    for row in found.throughput:
        assert row.equal == row.requests == 2
        assert 1 <= row.steps <= row.tokens
        assert row.rows != STANDARD or (row.steps, row.proposed) == (row.tokens, 0)
    assert len({row.tokens for row in found.throughput if row.temperature == 0}) == 1
    assert out.with_suffix(".md").is_file()
    assert out.with_suffix(".svg").is_file()


def test_all_our_arms_take_part_in_many_at_once_with_as_many_requests_as_wanted(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    draft = ["--draft-model", str(folder / "model"), "--concurrency", "2", "--requests", "1"]
    arms = ["--arms", "speculative,hybrid", "--out", str(out)]

    decoding.main(arguments(folder, *draft, *arms))

    found = {row.rows: row for row in runs.read(out).throughput}
    assert list(found) == [STANDARD, SPECULATIVE, HYBRID, MODEL]
    assert all(row.equal == row.requests == 1 for row in found.values())


def test_draft_tokens_are_summed_over_all_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Profile({(1, 1): 0.001, (2, 18): 0.001})
    monkeypatch.setattr("decoders.calibration.measure_model", lambda model: free)
    loaded = load(str(folder / "model"), dtype="float32", device="cpu", num_slots=2, max_length=64)
    guard = Guard(lambda: 1.0)

    wrong = ScriptedDraftSource(lambda tokens, count: [0] * count)

    standard, drafted = measure_throughput(
        loaded,
        [Prompt("a", "g", ("Hello",)), Prompt("b", "g", ("Hello there",))],
        {STANDARD: Standard(), SPECULATIVE: Speculative(wrong, 2)},
        max_tokens=8,
        temperatures=[0.0],
        concurrency=[2],
        rounds=1,
        guard=guard,
        done=lambda: None,
    )

    assert (standard.proposed, standard.accepted, standard.steps) == (0, 0, standard.tokens)
    assert drafted.proposed > drafted.accepted
    assert drafted.steps + drafted.accepted == drafted.tokens


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--groups", "poetry"], "no prompts of poetry; known: code_edit"),
        (["--groups", "summarization"], "no prompt fits into 256 tokens"),
        (["--arms", "fast"], "no arm fast; known: generate"),
        (["--model", "/nowhere"], "no model at /nowhere"),
        (["--prompts", "/nowhere"], "cannot read /nowhere"),
        (["--dtype", "float31"], "unknown dtype 'float31'"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(
    folder: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        decoding.main(arguments(folder, *more))


@pytest.mark.parametrize(
    "more",
    [
        ["--tokens", "0"],
        ["--temperature", "-1"],
        ["--out", "a.md"],
        ["--device", "auto"],
        ["--dtype", "auto"],
    ],
)
def test_options_that_are_wrong_are_refused(
    folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        decoding.main(arguments(folder, *more))
    assert more[0] in capsys.readouterr().err
