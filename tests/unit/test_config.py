from __future__ import annotations

from pathlib import Path

import pytest

from gateway import config
from gateway.config import BackendConfig, GatewayConfig
from gateway.errors import ConfigError
from gateway.routing.policy import load as load_policy

VARIABLES = ("CONFIG", "MODEL", "POLICY", "HOST", "PORT", "DATABASE_URL", "CACHE")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(f"DRAFTGATE_{variable}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "draftgate.yaml"
    path.write_text(text)
    return path


def problem_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    return str(caught.value)


def test_every_default_works_without_a_file(tmp_path: Path) -> None:
    loaded = config.load()

    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 8080)
    assert {"local": BackendConfig("local")} == loaded.backends
    assert f"sqlite:///{tmp_path}/state/draftgate/decisions.db" == loaded.audit.url
    assert loaded.audit.required
    assert loaded.auth.keys == ()


def test_the_default_policy_is_a_valid_policy() -> None:
    path = config.load().policy

    assert path is not None
    assert load_policy(path).name == "default"


def test_a_file_is_found_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTGATE_CONFIG", str(write(tmp_path, "server: {port: 9001}")))

    assert config.load().server.port == 9001


def test_a_given_path_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTGATE_CONFIG", "/nowhere.yaml")

    assert config.load(write(tmp_path, "server: {port: 9002}")).server.port == 9002


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path,
        "server: {host: 10.0.0.1, port: 9003}\npolicy: mine.yaml\n"
        "backends: {a: {type: scripted}, b: {type: local, options: {model: x, dtype: fp32}}}\n",
    )
    for name, value in {
        "HOST": "::1",
        "PORT": "9004",
        "POLICY": "/etc/other.yaml",
        "MODEL": "/models/mine",
        "DATABASE_URL": "sqlite:////tmp/x.db",
        "CACHE": "/var/cache/models",
    }.items():
        monkeypatch.setenv(f"DRAFTGATE_{name}", value)

    loaded = config.load(path)

    assert (loaded.server.host, loaded.server.port) == ("::1", 9004)
    assert Path("/etc/other.yaml") == loaded.policy
    assert loaded.audit.url == "sqlite:////tmp/x.db"
    assert loaded.backends["a"].options == {}
    assert loaded.backends["b"].options == {
        "model": "/models/mine",
        "dtype": "fp32",
        "cache": "/var/cache/models",
    }


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(f"DRAFTGATE_{variable}", "")

    assert config.load().server.port == 8080


@pytest.mark.parametrize("port", ["http", "-1", "65536", "80.5", "８０"])
def test_a_port_that_is_none_is_named(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGATE_PORT", port)

    with pytest.raises(ConfigError, match=r"DRAFTGATE_PORT: .* is no port \(a number from 0"):
        config.load()


def test_a_policy_path_in_the_file_is_relative_to_the_file(tmp_path: Path) -> None:
    assert tmp_path / "mine.yaml" == config.load(write(tmp_path, "policy: mine.yaml")).policy
    assert Path("/etc/x.yaml") == config.load(write(tmp_path, "policy: /etc/x.yaml")).policy


def test_a_contract_path_in_the_file_is_relative_to_the_file(tmp_path: Path) -> None:
    loaded = config.load(write(tmp_path, "classification: {contract: mine.json}"))

    assert tmp_path / "mine.json" == loaded.classification.contract


def test_all_problems_of_a_file_are_told_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path, "server:\n  prot: 80\n  host: 7\naudit: {required: maybe}\n")

    message = problem_of(path)

    assert f"{path}:2:3: " in message
    assert "port" in message
    assert f"{path}:3:9: " in message
    assert f"{path}:4:19: " in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {port: 70000}", "port"),
        ("server: {max_body_bytes: 1}", "max_body_bytes"),
        ("backends: {}", "backends"),
        ("backends: {x: {options: {}}}", "missing field 'type'"),
        ("auth: {keys: [{id: me, sha256: secret}]}", "sha256"),
        ("log: {level: loud}", "level"),
        ("server: {port: 1}\nserver: {port: 2}", "duplicate key 'server'"),
        ("server: [", ":1:"),
        ("- 1", "mapping"),
    ],
)
def test_a_wrong_value_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)

    message = problem_of(path)

    assert str(path) in message
    assert expected in message


def test_two_keys_may_share_neither_id_nor_digest(tmp_path: Path) -> None:
    digests = ("a" * 64, "b" * 64)
    same_id = f"auth: {{keys: [{{id: x, sha256: {digests[0]}}}, {{id: x, sha256: {digests[1]}}}]}}"
    same_digest = (
        f"auth: {{keys: [{{id: x, sha256: {digests[0]}}}, "
        f"{{id: y, sha256: {digests[0].upper()}}}]}}"
    )

    assert "two keys have the same id 'x'" in problem_of(write(tmp_path, same_id))
    assert "two keys have the same sha256" in problem_of(write(tmp_path, same_digest))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.yaml'}: no such file" in problem_of(tmp_path / "none.yaml")


def test_a_model_without_a_local_backend_is_an_error() -> None:
    scripted = GatewayConfig(backends={"a": BackendConfig("scripted")})

    with pytest.raises(ConfigError, match="no backend of type local"):
        config.override(scripted, model="/models/mine")


def test_an_override_leaves_the_rest_alone() -> None:
    before = GatewayConfig()

    assert before == config.override(before)
    assert config.override(before, log_level="debug").log.level == "debug"
    assert config.override(before, port=0).server.port == 0
