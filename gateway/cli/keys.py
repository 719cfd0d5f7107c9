"""``draftgate keys``: makes, lists, revokes and replaces API keys; no gateway need run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from gateway import config, credentials
from gateway.access import store as stores
from gateway.access.building import open_store
from gateway.access.keys import Digester, StoredKey
from gateway.access.store import KeyStore
from gateway.cli.printing import console, print_json
from gateway.errors import ConfigError, Problem
from gateway.grants import ALL_SCOPES, DEFAULT_SCOPES, Quota, Scope

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class Span(click.ParamType[float]):
    """A length of time in seconds, written like ``90m``, ``12h``, ``30d`` or ``0``."""

    name = "span"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Raises click.BadParameter."""
        if isinstance(value, float):
            return value
        number, unit = value[:-1], value[-1:]
        if value == "0":
            return 0.0
        if not (unit in _UNITS and number.isascii() and number.isdigit() and len(number) < 7):
            self.fail(f"{value!r} is no length of time like 90m, 12h or 30d")
        return float(int(number) * _UNITS[unit])


_config = click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="YAML file of the gateway."
)
_store = click.option(
    "--store", "place", help="File or database URL; by default the configuration's `auth.store`."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def keys() -> None:
    """Make, list, revoke and replace API keys. A running gateway follows within a second."""


@keys.command()
@click.argument("caller")
@click.option("--team", help="For the policy's `team` condition.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="What it is for; may be repeated.  [default: inference, decisions:read, evidence:write]",
)
@click.option("--admin", is_flag=True, help="All scopes.")
@click.option("--model", "models", multiple=True, help="A model that it may use; default all.")
@click.option("--expires-in", type=Span(), help="How long it is valid, like 90d; default for ever.")
@click.option("--requests-per-minute", type=click.IntRange(1))
@click.option("--tokens-per-minute", type=click.IntRange(1))
@click.option("--concurrent", type=click.IntRange(1), help="Requests in progress at a time.")
@_config
@_store
@_as_json
def create(
    caller: str,
    team: str | None,
    scopes: tuple[str, ...],
    admin: bool,
    models: tuple[str, ...],
    expires_in: float | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    concurrent: int | None,
    config_path: Path | None,
    place: str | None,
    as_json: bool,
) -> None:
    """Make a key for CALLER, its name in policies and records. The key is shown this once."""
    now = time.time()
    chosen = ALL_SCOPES if admin else frozenset(map(Scope, scopes)) or DEFAULT_SCOPES
    template = _checked(
        StoredKey(
            handle="",
            digest="",
            caller=caller,
            team=team,
            scopes=tuple(sorted(chosen)),
            models=models or None,
            quota=Quota(requests_per_minute, tokens_per_minute, concurrent),
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
    )
    key, secret = stores.create(_opened(config_path, place), _digester(), template)
    _show_new(key, secret, as_json)


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Expired and revoked ones too.")
@_config
@_store
@_as_json
def list_keys(everything: bool, config_path: Path | None, place: str | None, as_json: bool) -> None:
    """List the keys, without their secrets, which nobody has any more."""
    now = time.time()
    found = [
        key for key in _opened(config_path, place).read() if everything or key.state(now) == "valid"
    ]
    if as_json:
        print_json([_shown(key, now) for key in found])
    else:
        console().print(_table(found, now))


@keys.command()
@click.argument("key")
@_config
@_store
@_as_json
def revoke(key: str, config_path: Path | None, place: str | None, as_json: bool) -> None:
    """Revoke the KEY of this handle, or all keys of this caller."""
    now = time.time()
    revoked = stores.revoke(_opened(config_path, place), key, now=now)
    if as_json:
        print_json([_shown(one, now) for one in revoked])
    else:
        handles = ", ".join(one.handle for one in revoked)
        click.echo(f"Revoked: {handles}." if handles else "It was revoked before.")


@keys.command()
@click.argument("handle")
@click.option(
    "--overlap",
    type=Span(),
    default="24h",
    show_default=True,
    help="How long the old key stays valid beside the new one.",
)
@_config
@_store
@_as_json
def rotate(
    handle: str, overlap: float, config_path: Path | None, place: str | None, as_json: bool
) -> None:
    """Make a new key like HANDLE, which ends after the overlap."""
    key, secret = stores.rotate(
        _opened(config_path, place), _digester(), handle, now=time.time(), overlap_seconds=overlap
    )
    _show_new(key, secret, as_json)


def _opened(config_path: Path | None, place: str | None) -> KeyStore:
    place = place or config.load(config_path).auth.store
    if place is None:
        hint = "set `auth.store`, a file's path or a database's URL, or give --store"
        raise ConfigError([Problem("there is no store of keys", path="auth.store", hint=hint)])
    return open_store(place)


def _digester() -> Digester:
    return Digester(credentials.key_secret())


def _checked(key: StoredKey) -> StoredKey:
    try:
        return msgspec.convert(msgspec.to_builtins(key), StoredKey)
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{error}; a name has letters, digits and _ . -") from None


def _show_new(key: StoredKey, secret: str, as_json: bool) -> None:
    if as_json:
        print_json({**_shown(key, key.created_at), "key": secret})
        return
    click.echo(secret)
    click.echo(f"Handle {key.handle}. The key is not kept: this is the only time it is shown.")


def _shown(key: StoredKey, now: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(key)
    del fields["digest"]
    return {**fields, "state": key.state(now)}


def _table(found: Sequence[StoredKey], now: float) -> Table:
    table = Table("handle", "caller", "team", "scopes", "models", "quota", "expires", "state")
    for key in found:
        quota = msgspec.to_builtins(key.quota)
        limits = ", ".join(f"{name} {n}" for name, n in quota.items() if n is not None)
        table.add_row(
            key.handle,
            key.caller,
            key.team or "",
            "all" if set(key.scopes) >= ALL_SCOPES else ", ".join(key.scopes),
            "all" if key.models is None else ", ".join(key.models),
            limits or "none",
            "never" if key.expires_at is None else _day(key.expires_at),
            key.state(now),
        )
    return table


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
