"""What every answer bears, whatever it says: headers for browsers, and CORS where it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar, get

from gateway.api.edge import SECURITY_HEADERS
from gateway.config import GatewayConfig, ServerConfig
from gateway.plugin import GatewayPlugin

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
ORIGIN = "https://app.example.com"


def answers(live: Any) -> dict[str, httpx.Response]:
    return {
        "an answer": live.post(ASK),
        "a stream": live.post({**ASK, "stream": True}),
        "an error": live.post({**ASK, "model": "no"}),
        "no JSON": live.post(b"{"),
        "no path": live.get("/nowhere"),
        "no method": live.get("/v1/chat/completions"),
        "health": live.get("/healthz"),
        "readiness": live.get("/readyz"),
        "metrics": live.get("/metrics"),
        "the schema": live.get("/openapi.json"),
    }


def test_every_answer_has_the_headers_once(server: Any) -> None:
    for name, answer in answers(server).items():
        for header, value in SECURITY_HEADERS.items():
            found = answer.headers.get_list(header)
            expected = "no-cache" if (name, header) == ("a stream", "cache-control") else value
            assert found == [expected], (name, header)
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


def test_no_page_of_another_origin_may_ask_unless_it_is_configured(
    server: Any, start: Callable[..., Any]
) -> None:
    live = start(server=ServerConfig(cors_origins=(ORIGIN,)))
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }

    def preflight(url: str, origin: str) -> httpx.Response:
        place = f"{url}/v1/chat/completions"
        return httpx.options(place, headers={"origin": origin, **asks})

    for url, origin in ((server.url, ORIGIN), (live.url, "https://evil.example")):
        assert "access-control-allow-origin" not in preflight(url, origin).headers
    allowed = preflight(live.url, ORIGIN)
    answer = live.post(ASK, origin=ORIGIN)
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "x-draftgate-mode" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["*", "app.example.com", "https://a.example/path", "null"])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"server": {"cors_origins": [origin]}}, GatewayConfig)


async def test_a_host_keeps_its_own_headers(make_config: Callable[..., GatewayConfig]) -> None:
    @get("/mine")
    async def mine() -> str:
        return "mine"

    app = Litestar([mine], plugins=[GatewayPlugin(make_config())], logging_config=None)
    async with app.lifespan():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            theirs, ours = await client.get("/mine"), await client.get("/healthz")

    assert "content-security-policy" not in theirs.headers
    assert "content-security-policy" in ours.headers
