"""`check_server`: looks at one server, asks it what it honours and tries what is known to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from gateway.backends.openai.backend import client_for
from gateway.backends.openai.checks import CHECKS, Result, Server, against, run
from gateway.backends.openai.inspection import Finding, Place, inspect
from gateway.backends.openai.probing import BadAnswer, asker
from gateway.backends.openai.settings import Pace
from gateway.backends.openai.wire import authorization
from gateway.errors import Unavailable

_SECONDS = 60.0


class Report(msgspec.Struct, frozen=True):
    """What one server is, and how it did."""

    url: str
    model: str
    finding: Finding
    has_drafted: bool
    """After the checks, which is when one that speculates has."""
    results: tuple[Result, ...]

    @property
    def failed(self) -> bool:
        """Whether a check has."""
        return any(result.verdict == "failed" for result in self.results)


async def check_server(
    url: str,
    model: str,
    *,
    key: str | None = None,
    twin: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Raises Unavailable for a server that does not answer. ``twin`` is the URL of another one."""
    urls = [url] if twin is None else [url, twin]
    async with client_for(urls, Pace(), 32) as client:
        place = Place.of(url)
        # Both at once: what the checks have found must not be lost to a twin that is down.
        for each in urls:
            await _look(client, each, model, key)
        server, results = _server(client, place, model, key), []
        total = len(CHECKS) + (twin is not None)
        for name in CHECKS:
            results.append(await _run(name, server))
            progress(len(results), total)
        if twin is not None:
            results.append(await against(server, _server(client, Place.of(twin), model, key)))
            progress(total, total)
        finding = await _look(client, url, model, key)
    return Report(url, model, finding, finding.has_drafted, tuple(results))


async def _look(client: httpx.AsyncClient, url: str, model: str, key: str | None) -> Finding:
    found = await inspect(client, Place.of(url), model, authorization(key), Pace().connect_seconds)
    if not found.up:
        raise Unavailable(f"{url} cannot be checked: {found.detail}.")
    return found


async def _run(name: str, server: Server) -> Result:
    try:
        return await run(name, server)
    except httpx.HTTPError as error:
        detail = f"the connection broke: {type(error).__name__}: {error}".rstrip(": ")
        return Result(name, "failed", detail)


def _server(client: httpx.AsyncClient, place: Place, model: str, key: str | None) -> Server:
    async def stream(fields: Mapping[str, Any]) -> bytes:
        body = {"model": model, "temperature": 0, "stream": True, **fields}
        answer = await client.post(
            f"{place.api}/chat/completions",
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json", **authorization(key)},
            timeout=_SECONDS,
        )
        if answer.status_code != 200:
            raise BadAnswer(f"{place.root} answered {answer.status_code} to a stream")
        return answer.content

    return Server(asker(client, place, model, key), stream)
