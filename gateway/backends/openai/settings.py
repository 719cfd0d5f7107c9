"""What an operator says of an upstream: its arms, and how patient to be with them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gateway import config
from gateway.backends.openai.features import FEATURES
from gateway.errors import ConfigError, Problem

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
Variable = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ArmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One deployment: replicas that answer alike."""

    urls: Annotated[tuple[Url, ...], msgspec.Meta(min_length=1)]
    api_key_env: Variable | None = None
    """The environment variable that holds the API key; the file never does."""
    honours: tuple[str, ...] = ()
    """What every replica is known to honour, beside what probing finds out."""

    def __post_init__(self) -> None:
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("a URL is listed twice")
        if unknown := sorted(set(self.honours) - set(FEATURES)):
            raise ValueError(f"honours {unknown[0]!r} is not known; known: {', '.join(FEATURES)}")


class Arms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The twins: the same model without speculation, and with it."""

    standard: ArmSettings
    speculative: ArmSettings | None = None

    def __post_init__(self) -> None:
        if self.speculative is None:
            return
        if both := sorted(set(self.standard.urls) & set(self.speculative.urls)):
            raise ValueError(f"{both[0]} is in both arms; a server speculates or it does not")


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for what."""

    connect_seconds: Seconds = 5.0
    first_seconds: Seconds = 120.0
    """For the first piece of an answer, the upstream's queue included."""
    idle_seconds: Seconds = 60.0
    """Between two pieces."""
    check_seconds: Seconds = 10.0
    """Between two looks at each replica."""
    breaker_failures: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """After so many in a row a replica is left alone."""
    breaker_seconds: Seconds = 5.0
    """For so long at first, then doubled."""


Balance = Literal["least_loaded", "prefix"]


def api_key(arm: ArmSettings, name: str) -> str | None:
    """The key, from the environment. Raises ConfigError where it is named and not there."""
    if arm.api_key_env is None:
        return None
    key = config.environment().get(arm.api_key_env)
    if not key:
        message = f"the environment has no {arm.api_key_env}, which holds the API key"
        hint = "set it, or take api_key_env out"
        raise ConfigError([Problem(message, path=f"backends: arms.{name}.api_key_env", hint=hint)])
    return key
