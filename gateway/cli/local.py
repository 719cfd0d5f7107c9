"""The local backend for commands that decode by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway import config, extensions
from gateway.backends.base import Backend
from gateway.cli.models import fetch_models, settle_waiting
from gateway.config import BackendConfig


def load_local(given: Mapping[str, Any]) -> Backend:
    """The local backend as configured, with what is not None in ``given`` in place of its options."""
    settings = config.load()
    local = next((b for b in settings.backends.values() if b.type == "local"), None)
    options = dict(local.options) if local else {}
    options |= {key: value for key, value in given.items() if value is not None}
    settings = msgspec.structs.replace(
        settings, backends={"local": BackendConfig("local", options)}
    )
    settle_waiting(settings)
    fetch_models(settings)
    backend: Backend = extensions.build("backends", "local", options)
    return backend
