import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway import extensions
from gateway.classification.base import Reading
from gateway.cli import main
from gateway.types import ChatRequest, Signal

ROOT = Path(__file__).parents[2]
POLICY = """\
version: 1
name: mine
rules:
  - {id: code, decide: {mode: speculative}, when: {domain: {is: code, min_probability: 0.6}}}
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    return path


def draftgate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["policy", *map(str, arguments)])


def test_validate_says_what_was_loaded(policy_file: Path) -> None:
    result = draftgate("validate", policy_file)

    assert result.exit_code == 0
    assert re.search(r"Policy mine, [0-9a-f]{12}:", result.stdout)
    assert "1 rules, 0 of them bans" in result.stdout


def test_without_a_file_and_a_configuration_the_shipped_policy_is_taken() -> None:
    result = draftgate("validate")

    assert result.exit_code == 0
    assert "Policy default" in result.stdout


@pytest.mark.parametrize("variable", ["DRAFTGATE_POLICY", "DRAFTGATE_CONFIG"])
def test_without_a_file_the_configured_policy_is_taken(
    policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    cases = "cases: [{name: a, signals: {code: 0.9}, expect: {mode: speculative, rule: code}}]"
    policy_file.with_name("mine_test.yaml").write_text(cases)
    configuration = tmp_path / "draftgate.yaml"
    configuration.write_text("policy: mine.yaml\n")
    paths = {"DRAFTGATE_POLICY": policy_file, "DRAFTGATE_CONFIG": configuration}
    monkeypatch.setenv(variable, str(paths[variable]))

    assert "Policy mine" in draftgate("validate").stdout
    assert "1 of 1 cases passed" in draftgate("test").stdout
    explained = draftgate("explain", "--signals", "code=0.9", "--json").stdout
    assert json.loads(explained)["decision"]["policy"] == "mine"


def test_the_configured_policy_is_held_against_the_configured_backends(
    policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_file.write_text(POLICY.replace("mode: speculative", "mode: speculative, backend: gone"))
    assert draftgate("validate", policy_file).exit_code == 0

    monkeypatch.setenv("DRAFTGATE_POLICY", str(policy_file))
    result = draftgate("validate")

    assert result.exit_code == 2
    assert "'gone'" in result.stderr


def test_validate_names_every_problem_and_exits_with_2(policy_file: Path) -> None:
    policy_file.write_text(POLICY + "  - {id: b, ban: [standard]}\n  - {id: c, dny: x}\n")
    result = draftgate("validate", policy_file)

    assert result.exit_code == 2
    assert f"{policy_file}:5:18: rules[1].ban: standard cannot be banned" in result.stderr
    assert f"{policy_file}:6:13: rules[2]: unknown field 'dny'" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["validate", "test", "explain"])
def test_a_missing_file_is_bad_input(command: str, tmp_path: Path) -> None:
    options = ["--signals", "code=1"] if command == "explain" else []
    result = draftgate(command, tmp_path / "none.yaml", *options)

    assert result.exit_code == 2
    assert "none.yaml: no such file" in result.stderr


def test_test_runs_the_cases_beside_the_policy(policy_file: Path) -> None:
    beside = policy_file.with_name("mine_test.yaml")
    beside.write_text(
        "cases: [{name: a, signals: {code: 0.9}, expect: {mode: speculative, rule: code}}]"
    )
    result = draftgate("test", policy_file)

    assert result.exit_code == 0
    assert "1 of 1 cases passed; 1 of 1 rules covered." in result.stdout


def test_a_failing_case_shows_why_and_exits_with_1(policy_file: Path) -> None:
    beside = policy_file.with_name("mine_test.yaml")
    beside.write_text(
        "cases: [{name: 'all [bold]code', signals: {code: 0.5},"
        " expect: {mode: speculative, rule: code}}]"
    )
    result = draftgate("test", policy_file)

    assert result.exit_code == 1
    assert re.search(r"all \[bold\]code: FAIL \(\d+ µs\)", result.stdout)
    assert "mode: expected speculative, got standard" in result.stdout
    assert "domain code 0.5 < 0.6" in result.stdout
    assert "No case reaches: code" in result.stdout

    as_json = draftgate("test", policy_file, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["passed"] is False


def test_a_policy_without_tests_fails(policy_file: Path) -> None:
    result = draftgate("test", policy_file)

    assert result.exit_code == 2
    assert "mine_test.yaml: no such file" in result.stderr


def test_explain_shows_the_decision_and_what_became_of_each_rule(policy_file: Path) -> None:
    result = draftgate("explain", policy_file, "--signals", "code=0.9, medical=0.2")

    assert result.exit_code == 0
    assert "speculative" in result.stdout
    assert "code 0.90, medical 0.20" in result.stdout
    assert "domain code 0.9 >= 0.6" in result.stdout


def test_explain_can_be_read_by_a_program(policy_file: Path) -> None:
    result = draftgate(
        "explain", policy_file, "--signals", "code=0.9", "--mode", "standard", "--json"
    )
    decision = json.loads(result.stdout)["decision"]

    assert (decision["mode"], decision["rule"], decision["forced_by"]) == (
        "standard",
        "code",
        "header",
    )


CASES = """\
cases:
  - {name: code is fast, signals: {code: 0.9}, expect: {mode: speculative, rule: code}}
  - {name: chat is not, signals: {general_chat: 0.9}, expect: {mode: standard, rule: default}}
