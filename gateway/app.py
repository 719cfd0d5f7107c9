"""`create_app`: the stand-alone application: the plugin, and what only a whole app can set."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from gateway.api.edge import secure
from gateway.api.errors import error_handler
from gateway.config import GatewayConfig, load
from gateway.log import build_log, quieten_libraries
from gateway.plugin import GatewayPlugin


def create_app(config: GatewayConfig | None = None) -> Litestar:
    """The application for any ASGI server; without ``config`` it is loaded. Raises ConfigError."""
    config = load() if config is None else config
    quieten_libraries()
    log = build_log(config.log.level, json=config.log.json)
    return Litestar(
        plugins=[GatewayPlugin(config)],
        # Unknown paths and methods never reach a router, so their errors are shaped here.
        exception_handlers={Exception: error_handler(log)},
        before_send=[secure],
        cors_config=_cors(config.server.cors_origins),
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Draftgate",
            version=version("draftgate"),
            path="/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
    )


def _cors(origins: Sequence[str]) -> CORSConfig | None:
    """Which pages' scripts may ask; they send a key of their own, never a cookie."""
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=[
            "authorization",
            "x-api-key",
            "content-type",
            "if-match",
            "x-request-id",
            "x-draftgate-mode",
            "x-request-timeout",
        ],
        expose_headers=[
            "etag",
            "retry-after",
            *(
                f"x-ratelimit-{what}-{unit}"
                for what in ("limit", "remaining", "reset")
                for unit in ("requests", "tokens")
            ),
            "x-request-id",
            "x-draftgate-decision-id",
            "x-draftgate-mode",
            "x-draftgate-rule",
            "x-draftgate-policy",
            "x-draftgate-verifier",
        ],
    )
