"""compose.yaml and everything under examples/ that is started as it stands."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway import config, extensions
from gateway.backends.openai.watch import metrics as upstream_metrics
from gateway.cell import Cell
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.classification.drift import ScoreWindow
from gateway.evidence.gauges import Gauges
from gateway.evidence.state import CellState
from gateway.routing import policy
from gateway.telemetry import Telemetry
from tests.records import decision_record, outcome_record

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
OBSERVE = EXAMPLES / "observe"
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
CONFIGURATIONS = (EXAMPLES / "vllm.yaml", KUBERNETES / "draftgate.yaml")


def manifests() -> list[dict[str, Any]]:
    paths = sorted(KUBERNETES.glob("*.yaml"))
    loaded = [d for path in paths for d in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return [
        document for document in loaded if document.get("kind", "Kustomization") != "Kustomization"
    ]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in manifests() if m["kind"] == kind}


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_the_configurations_load_and_their_backends_take_their_options(path: Path) -> None:
    loaded = config.load(path)

    ((name, section),) = loaded.backends.items()
    backend = extensions.build("backends", section.type, section.options, name=name)
    assert [model.id for model in backend.models] == ["my-model"]
    assert set(section.options["arms"]) == {"standard", "speculative"}


def test_every_policy_under_examples_is_valid() -> None:
    paths = [KUBERNETES / "policy.yaml", *(EXAMPLES / "policies").glob("*[!t].yaml")]

    assert len(paths) >= 2
    for path in paths:
        policy.load(path)


# ---- compose.yaml -----------------------------------------------------------------------------------


def test_without_a_profile_only_the_gateway_starts() -> None:
    services = COMPOSE["services"]

    assert [name for name, service in services.items() if not service.get("profiles")] == [
        "gateway"
    ]
    profiles = {profile for s in services.values() for profile in s.get("profiles", ())}
    assert profiles == {"local", "vllm", "observe"}


def test_every_port_is_published_to_this_machine_alone_and_once() -> None:
    ports = [port for s in COMPOSE["services"].values() for port in s.get("ports", ())]

    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len(set(ports)) == len(ports)
    assert not any("ports" in s for name, s in COMPOSE["services"].items() if "vllm-" in name[:5])


def test_what_is_mounted_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source


def test_no_two_gateways_share_a_volume_with_a_log_in_sqlite() -> None:
    gateways = [s for name, s in COMPOSE["services"].items() if name.startswith("gateway")]
    volumes = [v for s in gateways for v in s["volumes"] if v.endswith(":/data")]

    assert len(set(volumes)) == len(volumes) == len(gateways)


def test_the_environment_of_the_gateway_before_vllm_goes_with_its_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model for a local backend that is not there would keep it from starting."""
    variables = COMPOSE["services"]["gateway-vllm"]["environment"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    loaded = config.load(EXAMPLES / "vllm.yaml")

    assert loaded.auth.allow_anonymous
    assert loaded.policy == Path("/policies/default.yaml")
    mounts = COMPOSE["services"]["gateway-vllm"]["volumes"]
    assert f"./examples/vllm.yaml:{variables['DRAFTGATE_CONFIG']}:ro" in mounts


def test_the_arms_of_the_gateway_are_services_and_speculate_as_their_names_say() -> None:
    arms = config.load(EXAMPLES / "vllm.yaml").backends["fleet"].options["arms"]
    for arm, options in arms.items():
        for url in options["urls"]:
            command = COMPOSE["services"][urlsplit(url).hostname]["command"]
            assert ("--speculative-config" in command) is (arm == "speculative")


# ---- Kubernetes -------------------------------------------------------------------------------------


def test_each_address_of_an_arm_is_a_pod_that_speculates_as_its_arm_says() -> None:
    sets = of_kind("StatefulSet")
    arms = config.load(KUBERNETES / "draftgate.yaml").backends["fleet"].options["arms"]
    for arm, options in arms.items():
        pods = sets[f"arm-{arm}"]
        names = [f"arm-{arm}-{i}.arm-{arm}" for i in range(pods["spec"]["replicas"])]
        assert [urlsplit(url).hostname for url in options["urls"]] == names
        (container,) = pods["spec"]["template"]["spec"]["containers"]
        assert ("--speculative-config" in container["args"]) is (arm == "speculative")
        assert of_kind("Service")[f"arm-{arm}"]["spec"]["clusterIP"] == "None"


def test_only_gateways_reach_the_arms() -> None:
    network = of_kind("NetworkPolicy")["arms"]["spec"]
    (rule,) = network["ingress"]
    chosen = network["podSelector"]["matchLabels"].items()
    allowed = [source["podSelector"]["matchLabels"] for source in rule["from"]]

    for arm in of_kind("StatefulSet").values():
        assert chosen <= arm["spec"]["template"]["metadata"]["labels"].items()
    gateway = of_kind("Deployment")["draftgate"]["spec"]["template"]["metadata"]["labels"]
    assert allowed == [gateway]


def test_gateways_are_probed_are_two_and_have_their_secrets_by_reference() -> None:
    deployment = of_kind("Deployment")["draftgate"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    variables = {v["name"]: v for v in container["env"]}

    assert deployment["replicas"] >= 2
    assert of_kind("PodDisruptionBudget")["draftgate"]["spec"]["minAvailable"] >= 1
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for name in ("DRAFTGATE_DATABASE_URL", "DRAFTGATE_AUDIT_KEY", "DRAFTGATE_KEY_SECRET"):
        assert "secretKeyRef" in variables[name]["valueFrom"]
    grace = deployment["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > config.load(KUBERNETES / "draftgate.yaml").server.shutdown_seconds


def test_every_path_of_the_configuration_is_mounted() -> None:
    loaded = config.load(KUBERNETES / "draftgate.yaml")
    (container,) = of_kind("Deployment")["draftgate"]["spec"]["template"]["spec"]["containers"]
    folders = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    generated = {name for entry in files["configMapGenerator"] for name in entry["files"]}

    assert loaded.policy is not None
    assert str(loaded.policy.parent) in folders
    assert str(Path(str(loaded.auth.store)).parent) in folders
    assert loaded.policy.name in generated
    assert all((KUBERNETES / name).is_file() for name in [*generated, *files["resources"]])


@pytest.mark.skipif(which("kubectl") is None, reason="needs kubectl")
def test_kustomize_takes_the_folder() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)], check=True, capture_output=True, text=True
    ).stdout

    kinds = sorted(document["kind"] for document in yaml.safe_load_all(built))
    assert kinds == sorted([*(m["kind"] for m in manifests()), "ConfigMap", "ConfigMap"])


