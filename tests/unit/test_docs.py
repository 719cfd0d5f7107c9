"""The pages on operation and extension say what the code says, and their examples work."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import torch
import yaml
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor

from decoders.draft import NO_DRAFT, Draft
from decoders.drafts.base import DraftRequest
from decoders.noise import Greedy, GumbelNoise
from decoders.verifiers.base import DraftedRow, Verdict
from decoders.verifiers.coupled import CoupledVerifier
from gateway import config, credentials, extensions
from gateway.api import body
from gateway.api.requests import DEFAULT_MAX_TOKENS
from gateway.api.schemas import ChatCompletionRequest, CompletionRequest
from gateway.audit.record import Timings
from gateway.audit.store import DecisionStore
from gateway.backends.base import Backend
from gateway.backends.openai.watch import metrics as upstream_metrics
from gateway.cell import Cell
from gateway.classification.base import classify
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.classification.drift import ScoreWindow
from gateway.cli.serve import serve
from gateway.config import GatewayConfig
from gateway.documents.document import MAX_CHARACTERS
from gateway.errors import GatewayError, InvalidRequest, QueueFull, UnsupportedParameter
from gateway.evidence.gauges import Gauges
from gateway.evidence.state import CellState
from gateway.execution import Execution
from gateway.routing.decide import decide
from gateway.routing.policy import parse_policy
from gateway.routing.testing import given_signals
from gateway.telemetry import Telemetry
from gateway.types import Caller, ChatRequest, Message, Mode, Signals
from tests.contract import test_backends as backend_contract
from tests.contract import test_classifiers as classifier_contract
from tests.records import decision_record, outcome_record

ROOT = Path(__file__).parents[2]
LOG_SCHEMA = (ROOT / "docs" / "log-schema.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_POLICY = (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8")
ENVIRONMENT = re.compile(r"\b(?:DRAFTGATE|XDG)_[A-Z_]+\b")
KEEPING_THE_CONTRACT = {
    name: check
    for name, check in vars(backend_contract).items()
    if name.startswith("test_") and "backend" in inspect.signature(check).parameters
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


def table(first_column: str) -> dict[str, list[str]]:
    """The rows of the table of operations.md with this first column: what it quotes → other cells."""
    _, _, rest = OPERATIONS.partition(f"\n| {first_column} |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    assert lines, f"no table {first_column!r}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: row[1:] for row in cells for name in quoted(row[0]) or [row[0]]}


def quoted(text: str) -> list[str]:
    """What stands between single backticks, outside of fenced blocks."""
    return re.findall(
        r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    )


# ---- operations.md --------------------------------------------------------------------------------


def fields(struct: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that a file may set, in dotted form, with its default."""
    hints = get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from fields(hint, f"{name}.")
            continue
        yield name, field.default
        inner = [member for member in get_args(hint) if isinstance(member, type)]
        for member in inner:
            if issubclass(member, msgspec.Struct):
                yield from fields(member, f"{name}.NAME." if is_mapping(hint) else f"{name}.")


def is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def check_default(name: str, default: Any, cell: str) -> None:
    if default is msgspec.NODEFAULT or default in (None, "", ()):
        return  # described in words: there is no value to show
    (shown,) = quoted(cell) or [cell]
    value = yaml.safe_load(shown)
    assert default == (tuple(value) if isinstance(value, list) else value), name


def test_every_field_of_the_configuration_is_documented_with_its_default() -> None:
    documented = table("Field")
    found = dict(fields(GatewayConfig))

    assert set(found) == set(documented)
    for name, default in found.items():
        check_default(name, default, documented[name][0])


def test_the_fields_are_found_at_every_depth() -> None:
    assert {"policy", "server.port", "backends.NAME.type", "auth.keys.sha256"} <= {
        name for name, _ in fields(GatewayConfig)
    }


def test_the_example_file_is_valid_and_its_backend_knows_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT.findall(inspect.getsource(config)):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "draftgate.yaml"
    (example,) = blocks(OPERATIONS, "yaml")
    path.write_text(example, encoding="utf-8")

    loaded = config.load(path)

    assert tmp_path / "policies" / "mine.yaml" == loaded.policy
    assert [key.id for key in loaded.auth.keys] == ["ann"]
    assert {backend.type for backend in loaded.backends.values()} == {"local"}
    assert set(loaded.backends["local"].options) <= set(table("Option"))