"""


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (["--verbose"], 0, "chat is not: PASS ("),
        (["--run", "^code"], 0, "1 of 1 cases passed; 1 of 1 rules covered."),
        (["--run", "^chat", "--coverage-min", "50"], 1, "FAIL: coverage 0% is below 50%"),
        (["--coverage-min", "100"], 0, "2 of 2 cases passed"),
        (["--run", "cod$"], 0, "0 of 0 cases passed"),
        (["--run", "cod$", "--fail-on-empty"], 1, "FAIL: no case was run"),
        (["--run", "("], 2, "--run is no regular expression"),
        (["--coverage-min", "101"], 2, "101"),
    ],
)
def test_a_run_can_be_narrowed_and_held_to_more(
    policy_file: Path, options: list[str], exit_code: int, said: str
) -> None:
    policy_file.with_name("mine_test.yaml").write_text(CASES)
    result = draftgate("test", policy_file, *options)

    assert result.exit_code == exit_code
    assert said in result.output


def test_a_program_reads_of_a_run_what_a_person_does(policy_file: Path) -> None:
    policy_file.with_name("mine_test.yaml").write_text(CASES)
    result = draftgate("test", policy_file, "--json", "--run", "^chat", "--coverage-min", "50")
    report = json.loads(result.stdout)

    assert (result.exit_code, report["passed"], report["coverage"]) == (1, False, 0.0)
    assert report["complaints"] == ["coverage 0% is below 50%"]
    assert [case["name"] for case in report["results"]] == ["chat is not"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set.yaml").write_text(
        "version: 1\nname: acme\npolicies: [base.yaml]\ntighten: [red.yaml]\n"
    )
    (tmp_path / "base.yaml").write_text(POLICY)
    (tmp_path / "red.yaml").write_text(
        "version: 1\nname: red\nfor: {team: {is: red}}\nrules: [{id: none, ban: [speculative]}]\n"
    )
    (tmp_path / "set_test.yaml").write_text("""\
cases:
  - name: a
    signals: {code: 0.9}
    request: {team: red}
    expect: {mode: standard, rule: none}
  - {name: b, signals: {code: 0.9}, expect: {mode: speculative, rule: code}}
