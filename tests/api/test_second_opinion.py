"""A probe that sees what the classifier missed: through the API, into the log, and in no token."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from decoders.loader import load
from gateway.cli.entries import parts
from gateway.config import BackendConfig, GatewayConfig
from gateway.probe import ProbeWeights
from gateway.types import DOMAINS, Mode
from tests.live import LiveServer

POLICY = """\
version: 1
name: tests
rules:
  - {id: medical, ban: [speculative, hybrid], when: {domain: {is: medical, min_probability: 0.9}}}
  - id: lossy
    when: {keyword: [lossy]}
    decide: {mode: speculative, verifier: typical, allow_lossy: true, max_distortion: 1.0}
  - {id: code, when: {keyword: [function]}, decide: {mode: speculative}}
"""
ASKED = "A function. A function. A function. A function."


def _probe(loaded, medical: float) -> bytes:
    intercept = np.full(len(DOMAINS), -5.0, np.float32)
    intercept[DOMAINS.index("medical")] = medical
    return ProbeWeights(
        model=loaded.name,
        model_weights=loaded.weights,
        layers=(1,),
        projection=np.zeros((1, 32, len(DOMAINS)), np.float32),
        mixing=np.ones((2, len(DOMAINS)), np.float32),
        intercept=intercept,
        window=16,
        step=8,
        prefix=(),
    ).dump()


@pytest.fixture(scope="module")
def servers(
    make_config: Callable[..., GatewayConfig],
    launch: type[LiveServer],
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, LiveServer]]:
    """One without a probe, one whose probe sees medicine everywhere, one whose never does."""
    folder = tmp_path_factory.mktemp("probes")
    loaded = load(str(tiny_model), device="cpu", num_slots=1, max_length=32)
    running: dict[str, LiveServer] = {}
    options = {"model": str(tiny_model), "device": "cpu", "dtype": "float32", "threads": 1}
    options |= {"num_slots": 4, "served_name": "tiny", "cost_model": "off"}
    try:
        for name, medical in (("without", None), ("medical", 5.0), ("harmless", -5.0)):
            probe = "off"
            if medical is not None:
                path = folder / f"{name}.npz"
                path.write_bytes(_probe(loaded, medical))
                probe = str(path)
            backend = BackendConfig("local", {**options, "probe": probe})
            config = msgspec.structs.replace(
                make_config(policy=POLICY), backends={"local": backend}, classifiers=("domain",)
            )
            running[name] = launch(config).__enter__()
        yield running
    finally:
        for live in running.values():
            live.__exit__()


def ask(server: LiveServer, text: str = ASKED, **options):
    body = {"model": "tiny", "seed": 3, "temperature": 0, "max_tokens": 24, **options}
    response = server.post({**body, "messages": [{"role": "user", "content": text}]})
    assert response.status_code == 200, response.text
    entry = server.entry(response.headers["x-draftgate-decision-id"])
    return response, entry


def texts(response) -> list[str]:
    return [choice["message"]["content"] for choice in response.json()["choices"]]


@pytest.mark.parametrize("options", [{}, {"n": 3, "temperature": 1.0}], ids=["one", "choices"])
@pytest.mark.parametrize("text", [ASKED, f"lossy {ASKED}"], ids=["exact", "lossy"])
def test_a_ban_that_only_the_probe_sees_takes_every_draft_away(servers, text, options):
    response, entry = ask(servers["medical"], text, **options)
    run = entry.outcome.execution

    assert entry.decision.decision.mode is Mode.SPECULATIVE
    assert entry.decision.signals.score("domain", "medical") < 0.9
    assert (run.mode, run.verifier, run.verifier_class) == (Mode.STANDARD, "coupled", "exact")
    assert (run.num_drafts, run.num_draft_tokens) == (0, 0)
    assert (run.tightened_by, run.opinion.source, run.opinion.rule) == (
        "probe",
        "probe",
        "medical",
    )
    assert run.opinion.scores["medical"] > 0.9
    assert entry.outcome.attestation == "ok"
    plain, _ = ask(servers["without"], ASKED if text == ASKED else text, **options)
    standard = ask_standard(servers["without"], text, **options)
    assert texts(response) == texts(standard)
    if text == ASKED:
        assert texts(response) == texts(plain)


def ask_standard(server: LiveServer, text: str, **options):
    body = {"model": "tiny", "seed": 3, "temperature": 0, "max_tokens": 24, **options}
    messages = [{"role": "user", "content": text}]
    return server.post({**body, "messages": messages}, x_draftgate_mode="standard")


def test_a_stream_is_tightened_too(servers):
    server = servers["medical"]
    body = {"model": "tiny", "seed": 3, "temperature": 0, "max_tokens": 24, "stream": True}
    response = server.post({**body, "messages": [{"role": "user", "content": ASKED}]})
    entry = server.entry(response.headers["x-draftgate-decision-id"])

    assert entry.outcome.execution.tightened_by == "probe"
    assert entry.outcome.execution.num_draft_tokens == 0


def test_a_second_opinion_that_agrees_changes_nothing(servers):
    response, entry = ask(servers["harmless"])
    run = entry.outcome.execution

    assert (run.mode, run.tightened_by, run.opinion.rule) == (Mode.SPECULATIVE, None, None)
    assert run.num_draft_tokens > 0
    assert run.opinion.scores["medical"] < 0.1
    assert texts(response) == texts(ask(servers["without"])[0])


def test_what_was_decided_standard_has_both_opinions(servers):
    _, entry = ask(servers["medical"], "Good morning.")

    assert entry.decision.decision.mode is Mode.STANDARD
    assert entry.outcome.execution.opinion.scores["medical"] > 0.9
    assert entry.outcome.execution.tightened_by is None
    assert entry.outcome.attestation == "ok"


def test_it_is_counted(servers):
    ask(servers["medical"])

    metrics = servers["medical"].get("/metrics").text
    assert 'draftgate_tightened_total{by="probe"' in metrics
    assert 'draftgate_tightened_total{by="probe"' not in servers["harmless"].get("/metrics").text


def test_people_are_printedboth_opinions(servers):
    _, entry = ask(servers["medical"])
    console = Console(width=240, file=io.StringIO())
    with console.capture() as printed:
        console.print(*parts(entry))
    shown = printed.get()

    assert "medical 0.993" in shown
    assert "tightened to standard, because medical bans what was decided" in shown
