"""What ``/openapi.json`` says of a route beyond what the framework finds out by itself.

Bodies are read and errors are shaped by our own code, so that it knows of neither. Schemas are
written out in place: nothing is added to the components of a host application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema

from gateway.api.errors import ErrorBody

JSON = "application/json"
EVENTS = "text/event-stream"
_REF = "#/"


def described(
    body: Any = None, *, answer: Any = None, events: Any = None, errors: Any = ErrorBody
) -> type[Operation]:
    """For a handler's ``operation_class``: the types of its body, answer, events and errors.

    None for the body: there is none; for the answer: what the handler's annotation says.
    """
    given = _media(body, JSON)
    answers = {**_media(answer, JSON), **_media(events, EVENTS)}
    failed = _media(errors, JSON)

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            if given:
                self.request_body = RequestBody(content=given, required=True)
            responses = {k: v for k, v in (self.responses or {}).items() if k != "400"}
            if answers:
                first = next(iter(responses.values()))
                first = cast(OpenAPIResponse, first)
                first.content = dict(answers)
            for status, said in (
                ("4XX", "What is wrong with the request"),
                ("5XX", "What the server could not do"),
            ):
                responses[status] = OpenAPIResponse(description=said, content=dict(failed))
            self.responses = responses

    return Described


def schema_of(type: Any) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a msgspec type, without references."""
    (found,), definitions = msgspec.json.schema_components([type], ref_template=_REF + "{name}")
    return cast(dict[str, Any], _inlined(found, definitions))


def _media(type: Any, media_type: str) -> dict[str, OpenAPIMediaType]:
    if type is None:
        return {}
    # The framework writes a mapping down as it is; its own Schema class knows fewer keywords.
    return {media_type: OpenAPIMediaType(schema=cast(Schema, schema_of(type)))}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].removeprefix(_REF)], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
