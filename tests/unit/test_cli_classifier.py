from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from gateway.audit.record import DecisionRecord, Feedback
from gateway.audit.store import DecisionStore
from gateway.classification import synthetic, training, weights
from gateway.classification.card import read_evaluation
from gateway.classification.contract import read_contract
from gateway.classification.domain import DomainClassifier
from gateway.classification.rows import read_rows
from gateway.cli import main
from gateway.cli.files import replace
from gateway.errors import ConfigError
from gateway.routing.policy import load
from gateway.types import DOMAINS, Signal, Signals
from tests.encoders import tiny_encoder
from tests.records import decision_record

SAMPLE = "tests/data/domains_sample.jsonl"
ROWS = read_rows([Path(SAMPLE)])


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["classifier", *arguments])
    # A SystemExit is how click ends; anything else would have been a traceback.
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def held_out(tmp_path: Path) -> str:
    """Probabilities that are right about every row of the sample."""
    right = [[0.9 if domain in row.domains else 0.01 for domain in DOMAINS] for row in ROWS]
    path = tmp_path / "held.npy"
    np.save(path, np.array(right))
    return str(path)


# ---- train and evaluate ---------------------------------------------------------------------------


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
    measure = ("evaluate", SAMPLE, "--weights", str(out), "--trained-on", SAMPLE, "--json")

    trained = run("train", SAMPLE, *files, "--json")
    flattered = run(*measure)
    evaluated = run(*measure, "--probabilities", str(held_out))
    classified = CliRunner().invoke(main, ["classify", "hello", "--weights", str(out), "--json"])

    results = (trained, flattered, evaluated, classified)
    assert [result.exit_code for result in results] == [0, 0, 0, 0]
    evaluation = json.loads(trained.stdout)
    assert evaluation["held_out"]
    assert evaluation == json.loads(evaluated.stdout)
    right = [
        json.loads(one.stdout)["report"]["top_is_right"]["share"] for one in (trained, flattered)
    ]
    assert right[0] < right[1]
    assert [one["domain"] for one in evaluation["report"]["domains"]] == list(DOMAINS)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"weights.npz", "held_out.npy"}, "nothing half-written"
    assert json.loads(classified.stdout)["classifiers"]["domain"] in trained.stderr
    assert evaluation["classifier_hash"] in trained.stderr


def test_the_shipped_weights_and_the_shipped_policy_are_the_default() -> None:
    result = run("evaluate", SAMPLE)

    assert result.exit_code == 0
    for words in ("≥ 0.1", "macro-F1", "medical or legal: recall", "reliability of legal"):
        assert words in result.stdout


def test_held_out_probabilities_stand_in_for_the_classifier(held_out: str) -> None:
    evaluation = json.loads(run("evaluate", SAMPLE, "--probabilities", held_out, "--json").stdout)

    assert evaluation["held_out"]
    assert evaluation["classifier_hash"] == DomainClassifier().content_hash
    assert evaluation["report"]["guard"]["recall"]["share"] == 1.0
    assert evaluation["report"]["macro_f1"] == 1.0


def test_the_bars_are_those_of_the_policy_that_is_named(held_out: str, tmp_path: Path) -> None:
    policy = tmp_path / "strict.yaml"
    policy.write_text(
        "version: 1\nname: strict\nrules:\n  - id: code\n    ban: [speculative, hybrid]\n"
        "    when: {domain: {is: code, min_probability: 0.95}}\n"
    )
    arguments = ("evaluate", SAMPLE, "--probabilities", held_out, "--policy", str(policy))

    refused = run(*arguments)
    report = json.loads(run(*arguments, "--domain", "code", "--json").stdout)["report"]

    assert refused.exit_code == 2
    assert "no rule bans medical, legal from a probability on" in refused.stderr
    assert report["guard"]["domains"] == ["code"]
    assert report["guard"]["recall"]["share"] == 0.0


def test_mistakes_show_no_text_unless_it_is_asked_for(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "zebra stripes", "domains": ["legal"], "id": "row-7"}\n')
    arguments = ("evaluate", str(rows), "--show-errors", "1")

    without, with_text = run(*arguments), run(*arguments, "--show-text")

    assert "row-7" in without.stdout
    assert "zebra" not in without.stdout
    assert "zebra stripes" in with_text.stdout
    assert run("evaluate", str(rows), "--show-text").exit_code == 2


