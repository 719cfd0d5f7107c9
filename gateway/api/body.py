"""Reads a request body: raw bytes to a wire struct, or an error that names the parameter at fault.

It does not use the framework's decoding, which takes ``"0.5"`` for a number and loses the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gateway.api.schemas import SamplingFields
from gateway.api.unsupported import NOTHING, refuse_unsupported
from gateway.errors import InvalidRequest, cut
from gateway.types import Sampling

S = TypeVar("S", bound=SamplingFields)

_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?P<key>key in )?`\$?\.?(?P<param>[^`]*)`)?", re.DOTALL)
_BOUND = re.compile(r"Expected `(?P<kind>int|float)`.* (?P<sign>[<>])=? ")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_ENUM = re.compile(r"(?<=Invalid enum value ['\"]).*(?=['\"]\Z)", re.DOTALL)
_SEED_BITS = 63


def decode(body: bytes) -> Mapping[str, Any]:
    """The fields of a body. Raises InvalidRequest when it is no JSON object."""
    if not body:
        raise InvalidRequest("The request has no body; send a JSON object.", code="invalid_json")
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(body, error) from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_type")
    return fields


def parse(
    fields: Mapping[str, Any], type: type[S], *, refused: Mapping[str, Sequence[Any]] = NOTHING
) -> S:
    """The fields as ``type``. ``refused`` adds to what is refused everywhere.

    Raises InvalidRequest or UnsupportedParameter, with the parameter's name where there is one.
    """
    refuse_unsupported(fields, served=type.__struct_fields__, own=refused)
    try:
        wire = msgspec.convert(fields, type)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    _check(wire)
    return wire


def sampling(wire: SamplingFields, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """The sampling knobs of ``wire``, with the defaults where it does not say."""
    given = {
        name: value
        for name in Sampling.__struct_fields__
        if (value := getattr(wire, name, None)) is not None
    }
    if max_tokens is not None and (wire.min_tokens or 0) > max_tokens:
        raise InvalidRequest("'min_tokens' is larger than 'max_tokens'.", param="min_tokens")
    stop = wire.stop or ()
    bias = wire.logit_bias or {}
    return Sampling(
        **given
        | {
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
            "stop_token_ids": tuple(wire.stop_token_ids or ()),
            "top_k": max(wire.top_k or 0, 0),
            "logit_bias": {_token_id(token): value for token, value in bias.items()},
        }
    )


def _malformed(body: bytes, error: Exception) -> InvalidRequest:
    """Say NaN and Infinity by name: some JSON libraries write them."""
    found: list[str] = []
    try:
        json.loads(body, parse_constant=found.append)
    except (ValueError, RecursionError):
        found.clear()
    if found:
        message = f"{found[0]} is not JSON; every number must be finite."
    elif isinstance(error, RecursionError):
        message = "The request body is nested too deeply."
    else:
        message = f"The request body is not valid JSON: {error}."
    return InvalidRequest(message, code="invalid_json")


def invalid(message: str) -> InvalidRequest:
    """Turn msgspec's message into one that says which parameter, and a code that says how."""
    match = _PLACE.fullmatch(message)
    what, param = (match["what"], match["param"]) if match else (message, None)
    what = _ENUM.sub(lambda value: cut(value[0]), what)
    if not param and (unknown := _UNKNOWN.fullmatch(what)):
        param, what = unknown[1], "no such parameter"
    bound = _BOUND.match(what)
    code = "invalid_value"
    if missing := re.search(r"missing required field `(\w+)`", what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        code, what = "missing_required_parameter", f"Missing required parameter: {param!r}."
    elif bound:
        kind = "integer" if bound["kind"] == "int" else "decimal"
        code = f"{kind}_{'below_min' if bound['sign'] == '>' else 'above_max'}_value"
    elif what.startswith("Expected `array` of length >="):
        code = "empty_array"
    elif ", got `" in what:
        code = "invalid_type"
    if code != "missing_required_parameter" and param:
        param = cut(param)
        what = f"Invalid value for {param!r}: {what[0].lower()}{what[1:].replace('`', '')}."
    return InvalidRequest(what, param=param or None, code=code)


def _check(wire: SamplingFields) -> None:
    if wire.stream_options is not None and not wire.stream:
        message = "'stream_options' needs 'stream': true."
        raise InvalidRequest(message, param="stream_options")
    if wire.seed is not None and not -(1 << _SEED_BITS) <= wire.seed < 1 << _SEED_BITS:
        raise InvalidRequest("'seed' must fit in 64 bits.", param="seed")


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(
            f"'logit_bias' has the key {cut(text)!r}; its keys are token ids, like \"1639\".",
            param="logit_bias",
        )
    return int(text)
