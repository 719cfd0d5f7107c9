"""The gateway's own engine as a backend.

The only package that imports `decoders`, and so the only one that brings in torch; each name is
imported when it is used, because how torch's threads wait has to be settled before.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.backends.local.backend import LocalBackend
    from gateway.backends.local.loading import fetch

_MODULES = {"LocalBackend": "backend", "fetch": "loading"}

__all__ = ["LocalBackend", "fetch"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