""")
    return tmp_path


def test_every_command_takes_a_folder(folder: Path) -> None:
    validated = draftgate("validate", folder)
    explained = draftgate("explain", folder, "--signals", "code=0.9", "--team", "red", "--json")

    assert validated.exit_code == 0
    assert "red.yaml: ok. red tightens with 1 rules." in validated.stdout
    assert draftgate("test", folder, "--coverage-min", "100").exit_code == 0
    assert json.loads(explained.stdout)["decision"]["rule"] == "none"
    assert draftgate("fmt", folder, "--check").stdout.count("would change") == 1
    assert draftgate("fmt", folder).exit_code == draftgate("fmt", folder, "--check").exit_code == 0


def test_validate_warns_of_rules_that_have_expired(policy_file: Path) -> None:
    policy_file.write_text(POLICY.replace("{id: code,", "{id: code, expires: 2020-01-01,"))
    result = draftgate("validate", policy_file)

    assert result.exit_code == 0
    assert "warning: rule 'code' expired on 2020-01-01: it decides standard mode" in result.stderr


def test_fmt_lays_out_a_policy_and_its_tests(policy_file: Path) -> None:
    beside = policy_file.with_name("mine_test.yaml")
    policy_file.write_text("name: mine # mine\nversion:   1\n")
    beside.write_text("cases:\n- {expect: {rule: default, mode: standard}, name: a}\n")

    diff = draftgate("fmt", policy_file, "--diff")
    assert "+version: 1\n+name: mine  # mine\n" in diff.stdout
    checked = draftgate("fmt", policy_file, "--check")
    assert (checked.exit_code, checked.stdout.count("would change")) == (1, 2)
    assert policy_file.read_text().startswith("name")

    assert draftgate("fmt", policy_file).exit_code == 0
    assert policy_file.read_text() == "version: 1\nname: mine  # mine\n"
    assert beside.read_text() == "cases:\n  - {name: a, expect: {mode: standard, rule: default}}\n"
    assert draftgate("fmt", policy_file, "--check").exit_code == 0


def test_fmt_of_a_set_leaves_other_files_alone(folder: Path) -> None:
    (folder / "compose.yaml").write_text("services:   [")
    result = draftgate("fmt", folder, "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["changed"]) == 1
    assert json.loads(draftgate("fmt", folder, "--json").stdout) == {"changed": []}
    assert (folder / "compose.yaml").read_text() == "services:   ["


def test_validate_prints_json(policy_file: Path) -> None:
    policy_file.write_text(POLICY.replace("{id: code,", "{id: code, expires: 2020-01-01,"))
    said = json.loads(draftgate("validate", policy_file, "--json").stdout)
    assert (said["valid"], len(said["hash"]), said["problems"]) == (True, 64, [])
    assert "rule 'code' expired" in said["warnings"][0]

    policy_file.write_text("version: 1\nname: mine\nrulez: []\n")
    result = draftgate("validate", policy_file, "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["valid"], said["hash"]) == (2, False, None)
    (problem,) = said["problems"]
    assert (problem["file"], problem["line"], problem["column"]) == (str(policy_file), 3, 1)
    assert "rulez" in problem["message"]


def test_fmt_does_not_touch_a_file_that_is_wrong(policy_file: Path) -> None:
    policy_file.write_text("nam: mine\nversion:   1\n")

    assert draftgate("fmt", policy_file).exit_code == 2
    assert policy_file.read_text() == "nam: mine\nversion:   1\n"


def test_explain_shows_every_condition_of_a_rule_as_a_tree(
    policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    policy_file.write_text("""\
version: 1
name: mine
rules:
  - id: mixed
    when:
      any:
        - not: {stream: false}
        - {n: 1, header: {name: X-Team, is: red}}
      domain: {is: code}
    deny: No.
""")
    given = ["--signals", "code=0.9", "--header", "X-Team=red"]
    result = draftgate("explain", policy_file, *given)

    assert [line.rstrip() for line in result.stdout.splitlines()[-9:]] == [
        "└── ✓ deny mixed: most probable domain code 0.9 >= 0.5 and n 1 and header x-team red",
        "    └── ✓ when",
        "        ├── ✓ most probable domain code 0.9 >= 0.5",
        "        └── ✓ any",
        "            ├── · not",
        "            │   └── ✓ stream false",
        "            └── ✓ when",
        "                ├── ✓ n 1",
        "                └── ✓ header x-team red",
    ]
    as_json = json.loads(draftgate("explain", policy_file, *given, "--json").stdout)
    assert as_json["conditions"]["mixed"]["inside"][1]["inside"][0]["holds"] is False


def test_explain_looks_at_another_time(policy_file: Path) -> None:
    policy_file.write_text(POLICY.replace("{id: code,", "{id: code, expires: 2030-01-01,"))

    for at, mode in (("2030-01-01T23:59Z", "speculative"), ("2030-01-02", "standard")):
        result = draftgate("explain", policy_file, "--signals", "code=0.9", "--at", at, "--json")
        assert json.loads(result.stdout)["decision"]["mode"] == mode


class CodeEverywhere:
    """A classifier to which every request is code."""

    content_hash = "0"

    def classify(self, request: ChatRequest) -> Reading:
        return Reading((Signal("domain", "code", 0.75, "fake"),))


@pytest.fixture
def _one_classifier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configuration = tmp_path / "draftgate.yaml"
    configuration.write_text("classifiers: [fake]\n")
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(configuration))
    built = {"fake": CodeEverywhere}
    monkeypatch.setattr(extensions, "build", lambda kind, name, options: built[name]())


@pytest.mark.usefixtures("_one_classifier")
def test_explain_classifies_a_prompt(policy_file: Path) -> None:
    result = draftgate("explain", policy_file, "--prompt", "Sort a list.")

    assert result.exit_code == 0
    assert "domain code 0.75 >= 0.6" in result.stdout


@pytest.mark.usefixtures("_one_classifier")
def test_test_classifies_cases_that_give_only_text(policy_file: Path) -> None:
    policy_file.with_name("mine_test.yaml").write_text("""\
cases:
  - {name: a, request: {prompt: x}, expect: {mode: speculative, rule: code}}
  - {name: b, request: {prompt: y}, expect: {mode: speculative, rule: code}}
