"""Looks at a server from outside: is it up, what is it, and does it speculate?

A request cannot be told apart in a server's counters; but a server that has drafted nothing since
its start has drafted nothing for any request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

_KINDS = {"vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llama.cpp", "draftgate_": "draftgate"}
"""How the names of a server's metrics begin."""
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "draftgate": "draftgate"}
_DRAFTED = re.compile(
    r"^(?:vllm:spec_decode_num_(?:drafts|draft_tokens|accepted_tokens)(?:_total)?"
    r"|sglang:spec_accept_(?:length|rate)|llamacpp:[a-z_]*draft[a-z_]*|draftgate_draft_tokens_total)"
    r"(?:\{[^}]*\})?\s+(?P<value>\S+)",
    re.MULTILINE,
)
_MAX_BYTES = 16 * 1024 * 1024


class Finding(msgspec.Struct, frozen=True):
    """What one look has shown."""

    up: bool
    detail: str = ""
    """Why it is not."""
    kind: str = "unknown"
    """``vllm``, ``sglang``, ``llama.cpp``, ``draftgate`` or ``unknown``."""
    drafted: float | None = None
    """The largest of its counters of drafts; None where it shows none."""
    speculates: bool | None = None
    """What its configuration says; None where it does not say."""
    has_metrics: bool = False
    max_length: int | None = None

    @property
    def has_drafted(self) -> bool:
        """Whether it speculates, by its counters or by its own word."""
        return self.speculates is True or bool(self.drafted)

    @property
    def attests(self) -> bool:
        """Whether it would show that it speculates.

        vLLM has counters of drafts only where it speculates: that there are none says something
        only on a page of metrics that was seen.
        """
        shows_none = self.kind == "vllm" and self.has_metrics
        return self.speculates is not None or self.drafted is not None or shows_none

    @property
    def clears(self) -> bool:
        """Whether it is seen that it does not speculate, which is more than that it is not seen to."""
        return self.up and self.attests and not self.has_drafted


class Place(msgspec.Struct, frozen=True):
    """Where a server is."""

    root: str
    api: str

    @classmethod
    def of(cls, url: str) -> Place:
        """From a URL with or without ``/v1``."""
        base = url.rstrip("/")
        root = base.removesuffix("/v1")
        return cls(root, f"{root}/v1")


async def inspect(
    client: httpx.AsyncClient, place: Place, model: str, headers: Mapping[str, str], seconds: float
) -> Finding:
    """One look; never raises but for cancellation. ``seconds``: for each of its few pages, to its end."""
    asker = _Asker(client, headers, seconds)
    try:
        if (trouble := await _trouble(asker, place)) is not None:
            return Finding(up=False, detail=trouble)
        models, metrics = (
            await asker.json(f"{place.api}/models"),
            await asker.text(f"{place.root}/metrics"),
        )
        owner, length = _listed(models, model)
        kind = _kind(metrics) or _OWNERS.get(owner, "unknown")
        drafted = _drafted(metrics)
        speculates = await _word(asker, place, kind)
    except (httpx.HTTPError, TimeoutError) as error:
        return Finding(up=False, detail=f"{type(error).__name__}: {error}".rstrip(": "))
    return Finding(
        up=True,
        kind=kind,
        drafted=drafted,
        speculates=speculates,
        has_metrics=_kind(metrics) is not None,
        max_length=length,
    )


class _Asker:
    def __init__(
        self, client: httpx.AsyncClient, headers: Mapping[str, str], seconds: float
    ) -> None:
        self._client, self._headers, self._seconds = client, headers, seconds

    async def get(self, url: str) -> tuple[int, bytes]:
        """Status and body; empty where it is too long. A client's own timeouts are for each read."""
        body = bytearray()
        async with (
            asyncio.timeout(self._seconds),
            self._client.stream("GET", url, headers=dict(self._headers), timeout=None) as answer,
        ):
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > _MAX_BYTES:
                    return answer.status_code, b""
        return answer.status_code, bytes(body)

    async def text(self, url: str) -> str:
        status, body = await self.get(url)
        return body.decode(errors="replace") if status == 200 else ""

    async def json(self, url: str) -> Any:
        try:
            return msgspec.json.decode(await self.text(url) or "null")
        except (msgspec.MsgspecError, RecursionError):
            return None


async def _trouble(asker: _Asker, place: Place) -> str | None:
    """Why the server takes no work; None where it does."""
    status, _ = await asker.get(f"{place.root}/health")
    if status in (404, 405):  # it has no such page
        status, _ = await asker.get(f"{place.api}/models")
    if status in (401, 403):
        return f"it answers {status}: is the API key right?"
    return None if status < 400 else f"it answers {status}"


def _listed(models: Any, name: str) -> tuple[str, int | None]:
    """Who owns the model, and how long its context is."""
    data = models.get("data") if isinstance(models, dict) else None
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    row = next((row for row in rows if row.get("id") == name), rows[0] if rows else {})
    meta = row.get("meta")
    length = row.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return str(row.get("owned_by", "")), length if isinstance(length, int) and length > 0 else None


def _kind(metrics: str) -> str | None:
    return next(
        (
            kind
            for start, kind in _KINDS.items()
            if metrics.startswith(start) or f"\n{start}" in metrics
        ),
        None,
    )


def _drafted(metrics: str) -> float | None:
    values = []
    for match in _DRAFTED.finditer(metrics):
        try:
            values.append(float(match["value"]))
        except ValueError:
            continue
    return max(values, default=None)


async def _word(asker: _Asker, place: Place, kind: str) -> bool | None:
    """What the server's own description says of speculation."""
    if kind == "sglang":
        for page in ("get_server_info", "server_info"):
            info = await asker.json(f"{place.root}/{page}")
            if isinstance(info, dict) and "speculative_algorithm" in info:
                return info["speculative_algorithm"] not in (None, "", "NONE")
    if kind == "llama.cpp":
        # Only its yes counts: it has been seen to say none while drafting.
        props = await asker.json(f"{place.root}/props")
        return True if isinstance(props, dict) and _says_yes(props) else None
    return None


def _says_yes(props: Mapping[str, Any]) -> bool:
    settings = props.get("default_generation_settings")
    inner = settings if isinstance(settings, dict) else {}
    params = inner.get("params") if isinstance(inner.get("params"), dict) else {}
    said = [each.get("speculative.types") for each in (props, inner, params or {})]
    return inner.get("speculative") is True or any(
        isinstance(types, str) and types not in ("", "none") for types in said
    )
