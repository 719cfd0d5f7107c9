"""``/healthz``, ``/readyz`` and ``/metrics``: for those who run the gateway, without a key."""

from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency

from gateway.api.auth import needs
from gateway.api.identified import identified
from gateway.api.openapi import described
from gateway.grants import Scope
from gateway.service import Gateway


@get("/healthz", operation_class=described())
async def healthz(request: Request[Any, Any, Any]) -> Response[dict[str, str]]:
    """Whether the process answers at all."""
    return identified(request, {"status": "ok"})


@get("/readyz", operation_class=described(errors=dict))
async def readyz(
    request: Request[Any, Any, Any], gateway: NamedDependency[Gateway]
) -> Response[dict[str, Any]]:
    """Whether requests can be answered now, by which backends and under which policy."""
    status = gateway.status()
    body = {
        "status": "ready" if status.ready else "not_ready",
        "policy": {"name": status.policy, "hash": status.policy_hash},
        "warnings": status.warnings,
        "backends": status.backends,
    }
    return identified(
        request,
        body,
        status_code=200 if status.ready else 503,
    )


@get(
    "/metrics",
    media_type="text/plain",
    opt=needs(Scope.METRICS),
    operation_class=described(),
)
async def metrics(gateway: NamedDependency[Gateway]) -> Response[bytes]:
    """The metrics, in the Prometheus text format."""
    return Response(
        gateway.telemetry.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