def test_every_environment_variable_is_documented_and_no_other() -> None:
    source = inspect.getsource(config) + inspect.getsource(credentials)
    read = set(ENVIRONMENT.findall(source)) | set(
        re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source)
    )

    assert len(read) >= 8
    assert read == {name for name in table("Environment") if not name.startswith("-")} - {""}
    assert read == set(ENVIRONMENT.findall(OPERATIONS))


def test_every_option_of_serve_is_documented_and_no_other() -> None:
    _, _, rest = OPERATIONS.partition("\n| Environment |")
    documented = set(re.findall(r"`(--[a-z-]+)`", rest.partition("\n\n")[0]))

    assert {option for parameter in serve.params for option in parameter.opts} == documented


def test_every_option_of_the_local_backend_is_documented_with_its_default() -> None:
    documented = table("Option")
    parameters = dict(inspect.signature(extensions.load("backends", "local")).parameters)
    del parameters["name"]  # given by the gateway: it is the key in `backends`

    assert set(parameters) == set(documented)
    for name, parameter in parameters.items():
        check_default(name, parameter.default, documented[name][0])


def test_every_metric_is_documented_with_its_labels() -> None:
    drift = ScoreWindow(read_contract(SHIPPED_CONTRACT))
    telemetry = Telemetry(models=["small"], drift=drift)
    outcome = outcome_record()
    tightened = msgspec.structs.replace(outcome.execution, tightened_by="probe")
    telemetry.observe(decision_record(), msgspec.structs.replace(outcome, execution=tightened))
    telemetry.set_policy("default", "f" * 64)
    cell = Cell("code", "speculative", "coupled", "small", "suffix")
    Gauges(telemetry.registry).show([CellState(cell=cell)], demoted=0)
    replicas, alarms = upstream_metrics(telemetry.registry)
    replicas.labels("twins", "standard", "up").set(1)
    alarms.labels("twins", "standard").inc()
    text = telemetry.render().decode()
    names = re.findall(r"^# TYPE (\w+?) (?:counter|histogram|gauge)$", text, re.MULTILINE)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(family.name, set()).update(set(sample.labels) - {"le"})

    documented = {name: set(quoted(row[0])) for name, row in table("Metric").items()}

    assert documented == {
        name: labels[name.removesuffix("_total")] for name in names if not name.endswith("_created")
    }
    assert set(re.findall(r"draftgate_\w+", "".join(blocks(OPERATIONS, "promql")))) <= set(names)


def test_the_example_of_the_log_line_has_every_field_and_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Telemetry().observe(decision_record(), outcome_record())
    written = json.loads(capsys.readouterr().out)
    (example,) = blocks(OPERATIONS, "json")

    assert set(written) == set(json.loads(example))
    for name in ("acceptance_rate", "mean_acceptance_length", "num_drafts"):
        assert written[name] == json.loads(example)[name]


JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array of strings": (list,),
}


def test_the_schema_of_the_log_line_is_that_of_real_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, _, rest = LOG_SCHEMA.partition("\n| Field | Type | Meaning |\n|---|---|---|\n")
    rows = [line.strip("|").split(" | ") for line in rest.strip().splitlines()]
    types = {quoted(name)[0]: type_.strip().split(" or ") for name, type_, _ in rows}
    request = msgspec.structs.replace(decision_record().request, model="m")
    bare = decision_record(request=request, signals=Signals(), caller=Caller())
    never_ran = outcome_record(execution=Execution(), timings=Timings())
    whole = decision_record(
        traceparent="00-1-2-01", sampling=msgspec.structs.replace(bare.sampling, max_tokens=9)
    )
    tightened = msgspec.structs.replace(
        outcome_record().execution, tightened_by="probe", fallback="arm_down"
    )
    Telemetry().observe(whole, outcome_record(execution=tightened, error="x: y"))
    Telemetry().observe(bare, never_ran)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        assert set(line) == set(types)
        for name, value in line.items():
            allowed = [kind for word in types[name] for kind in JSON_TYPES[word]]
            assert type(value) in allowed, (name, value)
    # What may be null is null somewhere, and something somewhere else.
    nullable = {name for name, words in types.items() if "null" in words}
    assert nullable == {name for name in types if None in (lines[0][name], lines[1][name])}
    assert all(lines[0][name] is not None for name in nullable)


def test_every_other_log_event_is_documented_and_no_other() -> None:
    events = {
        node.args[0].value
        for path in (ROOT / "gateway").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("debug", "info", "warning", "error", "exception", "critical")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }

    assert events == set(table("Event"))


