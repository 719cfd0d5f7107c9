"""Mount the gateway inside your own Litestar application, beside your own routes.

Run it: ``litestar --app examples.plugin_in_your_app:app run``; the gateway is under ``/llm``.
Its commands are there too: ``litestar --app examples.plugin_in_your_app:app gateway --help``
"""

from litestar import Litestar, get

from gateway import GatewayPlugin
from gateway.config import AuditConfig, BackendConfig, GatewayConfig


@get("/")
async def index() -> dict[str, str]:
    """Your own route."""
    return {"hello": "from the host", "models": "/llm/v1/models"}


# A scripted backend answers without a model; leave `backends` out to load the default one.
config = GatewayConfig(
    backends={"demo": BackendConfig("scripted", {"replies": ["Hello from the gateway."]})},
    audit=AuditConfig(url="sqlite+aiosqlite:///decisions.db"),
)

app = Litestar(route_handlers=[index], plugins=[GatewayPlugin(config, path="/llm")])
