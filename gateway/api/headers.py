"""HTTP headers, in and out: ids, the decision, and nothing that could forge a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from litestar.connection import ASGIConnection

from gateway.errors import InvalidRequest
from gateway.exchange import new_id
from gateway.reply import Receipt
from gateway.routing.when import CREDENTIALS
from gateway.types import Decision, Mode

Connection = ASGIConnection[Any, Any, Any, Any]

MODE = "x-draftgate-mode"
TIMEOUT = "x-request-timeout"
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_MAX_TIMEOUT_SECONDS = 3600
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_UNSAFE = re.compile(r"[^\x20-\x7e]")
_STATE = "draftgate_request_id"


def request_id(connection: Connection) -> str:
    """The client's own ``x-request-id`` when it is sane, else a new one; stays the same."""
    known = connection.state.get(_STATE)
    if isinstance(known, str):
        return known
    given = connection.headers.get("x-request-id", "")
    chosen = given if _SANE_ID.fullmatch(given) else new_id("req")
    connection.state[_STATE] = chosen
    return chosen


def requested_mode(connection: Connection) -> Mode | None:
    """What ``x-draftgate-mode`` asks for. Raises InvalidRequest when it is no mode."""
    wish = connection.headers.get(MODE)
    if wish is None:
        return None
    try:
        return Mode(wish.strip().lower())
    except ValueError:
        known = ", ".join(Mode)
        message = f"The header {MODE} is {safe(wish)!r}; it may be: {known}."
        raise InvalidRequest(message, param=MODE) from None


def requested_timeout(connection: Connection) -> float | None:
    """The seconds of ``x-request-timeout``. Raises InvalidRequest when it is no number of them."""
    given = connection.headers.get(TIMEOUT)
    if given is None:
        return None
    if not _SECONDS.fullmatch(given) or not 0 < float(given) <= _MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(
            f"The header {TIMEOUT} is {safe(given)!r}; send seconds, up to {_MAX_TIMEOUT_SECONDS}.",
            param=TIMEOUT,
        )
    return float(given)


def visible(connection: Connection) -> Mapping[str, str]:
    """The request's headers without credentials, for the policy; repeated ones joined by commas."""
    headers: dict[str, str] = {}
    for name, value in connection.headers.multi_items():
        name = name.lower()
        if name not in CREDENTIALS:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def of_receipt(receipt: Receipt) -> dict[str, str]:
    """What every answer to a decided request says of its decision."""
    decision = receipt.decision
    return {
        "x-request-id": receipt.request_id,
        "x-draftgate-decision-id": receipt.decision_id,
        MODE: decision.mode.value,
        "x-draftgate-rule": safe(decision.rule),
        "x-draftgate-policy": safe(decision.policy_version),
        "x-draftgate-verifier": _verifier(decision),
    }


def _verifier(decision: Decision) -> str:
    lossy = decision.max_distortion is not None
    return f"{safe(decision.verifier)}; lossy" if lossy else safe(decision.verifier)


def safe(value: str) -> str:
    """``value`` as one short line of printable ASCII, whatever it was."""
    return _UNSAFE.sub("?", value)[:128].strip() or "?"
