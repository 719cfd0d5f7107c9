"""The HTTP surface: one router, with its guard, dependencies and errors scoped to it."""

from collections.abc import Awaitable, Callable

from litestar import Router
from litestar.di import Provide

from gateway.access.directory import Directory
from gateway.access.limiter import Limiter
from gateway.api.auth import provide_caller, provide_grant, require_key
from gateway.api.candidates import candidate_routes
from gateway.api.chat import create_chat_completion
from gateway.api.completions import create_completion
from gateway.api.decisions import (
    count_decisions,
    erase_text,
    get_chain,
    get_decision,
    give_feedback,
    list_decisions,
)
from gateway.api.edge import refuse_compressed, with_edge
from gateway.api.errors import error_handler
from gateway.api.evidence import evidence_routes
from gateway.api.explain import explain_decision
from gateway.api.health import healthz, metrics, readyz
from gateway.api.lifetime import with_lifetime
from gateway.api.messages.routes import message_routes
from gateway.api.models import get_model, list_models
from gateway.api.policy import policy_routes
from gateway.api.responses.kept import Kept
from gateway.api.responses.routes import response_routes
from gateway.api.sse import Patience
from gateway.archive import Archive
from gateway.config import ServerConfig
from gateway.evidence.watch import Watch
from gateway.keeper import PolicyKeeper
from gateway.log import Log
from gateway.service import Gateway


def build_router(
    provide_gateway: Callable[[], Awaitable[Gateway]],
    provide_keeper: Callable[[], Awaitable[PolicyKeeper]],
    provide_archive: Callable[[], Awaitable[Archive]],
    provide_watch: Callable[[], Awaitable[Watch]],
    provide_directory: Callable[[], Awaitable[Directory]],
    *,
    limiter: Limiter,
    server: ServerConfig,
    protect_metrics: bool,
    log: Log,
    path: str = "/",
) -> Router:
    """All routes under ``path``. The providers are asked at each request."""
    guard = require_key(provide_directory, limiter)
    patience = Patience(server.patience_seconds, server.heartbeat_seconds)

    async def provide_patience() -> Patience:
        return patience

    kept = Kept(server.kept_responses, server.kept_response_bytes)

    async def provide_kept() -> Kept:
        return kept

    v1 = Router(
        "/v1",
        route_handlers=[
            create_chat_completion,
            create_completion,
            *response_routes,
            message_routes(log),
            list_models,
            get_model,
            explain_decision,
            list_decisions,
            count_decisions,
            get_decision,
            get_chain,
            erase_text,
            give_feedback,
            *policy_routes,
            *candidate_routes,
            *evidence_routes,
        ],
        guards=[refuse_compressed, guard],
        dependencies={
            "caller": Provide(provide_caller),
            "grant": Provide(provide_grant),
            "patience": Provide(provide_patience),
            "kept": Provide(provide_kept),
        },
        middleware=[with_lifetime],
        request_max_body_size=server.max_body_bytes,
        tags=["OpenAI"],
    )
    measured = Router("/", route_handlers=[metrics], guards=[guard] if protect_metrics else [])
    return Router(
        path,
        route_handlers=[v1, healthz, readyz, measured],
        middleware=[
            with_edge(body_seconds=server.body_seconds, stall_seconds=server.stall_seconds)
        ],
        dependencies={
            "gateway": Provide(provide_gateway),
            "keeper": Provide(provide_keeper),
            "archive": Provide(provide_archive),
            "watch": Provide(provide_watch),
        },
        exception_handlers={Exception: error_handler(log)},
    )
