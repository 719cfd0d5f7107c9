from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gateway.classification import synthetic, training, weights
from gateway.cli import main
from gateway.types import DOMAINS
from tests.encoders import tiny_encoder

SAMPLE = "tests/data/domains_sample.jsonl"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["classifier", *arguments])


def test_training_writes_weights_that_evaluate_and_classify_can_use(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    few = synthetic.Mixture(inside=0.2, alike=0.1, strung=0.05, noise=8)
    options = training.Options(folds=2, lexical_mixture=few, head_mixture=few)
    monkeypatch.setattr(training, "Options", lambda: options)
    encoder = tmp_path_factory.mktemp("encoder") / "encoder.npz"
    encoder.write_bytes(weights.dump_encoder(tiny_encoder()))
    out, held_out = tmp_path / "weights.npz", tmp_path / "held_out.npy"
    files = ("--encoder", str(encoder), "--out", str(out), "--held-out", str(held_out))

    trained = run("train", SAMPLE, *files, "--json")
    evaluated = run("evaluate", SAMPLE, "--weights", str(out), "--json")
    classified = CliRunner().invoke(main, ["classify", "hello", "--weights", str(out), "--json"])

    assert trained.exit_code == evaluated.exit_code == classified.exit_code == 0
    report = json.loads(trained.stdout)
    assert report["top_is_right"] < json.loads(evaluated.stdout)["top_is_right"]
    assert np.load(held_out).shape == (report["rows"], len(DOMAINS))
    assert [one["domain"] for one in report["domains"]] == list(DOMAINS)
    assert {path.name for path in tmp_path.iterdir()} == {"weights.npz", "held_out.npy"}
    assert json.loads(classified.stdout)["classifiers"]["domain"] in trained.stderr


def test_the_shipped_weights_are_evaluated_by_default() -> None:
    result = run("evaluate", SAMPLE)

    assert result.exit_code == 0
    assert "macro-F1" in result.output
    assert "recall ≥ 0.10" in result.output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "x", "domains": ["medcal"]}', ":1:1: unknown domain 'medcal'; did you mean"),
        ("nonsense", ":1:1: JSON is malformed"),
        ("", "no rows"),
    ],
)
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_bad_rows_are_named_and_nothing_is_written(
    tmp_path: Path, line: str, words: str, command: str
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "weights.npz"
    rows.write_text(line)

    result = run(command, str(rows), *(["--out", str(out)] if command == "train" else []))

    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
    assert not out.exists()


def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path: Path) -> None:
    result = run("train", SAMPLE, "--out", str(tmp_path / "no" / "weights.npz"))

    assert result.exit_code == 2
    assert "no such folder" in result.output


def test_weights_that_cannot_be_written_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(training, "train", lambda *_, **__: training.Trained(b"", np.zeros(0)))
    out = tmp_path / "weights.npz"
    out.mkdir()

    result = run("train", SAMPLE, "--out", str(out))

    assert result.exit_code == 2
    assert "cannot write" in result.output
    assert list(tmp_path.iterdir()) == [out]


def test_no_data_is_a_usage_error() -> None:
    assert run("evaluate").exit_code == 2
