"""The local backend for commands that decode by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway import config, extensions
from gateway.backends.base import Backend, Checker
from gateway.cli.models import fetch_models, settle_waiting
from gateway.config import BackendConfig
from gateway.experiments.arms import Arm
from gateway.experiments.decoding import Made, refuse_unfit
from gateway.experiments.prompts import Prompt


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


@asynccontextmanager
async def experimenting(
    given: Mapping[str, Any],
    arms: Iterable[Arm],
    prompts: Iterable[Prompt],
    there: Sequence[Made] = (),
) -> AsyncIterator[Backend]:
    """The same for as long as ``arms`` are tried on ``prompts``, which it must all be able to take.

    Raises ConfigError for an arm that it cannot obey and where what is ``there`` is another model's,
    and InvalidRequest for a prompt that it cannot take.
    """
    backend = await asyncio.to_thread(load_local, given)
    try:
        if isinstance(backend, Checker):
            for arm in arms:
                backend.check(arm.decision)
        await refuse_unfit(backend, prompts, there)
        yield backend
    finally:
        await backend.aclose()
