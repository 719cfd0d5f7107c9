"""``draftgate serve``: the gateway on a port, in this process."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.app import create_app
from gateway.cli.draining import DrainingServer
from gateway.cli.http import server_options
from gateway.cli.models import fetch_models, settle_waiting
from gateway.config import GatewayConfig, ServerConfig, load, override
from gateway.errors import ConfigError, Problem
from gateway.keeper import PolicyKeeper
from gateway.log import LEVELS
from gateway.plugin import GatewayPlugin
from gateway.service import Gateway
from gateway.types import SHORT_HASH_LENGTH

_BACKLOG = 2048


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="YAML file.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 lets the system choose.")
@click.option("--model", help="Model directory, GGUF file or name for the local backend.")
@click.option("--policy", "policy_path", type=click.Path(path_type=Path), help="Policy file.")
@click.option("--log-level", type=click.Choice(LEVELS))
@click.option(
    "--allow-anonymous", is_flag=True, help="Listen beyond this machine without API keys."
)
def serve(
    config_path: Path | None,
    host: str | None,
    port: int | None,
    model: str | None,
    policy_path: Path | None,
    log_level: str | None,
    allow_anonymous: bool,
) -> None:
    """Serve the OpenAI API. Options win over the environment, and that over the file."""
    config = override(
        load(config_path),
        host=host,
        port=port,
        model=model,
        policy=policy_path,
        log_level=log_level,
        allow_anonymous=allow_anonymous,
    )
    # Before anything slow, so that a taken port is known at once.
    with bind(config.server) as listener:
        refuse_strangers(config, listener.getsockname()[0])
        settle_waiting(config)
        fetch_models(config)
        try:
            asyncio.run(_serve(config, listener))
        except ExceptionGroup as group:  # the framework starts its parts in a task group
            raise _only(group) from None


def refuse_strangers(config: GatewayConfig, address: str) -> None:
    """Raise ConfigError where everybody in reach of the network could ask without a key.

    ``address`` is what the host's name came to.
    """
    if not config.auth.is_open or config.auth.allow_anonymous:
        return
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    hint = (
        "give keys (auth.keys, auth.store with `draftgate keys create`, or auth.oidc), listen on "
        "127.0.0.1, or say that you mean it: --allow-anonymous, DRAFTGATE_ALLOW_ANONYMOUS=1"
    )
    message = "no API keys are configured, so the gateway listens on this machine alone"
    raise ConfigError([Problem(message, path=f"server.host {config.server.host}", hint=hint)])


@contextmanager
def bind(server: ServerConfig) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet. Raises ConfigError when there is none to have."""
    place = f"{server.host}:{server.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        hint = "check server.host or --host"
        raise ConfigError([Problem(f"no such address: {error}", path=place, hint=hint)]) from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _cannot_listen(place, error) from None
        yield listener


async def _serve(config: GatewayConfig, listener: socket.socket) -> None:
    app = create_app(config)
    async with app.lifespan():
        gateway = await app.plugins.get(GatewayPlugin).gateway()
        keeper = await app.plugins.get(GatewayPlugin).keeper()
        server = DrainingServer(server_options(app, config.server), gateway, config.server)
        with reload_at_hangup(keeper):
            await _listen(server, gateway, config, listener)


async def _listen(
    server: DrainingServer, gateway: Gateway, config: GatewayConfig, listener: socket.socket
) -> None:
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        place = f"{config.server.host}:{config.server.port}"
        raise _cannot_listen(place, error) from None
    _announce(gateway, config, listener)
    await server.serve(sockets=[listener])


@contextmanager
def reload_at_hangup(keeper: PolicyKeeper) -> Iterator[None]:
    """Read the policy's files again at SIGHUP, where the system has it."""
    number = getattr(signal, "SIGHUP", None)
    if number is None:
        yield
        return
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[bool]]()

    def reload() -> None:
        task = loop.create_task(keeper.reload("signal"))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(number, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def _only(group: ExceptionGroup[Exception]) -> Exception:
    """The one error in nested groups; a group of several as it is."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _announce(gateway: Gateway, config: GatewayConfig, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"Draftgate listens on http://{shown}:{port}")
    status = gateway.status()
    click.echo(f"Policy {status.policy}, hash {status.policy_hash[:SHORT_HASH_LENGTH]}")
    if config.auth.is_open:
        click.echo("No API keys are configured: whoever reaches this address may ask.")
    for name, backend in status.backends.items():
        if backend.detail:
            click.echo(f"Backend {name}: {backend.detail}")


def _cannot_listen(place: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            [
                Problem(
                    "the port is in use by another process",
                    path=place,
                    hint="stop it, or choose another with --port or DRAFTGATE_PORT",
                )
            ]
        )
    return ConfigError([Problem(f"cannot listen: {error.strerror or error}", path=place)])