def test_the_diagram_is_the_same_svg_every_time(held_out: str, tmp_path: Path) -> None:
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        arguments = ("--probabilities", held_out, "--plot", str(path))
        assert run("evaluate", SAMPLE, *arguments).exit_code == 0

    one, two = (path.read_text() for path in paths)
    assert one == two
    assert one.startswith("<svg ")
    root = ElementTree.fromstring(one)
    panels = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"medical", "legal", "creative writing"} <= set(panels)
    missing = run("evaluate", SAMPLE, "--plot", str(tmp_path / "no" / "x.svg"))
    assert missing.exit_code == 2
    assert "no such folder" in missing.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "x", "domains": ["medcal"]}', ":1:1: unknown domain 'medcal'; did you mean"),
        ("nonsense", ":1:1: JSON is malformed"),
        ("", "no rows"),
    ],
)
@pytest.mark.parametrize("command", ["train", "evaluate", "calibrate"])
def test_bad_rows_are_named_and_nothing_is_written(
    tmp_path: Path, line: str, words: str, command: str
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text(line)

    result = run(command, str(rows), *(["--out", str(out)] if command != "evaluate" else []))

    assert result.exit_code == 2
    assert words in result.output
    assert not out.exists()


@pytest.mark.parametrize("command", ["train", "calibrate"])
def test_a_folder_that_is_not_there_is_refused_before_the_work(
    tmp_path: Path, command: str
) -> None:
    result = run(command, SAMPLE, "--out", str(tmp_path / "no" / "file"))

    assert result.exit_code == 2
    assert "no such folder" in result.output


def test_a_place_that_is_a_folder_is_told_before_the_work(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    result = run("train", SAMPLE, "--out", str(tmp_path))

    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "weights.npz"
    out.mkdir()

    with pytest.raises(ConfigError, match="cannot write"):
        replace(out, b"weights")

    assert list(tmp_path.iterdir()) == [out]


def test_no_data_is_a_usage_error() -> None:
    assert run("evaluate").exit_code == 2


# ---- calibrate ------------------------------------------------------------------------------------


def test_bars_are_chosen_and_the_lines_for_the_policy_are_a_policy(
    held_out: str, tmp_path: Path
) -> None:
    out = tmp_path / "contract.json"
    target = ("--miss-rate", "0.5", "--confidence", "0.9", "--probabilities", held_out)

    result = run("calibrate", SAMPLE, *target, "--out", str(out))

    assert result.exit_code == 0
    contract = read_contract(out)
    assert (contract.chosen, contract.held_out) == (True, True)
    assert [(one.domain, one.threshold) for one in contract.domains] == [
        ("medical", 0.9),
        ("legal", 0.9),
    ]
    lines = result.stdout.partition("Into the policy:")[2].rstrip()
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\nname: chosen\nrules:{lines}\n")
    assert [rule.id for rule in load(policy).rules] == ["medical", "legal"]


def test_too_few_rows_say_how_many_are_needed(tmp_path: Path) -> None:
    out = tmp_path / "contract.json"

    result = run("calibrate", SAMPLE, "--domain", "medical", "--out", str(out))

    assert result.exit_code == 2
    assert "needs 598 at least" in result.stderr
    assert not out.exists()


def test_bars_that_a_policy_has_are_kept_and_held_against_the_target(held_out: str) -> None:
    arguments = (
        "calibrate",
        SAMPLE,
        "--probabilities",
        held_out,
        "--keep",
        "policies/default.yaml",
    )

    missed = run(*arguments)
    met = run(*arguments, "--miss-rate", "0.6", "--confidence", "0.9", "--json")

    assert missed.exit_code == 1
    assert "medical: the target is not met at 0.1" in missed.stdout
    assert met.exit_code == 0
    assert json.loads(met.stdout)["domains"][0]["threshold"] == 0.1


@pytest.mark.parametrize(
    "arguments",
    [(), (SAMPLE, "--from-log"), (SAMPLE, "--since", "7d"), ("--from-log", "--probabilities", "x")],
)
def test_rows_come_from_one_place(arguments: tuple[str, ...]) -> None:
    assert run("calibrate", *arguments).exit_code == 2


# ---- the log --------------------------------------------------------------------------------------


def scored(number: int, medical: float, classifier_hash: str) -> DecisionRecord:
    signals = Signals(
        items=(Signal("domain", "medical", medical, "domain"),),
        scored_tokens=9,
        total_tokens=9,
        classifiers={"domain": classifier_hash},
    )
    return decision_record(number, signals=signals)


def fill(url: str, records: Iterable[DecisionRecord], feedback: Iterable[Feedback]) -> None:
    async def write() -> None:
        store = await DecisionStore.open(url)
        await asyncio.gather(*map(store.append_decision, records))
        for record in feedback:
            await store.append_feedback(record)
        await store.aclose()

    asyncio.run(write())


def said(number: int, *domains: str, by: str = "ada") -> Feedback:
    return Feedback(decision_id=f"dec_{number:06d}", given_at=2000.0, by=by, domains=domains)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Ten medical requests with feedback, five others with it, one without, one of other weights."""
    url = f"sqlite:///{tmp_path}/decisions.db"
    mine = DomainClassifier().content_hash
    fill(
        url,
        [
            *(scored(i, 0.5 + i / 100, mine) for i in range(10)),
            *(scored(i, 0.02 * (i - 9), mine) for i in range(10, 16)),
            scored(16, 0.9, "d" * 64),
        ],
        [
            *(said(i, "medical") for i in range(10)),
            *(said(i, "code") for i in range(10, 15)),
            # Bob takes back what Ada had said of the first one.
            said(0, "code", by="bob"),
            said(16, "medical"),
        ],
    )
    return url


def test_bars_come_from_the_last_feedback_in_the_log_and_need_no_text(
    url: str, tmp_path: Path
) -> None:
    out = tmp_path / "contract.json"
    target = ("--miss-rate", "0.3", "--confidence", "0.9", "--domain", "medical", "--url", url)

    result = run("calibrate", "--from-log", *target, "--out", str(out))
    by_ada = run("calibrate", "--from-log", *target, "--by", "ada", "--json")

    assert result.exit_code == 0
    medical = read_contract(out).domains[0]
    assert (medical.recall.rows, medical.false_bans.rows, medical.threshold) == (9, 6, 0.51)
    assert json.loads(by_ada.stdout)["domains"][0]["recall"]["rows"] == 10


def test_a_log_without_feedback_on_these_weights_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/decisions.db"
    fill(url, [scored(1, 0.9, "d" * 64)], [said(1, "medical")])

    result = run("calibrate", "--from-log", "--url", url)

    assert result.exit_code == 2
    assert "no feedback on requests that classifier" in result.stderr
    assert "1 were scored by another" in result.stderr


def test_drift_alarms_with_words_and_exit_status(url: str, tmp_path: Path, held_out: str) -> None:
    contract = tmp_path / "contract.json"
    run("calibrate", SAMPLE, "--keep", "policies/default.yaml", "--out", str(contract))
    arguments = ("drift", "--url", url, "--contract", str(contract))

    calm = run(*arguments)
    report = json.loads(run(*arguments, "--json").stdout)

    assert calm.exit_code == 0
    assert "16 requests, 15 with feedback" in calm.stdout
    assert "1 more were scored by another classifier" in calm.stdout
    assert "medical: 16 requests, 200 are needed" in calm.stdout
    assert (report["level"], report["domains"][0]["recall"]["rows"]) == ("unknown", 9)

    strict = msgspec.json.decode(contract.read_bytes())
    strict["domains"][0]["threshold"] = 0.55
    contract.write_bytes(msgspec.json.encode(strict))
    alarmed = run(*arguments)
    assert alarmed.exit_code == 1
    assert "medical: feedback: 4 of 9 missed, the target is 0.50%." in alarmed.stdout


@pytest.mark.parametrize("command", ["drift", "calibrate"])
def test_a_log_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    log = ("--from-log",) if command == "calibrate" else ()

    result = run(command, *log, "--url", f"sqlite:///{tmp_path}/none.db")

    assert result.exit_code == 2
    assert "there is no decision log at" in result.stderr


# ---- the model card -------------------------------------------------------------------------------


def test_the_card_comes_from_the_files_that_the_commands_wrote(
    held_out: str, tmp_path: Path
) -> None:
    evaluation, contract = tmp_path / "evaluation.json", tmp_path / "contract.json"
    given = ("--probabilities", held_out)
    printed = run("evaluate", SAMPLE, *given, "--trained-on", SAMPLE, "--json").stdout
    evaluation.write_text(printed)
    run("calibrate", SAMPLE, *given, "--keep", "policies/default.yaml", "--out", str(contract))
    out = tmp_path / "card.md"

    files = (str(evaluation), "--contract", str(contract))
    assert run("card", *files, "--out", str(out)).exit_code == 0

    card = out.read_text()
    assert read_evaluation(evaluation).classifier_hash in card
    assert "78 rows of" in card
    assert "held out" in card
    assert "not met for medical and legal" in card
    assert "$" not in card
    assert run("card", *files).stdout == card


def test_a_card_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text("{}")

    result = run("card", str(path))

    assert result.exit_code == 2
    assert "not an evaluation" in result.stderr
