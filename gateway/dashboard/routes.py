"""``/dashboard``: its files, each found by its name in a mapping made once, so that no path is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from litestar import Request, Response, Router, get
from litestar.params import FromPath

from gateway.errors import NotFound, cut

INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# Asked for each time and sent once: another version of the gateway must not meet pages of the last.
_CACHE_CONTROL = "no-cache"


class Asset(NamedTuple):
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def build_dashboard(path: str = "/dashboard") -> Router:
    """The pages under ``path``; for everybody, as the figures in them need the API's keys."""
    assets = read_assets()

    @get("/", include_in_schema=False)
    async def page(request: Request[Any, Any, Any]) -> Response[Any]:
        """The page; its files have addresses beside it, so its own must end with a slash."""
        given = request.scope.get("raw_path") or request.scope["path"].encode()
        if not given.partition(b"?")[0].endswith(b"/"):
            beside = given.partition(b"?")[0].rpartition(b"/")[2].decode("ascii", "replace")
            return Response(None, status_code=307, headers={"location": f"{beside}/"})
        return _sent(request, assets[INDEX])

    @get("/{name:str}", include_in_schema=False)
    async def asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
        """One of its files. Raises NotFound."""
        if name not in assets:
            raise NotFound(f"The dashboard has no file {cut(name)!r}.")
        return _sent(request, assets[name])

    return Router(path, route_handlers=[page, asset])


def read_assets() -> Mapping[str, Asset]:
    """Every file of the dashboard by its name."""
    found = {}
    for file in files("gateway.dashboard").joinpath("static").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _MEDIA_TYPES:
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[file.name] = Asset(content, _MEDIA_TYPES[suffix], etag)
    return found


def _sent(request: Request[Any, Any, Any], asset: Asset) -> Response[Any]:
    headers = {"etag": asset.etag, "cache-control": _CACHE_CONTROL}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(None, status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