""")

    assert draftgate("test", policy_file).exit_code == 0


def test_explain_takes_context_language_and_caller(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("""\
version: 1
name: p
rules:
  - id: all
    deny: Stop.
    when: {has_context: true, language: {is: fr}, team: {is: red}, caller: {is: ann}}
""")
    given = ["--has-context", "--language", "fr", "--team", "red", "--caller", "ann"]
    result = draftgate("explain", path, "--signals", "", *given)

    assert result.exit_code == 0
    assert "Stop." in result.stdout


def test_explain_reads_a_request_file(policy_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\nname: p\nrules:\n"
        "  - {id: a, deny: No., when: {keyword: [dose], stream: true, n: 2, model: {is: big}}}\n"
    )
    request = tmp_path / "request.json"
    body = {
        "model": "big",
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "A dose?"}]},
        ],
        "stream": True,
        "n": 2,
        "temperature": 0.2,
    }
    request.write_text(json.dumps(body))
    result = draftgate("explain", path, "--request", request, "--signals", "", "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["decision"]["deny"] == "No."


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "Give --prompt"),
        (["--prompt", "a", "--request", "b"], "not both"),
        (["--signals", "cod=1"], "did you mean 'code'?"),
        (["--signals", "code"], "is not NAME=PROBABILITY"),
        (["--signals", "code=x"], "is not NAME=PROBABILITY"),
        (["--signals", "code=2"], "must be from 0 to 1"),
        (["--signals", "code=nan"], "must be from 0 to 1"),
        (["--prompt", "a", "--language", "fr"], "go with --signals"),
        (["--signals", "", "--mode", "fast"], "'fast' is not one of"),
        (["--signals", "", "--at", "noon"], "'noon' is no time"),
        (["--signals", "", "--header", "X-Team"], "is not NAME=VALUE"),
        (["--request", "none.json"], "none.json: cannot be read"),
    ],
)
def test_wrong_options_are_explained(policy_file: Path, options: list[str], expected: str) -> None:
    result = draftgate("explain", policy_file, *options)

    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "has no body"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "needs one of `messages`, `prompt` and `input`"),
        (b'{"prompt": "a", "messages": []}', "needs one of `messages`, `prompt` and `input`"),
        (b'{"prompt": 3}', "Invalid value for 'prompt'"),
        (b'{"messages": [{"content": "x"}]}', "Missing required parameter: 'messages[0].role'"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "send text"),
        (b'{"prompt": "a", "tools": [{}]}', "'tools' is not supported"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_request_file_that_is_wrong_is_explained(
    policy_file: Path, tmp_path: Path, body: bytes, expected: str
) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(body)
    result = draftgate("explain", policy_file, "--request", path)

    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert expected in result.stderr


BAN = """\
version: 1
name: bans
rules:
  - id: m
    ban: [speculative, hybrid]
    when: {domain: {is: medical, min_probability: THRESHOLD}}
"""


def test_validate_warns_of_a_ban_that_is_looser_than_the_contract(policy_file: Path) -> None:
    policy_file.write_text(BAN.replace("THRESHOLD", "0.9"))
    loose = draftgate("validate", policy_file)
    policy_file.write_text(BAN.replace("THRESHOLD", "0.05"))
    covered = draftgate("validate", policy_file)

    assert loose.exit_code == covered.exit_code == 0
    assert "warning: rule 'm': no contract for this threshold" in loose.stderr
    assert covered.stderr == ""


def test_show_says_what_the_contract_knows_of_each_ban(policy_file: Path) -> None:
    policy_file.write_text(BAN.replace("THRESHOLD", "0.05"))
    bans = json.loads(draftgate("show", policy_file, "--json").stdout)["bans"]
    text = draftgate("show", policy_file).stdout

    assert [(ban["rule"], ban["threshold"]) for ban in bans] == [("m", 0.05)]
    assert bans[0]["recall"]["rows"] > 0
    assert f"{bans[0]['recall']['share']:.3f} (" in text
    assert f"measured at {bans[0]['contract_threshold']:g}" in text
    policy_file.write_text(BAN.replace("THRESHOLD", "0.9"))
    assert "no contract for this threshold" in draftgate("show", policy_file).stdout


def test_a_contract_that_is_not_there_is_named(
    policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "draftgate.yaml"
    settings.write_text("classification: {contract: mine.json}\n")
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(settings))

    result = draftgate("validate", policy_file)

    assert result.exit_code == 2
    assert f"{tmp_path / 'mine.json'}: cannot read" in result.stderr
