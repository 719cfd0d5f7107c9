"""What a request says about the form of its answer, in OpenAI's words and in vLLM's, as one `Grammar`.

Whether a schema can be enforced is the backend's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.api.schemas import ResponseFormat, SamplingFields
from gateway.errors import InvalidRequest, UnsupportedParameter, cut
from gateway.types import Grammar

_ANY_OBJECT = '{"type":"object"}'


def grammar_of(wire: SamplingFields) -> Grammar | None:
    """The one grammar of a request; None where its answer is free text.

    Raises InvalidRequest for two of them, and for what cannot go with one.
    """
    found = [*_openai(wire.response_format), *_vllm(wire)]
    if not found:
        return None
    if len(found) > 1:
        names = " and ".join(repr(grammar.param) for grammar in found[:2])
        raise InvalidRequest(
            f"{names} both say what the answer may be; send one.", param=found[1].param
        )
    refuse_ends(wire)
    return found[0]


def refuse_ends(wire: SamplingFields) -> None:
    """Raise InvalidRequest for what moves the end of an answer that has a form to keep."""
    for name in ("min_tokens", "ignore_eos"):
        if getattr(wire, name):
            raise InvalidRequest(
                f"{name!r} cannot go with a constrained answer, which ends where its form does.",
                param=name,
            )


def _openai(wanted: ResponseFormat | None) -> Iterator[Grammar]:
    param = "response_format"
    if wanted is None or wanted.type == "text":
        return
    if wanted.type == "json_object":
        yield Grammar("json_object", _ANY_OBJECT, param)
    elif wanted.type == "json_schema":
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            raise InvalidRequest(
                "'response_format' of type 'json_schema' needs 'json_schema': {'schema': {…}}.",
                param=f"{param}.json_schema.schema",
                code="missing_required_parameter",
            )
        yield Grammar("json_schema", _text(wanted.json_schema.schema), param)
    else:
        raise UnsupportedParameter(
            f"The response_format {cut(wanted.type)!r} is not supported; known: text, json_object, "
            "json_schema.",
            param=param,
        )


def _vllm(wire: SamplingFields) -> Iterator[Grammar]:
    wanted = wire.structured_outputs
    if wanted is not None:
        if wanted.json_object:
            yield Grammar("json_object", _ANY_OBJECT, "structured_outputs")
        for field in ("json", "regex", "choice", "grammar"):
            yield from _given(field, getattr(wanted, field), "structured_outputs")
    for field in ("json", "regex", "choice", "grammar"):
        yield from _given(field, getattr(wire, f"guided_{field}"), f"guided_{field}")


def _given(field: str, value: Any, param: str) -> Iterator[Grammar]:
    if value is not None:
        kind = "json_schema" if field == "json" else field
        yield Grammar(kind, value if isinstance(value, str) else _text(value), param)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