# ---- metrics ----------------------------------------------------------------------------------------


def served() -> dict[str, set[str]]:
    """The samples that a gateway can have, each with its labels."""
    telemetry = Telemetry(models=["small"], drift=ScoreWindow(read_contract(SHIPPED_CONTRACT)))
    outcome = outcome_record()
    tightened = msgspec.structs.replace(outcome.execution, tightened_by="probe")
    telemetry.observe(decision_record(), msgspec.structs.replace(outcome, execution=tightened))
    telemetry.set_policy("default", "f" * 64)
    cell = Cell("code", "speculative", "coupled", "small", "suffix")
    Gauges(telemetry.registry).show([CellState(cell=cell)], demoted=0)
    replicas, alarms = upstream_metrics(telemetry.registry)
    replicas.labels("twins", "standard", "up").set(1)
    alarms.labels("twins", "standard").inc()
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(telemetry.render().decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def expressions() -> Iterator[str]:
    dashboard = json.loads((OBSERVE / "grafana" / "draftgate.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (note["expr"] for note in dashboard["annotations"]["list"])
    for group in yaml.safe_load((OBSERVE / "alerts.yaml").read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_every_metric_and_label_of_the_dashboard_and_the_alerts_exists() -> None:
    samples = served()
    seen = list(expressions())

    assert len(seen) > 20
    for expression in seen:
        names = set(re.findall(r"draftgate_\w+", expression))
        assert names, expression
        assert names <= set(samples), expression
        grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", expression)).replace(" ", "")
        labels = {label for label in grouped.split(",") if label}
        labels |= set(re.findall(r"(\w+)=", expression.replace("==", "")))
        assert labels <= set().union(*(samples[name] for name in names)), expression


def test_what_the_metrics_page_says_to_alarm_on_has_an_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    wanted = re.findall(r"^\| `(draftgate_\w+)` .*\*\*(?:alarm|look)", page, re.MULTILINE)
    rules = yaml.safe_load((OBSERVE / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0][
        "rules"
    ]
    watched = {name for rule in rules for name in re.findall(r"draftgate_\w+", rule["expr"])}

    assert len(wanted) >= 8
    assert set(wanted) <= watched


def test_panels_have_places_of_their_own() -> None:
    dashboard = json.loads((OBSERVE / "grafana" / "draftgate.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
