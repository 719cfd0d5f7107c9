"""The API's description of itself, and requests made up from it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

BODIES = {
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("post", "/v1/responses"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/count_tokens"),
    ("post", "/v1/decisions/explain"),
    ("post", "/v1/decisions/{decision_id}/feedback"),
    ("put", "/v1/policy"),
    ("post", "/v1/policy/validate"),
    ("post", "/v1/policy/rollback"),
    ("post", "/v1/policy/compare"),
    ("post", "/v1/evidence/{cell}/clear"),
}
CONFORMS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BOUNDED = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def document(server: Any) -> Any:
    return server.get("/openapi.json").json()


def operations(document: Any) -> Any:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def test_the_document_is_valid_openapi_3_1(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(document).validate()
    for _, _, operation in operations(document):
        for place in (operation.get("requestBody", {}), *operation["responses"].values()):
            for media in place.get("content", {}).values():
                jsonschema.Draft202012Validator.check_schema(media["schema"])


def test_every_route_that_reads_a_body_describes_it(document: Any) -> None:
    found = {(m, path) for m, path, operation in operations(document) if "requestBody" in operation}

    assert found == BODIES
    for method, path in found:
        body = document["paths"][path][method]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        assert body["required"]
        assert schema["required"]
        assert schema["properties"]


def test_every_answer_has_a_shape_and_every_error_the_same_one(document: Any) -> None:
    for method, path, operation in operations(document):
        responses = operation["responses"]
        for answer in responses.values():
            assert all(media["schema"] for media in answer["content"].values()), (method, path)
        assert {"4XX", "5XX"} <= responses.keys()
        if path != "/readyz":
            error = responses["4XX"]["content"]["application/json"]["schema"]
            fields = ["message", "type", "param", "code"]
            if path.startswith("/v1/messages"):
                fields[:2] = ["type", "message"]
            assert list(error["properties"]["error"]["properties"]) == fields


def test_what_is_streamed_is_described_beside_what_is_not(document: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/event-stream"}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_whatever_is_asked_the_answer_is_as_described(
    server: Any, document: Any, mode: GenerationMode
) -> None:
    asked = set()

    def conforms(case: Any) -> None:
        if isinstance(case.body, dict) and "model" in case.body and mode.is_positive:
            case.body["model"] = "scripted"
        case.call_and_validate(base_url=server.url, checks=CONFORMS)
        asked.add((case.method.lower(), case.path))

    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        if mode.is_negative and (operation.method, operation.path) not in BODIES:
            continue  # there is nothing to get wrong
        cases = operation.as_strategy(generation_mode=mode)
        BOUNDED(given(case=cases)(conforms))()

    assert asked >= BODIES