def errors(base: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == "gateway.errors":
            yield from errors(child)


def codes_in_place() -> set[str]:
    """The codes that are given where an error is raised, in the HTTP surface."""
    found: set[str] = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code":
                found |= constants(node.value)
            elif isinstance(node, ast.Assign) and path.parent.name == "api":
                targets = [t for target in node.targets for t in ast.walk(target)]
                if any(isinstance(t, ast.Name) and t.id == "code" for t in targets):
                    found |= constants(node.value)
    return found


def constants(node: ast.expr) -> set[str]:
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    return {e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)}


def test_every_error_code_is_documented_with_its_status() -> None:
    documented = {code: int(row[0]) for code, row in table("Code").items()}
    known = {error.code: error.status for error in errors() if error.code is not None}

    assert len(known) >= 13
    assert known == {code: status for code, status in documented.items() if code in known}


def code_of(**fields: Any) -> str | None:
    """The code of the error that a chat request with these fields meets."""
    message = {"role": "user", "content": "a"}
    with pytest.raises(InvalidRequest) as caught:
        body.parse({"model": "any", "messages": [message], **fields}, ChatCompletionRequest)
    return caught.value.code


def test_every_code_given_in_place_is_documented_and_none_is_made_up() -> None:
    known = {error.code for error in errors() if error.code is not None}
    composed = {code_of(n=0), code_of(n=99), code_of(temperature=-1), code_of(temperature=99)}

    assert len(composed) == 4
    assert set(table("Code")) == known | codes_in_place() | composed


