from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_models_are_listed_in_the_openai_shape(start: Callable[..., Any]) -> None:
    live = start({"models": ["org/model-1", "b"]})

    body = live.get("/v1/models").json()

    assert list(body) == ["object", "data"]
    assert [model["id"] for model in body["data"]] == ["org/model-1", "b"]
    assert {"id", "object", "created", "owned_by", "max_model_len"} == set(body["data"][0])
    assert body["data"][0] == live.get("/v1/models/org/model-1").json()
    assert body["data"][0] == live.get("/v1/models/org%2Fmodel-1").json()


def test_an_unknown_model_is_a_404(server: Any) -> None:
    response = server.get("/v1/models/none")

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_health_tells_the_policy_and_the_backends(server: Any) -> None:
    assert server.get("/healthz").json() == {"status": "ok"}
    ready = server.get("/readyz").json()

    assert ready["status"] == "ready"
    assert ready["policy"]["name"] == "tests"
    assert len(ready["policy"]["hash"]) == 64
    assert ready["backends"]["demo"]["ready"]


def test_metrics_count_requests(start: Callable[..., Any]) -> None:
    live = start()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "write a function"}]}
    live.post(body)

    response = live.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'draftgate_decisions_total{mode="speculative",rule="code"} 1.0' in response.text
    assert "draftgate_policy_info{" in response.text


def test_the_api_describes_itself(server: Any) -> None:
    schema = server.get("/openapi.json").json()

    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(schema["paths"])
