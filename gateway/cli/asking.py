"""How commands ask the decision log: where it is, which of its entries are meant, what went wrong."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from gateway import config
from gateway.audit.filters import FLAGS, VERIFIER_CLASSES, Filters, moment, parse
from gateway.audit.query import DecisionReader
from gateway.errors import ConfigError, GatewayError, InvalidRequest
from gateway.types import FinishReason, Mode

_T = TypeVar("_T")


class BadInput(click.ClickException):
    """A wrong value, or no log to read."""

    exit_code = 2


class Missing(click.ClickException):
    """Nothing has this id, or it has nothing of what is asked for."""

    exit_code = 1


@contextmanager
def as_bad_input() -> Iterator[None]:
    """What goes wrong with the log or the input, as the command's error."""
    try:
        yield
    except (ConfigError, GatewayError) as error:
        raise BadInput(str(error)) from error


class Moment(click.ParamType[float]):
    """A time as seconds since the epoch: an ISO date or time, or an age such as ``90m``."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Raises click.BadParameter."""
        if isinstance(value, float):
            return value
        try:
            # A time without a zone is the reader's own.
            return moment(self.name, value, None)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


log_url = click.option("--url", help="The log's database URL; by default the configuration's.")

_OPTIONS = (
    click.option("--since", help="Not older: 90m, 12h, 7d or an ISO date or time."),
    click.option("--until", help="Older; written like --since."),
    click.option("--caller", help="Caller id."),
    click.option("--team", help="The caller's team."),
    click.option("--domain", help="Most probable domain, or NAME:P for at least probability P."),
    click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="Decided mode."),
    click.option(
        "--executed", type=click.Choice([mode.value for mode in Mode]), help="Mode that ran."
    ),
    click.option("--rule", help="Rule that decided."),
    click.option("--model", help="Model asked for."),
    click.option("--policy", help="Hash of the policy, or its beginning."),
    click.option("--backend", help="Backend it was sent to."),
    click.option(
        "--verifier", type=click.Choice(VERIFIER_CLASSES), help="Class of the verifier that ran."
    ),
    click.option(
        "--finish",
        type=click.Choice([reason.value for reason in FinishReason]),
        help="How one of the choices ended.",
    ),
    click.option(
        "--flag", "flags", type=click.Choice(tuple(FLAGS)), multiple=True, help="All must hold."
    ),
    click.option("--failed", is_flag=True, help="The same as --flag attestation_failed."),
)
_NAMES = "since until caller team domain mode executed rule model policy backend verifier finish"


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` an option for each filter; it gets them as ``filters``."""

    @functools.wraps(command)
    def run(flags: tuple[str, ...], failed: bool, text: str | None = None, **options: Any) -> None:
        values = {name: options.pop(name) for name in _NAMES.split()}
        pairs = [(name, value) for name, value in values.items() if value is not None]
        pairs += [("flag", flag) for flag in flags]
        if failed:
            pairs.append(("flag", "attestation_failed"))
        if text is not None:
            pairs.append(("text", text))
        command(filters=_parsed(pairs), **options)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), run)


def ask(url: str | None, question: Callable[[DecisionReader], Awaitable[_T]]) -> _T:
    """What a reader of the log at ``url``, or of the configured one, answers."""

    async def run() -> _T:
        reader = await DecisionReader.open(url or config.load().audit.url)
        try:
            return await question(reader)
        finally:
            await reader.aclose()

    with as_bad_input():
        return asyncio.run(run())


def _parsed(pairs: list[tuple[str, str]]) -> Filters:
    try:
        return parse(pairs, zone=None)
    except InvalidRequest as error:
        raise BadInput(error.message) from error