def test_the_limits_are_those_of_the_code() -> None:
    limits = {name: row[0] for name, row in table("What").items()}
    chat = msgspec.json.schema(ChatCompletionRequest)["$defs"]["ChatCompletionRequest"]
    text = msgspec.json.schema(CompletionRequest)["$defs"]["CompletionRequest"]

    def bound(schema: Mapping[str, Any], name: str, key: str) -> Any:
        choices = schema["properties"][name]["anyOf"]
        return next(choice[key] for choice in choices if key in choice)

    def numbers(name: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", limits[name])]

    assert numbers("n") == [bound(chat, "n", "maximum")]
    assert numbers("best_of") == [bound(text, "best_of", "maximum")]
    assert numbers("stop") == [bound(chat, "stop", "maxItems")]
    assert numbers("stop_token_ids") == [bound(chat, "stop_token_ids", "maxItems")]
    assert numbers("logit_bias") == [bound(chat, "logit_bias", "maxProperties")]
    assert numbers("top_logprobs") == [
        bound(chat, "top_logprobs", "maximum"),
        bound(text, "logprobs", "maximum"),
    ]
    assert numbers("max_tokens") == [DEFAULT_MAX_TOKENS]
    assert numbers("a configuration or policy file") == [MAX_CHARACTERS]
    pending = inspect.signature(DecisionStore.open).parameters["max_pending"].default
    assert numbers("decisions waiting to be recorded") == [pending]


# ---- README.md ------------------------------------------------------------------------------------


def test_the_rule_in_the_readme_does_what_the_readme_says() -> None:
    (rule,) = blocks(README, "yaml")
    text = f"{DEFAULT_POLICY.rstrip()}\n{rule}\n"
    policy = parse_policy(text, "readme", verifiers=("coupled",), draft_sources=("suffix",))

    decision = decide(
        policy,
        given_signals({"code": 0.9}),
        ChatRequest(model="any", prompt="Write a Python function that reverses a list."),
        Caller(),
        prompt_tokens=9,
        now=datetime(2026, 1, 5, 12, tzinfo=UTC),
    )

    assert decision.mode == Mode.STANDARD
    assert policy.rules[-1].id in decision.bans.values()


# ---- every page -----------------------------------------------------------------------------------


def tables(text: str) -> list[list[str]]:
    """The first cells of each table, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", f"{text}\n", re.MULTILINE)
    return [[row.split("|")[1].strip() for row in rows.splitlines()[2:]] for rows in found]


def test_no_module_stands_twice_in_the_architecture_and_no_step() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = re.findall(r"^(\d+)\. ", page, re.MULTILINE)

    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    for cells in tables(page):
        names = [name for cell in cells for name in quoted(cell) or [cell]]
        assert len(names) > 1
        assert sorted(names) == sorted(set(names))


PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_row_of_a_table_stands_twice(page: Path) -> None:
    for rows in re.findall(r"(?:^\|.*\n)+", f"{page.read_text('utf-8')}\n", re.MULTILINE):
        lines = rows.splitlines()
        assert sorted(lines) == sorted(set(lines))


# ---- extending.md ---------------------------------------------------------------------------------


def recipes() -> dict[str, dict[str, str]]:
    """Entry-point group → name → object, as the lines of the page have them."""
    found: dict[str, dict[str, str]] = {}
    for block in blocks(EXTENDING, "toml"):
        found |= tomllib.loads(block)["project"]["entry-points"]
    return found


def source_of(class_name: str) -> str:
    (source,) = [b for b in blocks(EXTENDING, "python") if f"\nclass {class_name}" in b]
    return source


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The recipes as a package that pip has installed, entry points and all."""
    site = tmp_path_factory.mktemp("site-packages")
    information = site / "acme-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (site / "acme").mkdir()
    lines = []
    for group, points in recipes().items():
        for name, value in points.items():
            lines += [f"[{group}]", f"{name} = {value}"]
            point = EntryPoint(name, value, group)
            path = site.joinpath(*point.module.split(".")).with_suffix(".py")
            path.write_text(source_of(point.attr), encoding="utf-8")
    (information / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield
    for module in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[module]


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    """Built by the line that the page gives for the table of the contract suite."""
    (line,) = [code for code in quoted(EXTENDING) if "extensions.build" in code]
    made: Backend = eval(f"{{{line}}}", {"extensions": extensions})["echo"](None)
    yield made
    await made.aclose()


def test_every_entry_point_is_named_on_the_page_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| [^|]+ \| `(gateway\.\w+)` \| ([^|]+) \|", EXTENDING, re.MULTILINE)

    assert {group: set(points) for group, points in project["entry-points"].items()} == {
        group: set(quoted(cell)) for group, cell in rows
    }


def test_there_is_one_recipe_for_each_kind_of_extension() -> None:
    assert {f"gateway.{kind}" for kind in extensions.KINDS} == set(recipes())
    assert all(len(points) == 1 for points in recipes().values())


@pytest.mark.parametrize("class_name", ["BigramDraftSource", "SmoothVerifier"])
def test_a_recipe_for_the_engine_fits_on_a_screen(class_name: str) -> None:
    assert source_of(class_name).count("\n") < 40


async def test_the_classifier_recipe_makes_a_named_medicine_a_ban() -> None:
    formulary = extensions.build("classifiers", "formulary", {})
    policy = parse_policy(
        DEFAULT_POLICY, "default", verifiers=("coupled",), draft_sources=("suffix",)
    )

    async def mode_of(text: str) -> Mode:
        request = ChatRequest(model="any", messages=(Message("user", text),))
        given = given_signals({"code": 0.9})
        read = await classify(request, {"formulary": formulary}, timeout_seconds=5.0)
        assert read.error is None
        assert read.classifiers == {"formulary": formulary.content_hash}
        signals = msgspec.structs.replace(given, items=given.items + read.items)
        now = datetime(2026, 1, 5, 12, tzinfo=UTC)
        return decide(policy, signals, request, Caller(), prompt_tokens=9, now=now).mode

    assert await mode_of("Write a function for the dose of Warfarin.") == Mode.STANDARD
    assert await mode_of("Write a function for the area of a circle.") == Mode.SPECULATIVE


def test_the_classifier_recipe_keeps_the_contract() -> None:
    formulary = extensions.build("classifiers", "formulary", {})
    checks = classifier_contract
    for text in checks.TEXTS.values():
        checks.test_any_text_gives_signals_with_probabilities_and_honest_counts(formulary, text)
    checks.test_the_same_request_gives_the_same_reading(formulary)
    checks.test_eight_threads_at_once_get_what_one_gets("formulary")
    checks.test_the_content_hash_is_there_and_does_not_change("formulary")


@pytest.mark.parametrize("name", KEEPING_THE_CONTRACT)
async def test_the_backend_recipe_keeps_the_contract(name: str) -> None:
    check = KEEPING_THE_CONTRACT[name]
    by_mode = "mode" in inspect.signature(check).parameters
    for mode in Mode if by_mode else [None]:
        made = extensions.build("backends", "echo", {}, name=backend_contract.NAME)
        await (check(made, mode) if mode else check(made))
        await made.aclose()


def test_the_contract_of_backends_is_not_empty() -> None:
    assert len(KEEPING_THE_CONTRACT) >= 12


async def test_the_backend_recipe_says_the_last_message_back(backend: Backend) -> None:
    generation = await backend_contract.start(backend, text="Hello there.")

    assert backend_contract.text_of(await backend_contract.read(generation)) == (
        "You said: Hello there."
    )


async def test_the_backend_recipe_refuses_what_it_cannot_do() -> None:
    echo: Backend = extensions.build("backends", "echo", {"max_running": 1})
    await backend_contract.start(echo)

    with pytest.raises(QueueFull):
        await backend_contract.start(echo)
    with pytest.raises(UnsupportedParameter):
        await echo.prepare(ChatRequest("echo", prompt=(1, 2)))


async def test_the_backend_recipe_keeps_prompt_and_answer_within_its_context() -> None:
    echo: Backend = extensions.build("backends", "echo", {"max_length": 8})
    generation = await backend_contract.start(echo, text="one two three four five")

    last = (await backend_contract.read(generation))[-1]

    assert (last.finish_reason, last.usage and last.usage.completion_tokens) == ("length", 3)


def test_the_draft_source_recipe_follows_each_token_and_forgets_its_rows() -> None:
    bigram = extensions.build("draft_sources", "bigram", {})
    tokens = [1, 2, 3, 1]
    other = DraftRequest(8, [5], 4)

    drafts = bigram.propose([DraftRequest(7, tokens, 5), other])
    tokens += [4, 1]
    later = bigram.propose([DraftRequest(7, tokens, 3)])
    bigram.forget(7)
    afresh = bigram.propose([DraftRequest(7, [1], 3)])

    assert [draft.token_ids for draft in drafts] == [(2, 3, 1, 2, 3), ()]
    assert [draft.token_ids for draft in later] == [(4, 1, 4)]
    assert [draft.token_ids for draft in afresh] == [()]
    assert {draft.source for draft in drafts} == {"bigram"}


def test_the_verifier_recipe_emits_the_first_tokens_that_coupled_would() -> None:
    smooth = extensions.build("verifiers", "smooth", {})
    scores = torch.arange(24, dtype=torch.float64).reshape(6, 4).sin()
    choices = Greedy().choose(scores, 0)
    right = Draft(tuple(choices[:5]), "bigram")
    wrong = Draft((choices[0], (choices[1] + 1) % 4), "bigram")

    (even,) = smooth.verify(scores, [DraftedRow(right, Greedy(), 0)])
    assert even == Verdict(tuple(choices[:4]), 3)
    for noise in (Greedy(), GumbelNoise(3)):
        for draft in (NO_DRAFT, wrong):
            given = scores[: len(draft) + 1]
            rows = [DraftedRow(draft, noise, 2)]
            assert CoupledVerifier().verify(given, rows) == smooth.verify(given, rows)


class Gullible:
    """Lets every draft token stand."""

    name = "gullible"
    exact = True

    def verify(self, scores: Tensor, rows: Sequence[DraftedRow]) -> list[Verdict]:
        (row,) = rows
        count = len(row.draft)
        (last,) = row.noise.choose(scores[count:], row.position + count)
        return [Verdict((*row.draft.token_ids, last), count)]


def test_the_proof_on_the_page_holds_and_would_find_a_fault() -> None:
    (source,) = [block for block in blocks(EXTENDING, "python") if "enumerate_law(" in block]
    proof: dict[str, Any] = {"__name__": "proof"}
    exec(source, proof)

    proof["test_the_law_is_the_target_s_own"]()
    proof["SmoothVerifier"] = lambda max_tokens: Gullible()
    with pytest.raises(AssertionError):
        proof["test_the_law_is_the_target_s_own"]()


def test_the_files_of_the_page_name_the_recipes_and_are_valid(tmp_path: Path) -> None:
    *settings, rule = blocks(EXTENDING, "yaml")
    path = tmp_path / "draftgate.yaml"
    path.write_text("\n".join(settings), encoding="utf-8")

    loaded = config.load(path)
    policy = parse_policy(
        f"{DEFAULT_POLICY.rstrip()}\n{rule}\n",
        "page",
        verifiers=extensions.names("verifiers"),
        draft_sources=extensions.names("draft_sources"),
    )

    assert set(loaded.classifiers) <= set(extensions.names("classifiers"))
    assert "formulary" in loaded.classifiers
    options = loaded.audit.text.maskers["names"]
    masked = extensions.build("maskers", "names", options).mask("grace murray has a cold")
    assert masked == ("[name] has a cold", {"name": 1})
    (section,) = loaded.backends.values()
    assert extensions.build("backends", section.type, section.options, name="mine").status.ready
    decision = policy.rules[-1].decision
    assert decision.draft is not None
    assert (decision.draft.source, decision.verifier) == ("bigram", "smooth")
