"""The command line: ``draftgate COMMAND``. Each command is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from gateway.errors import ConfigError, GatewayError

COMMANDS: Mapping[str, str] = {
    "serve": "gateway.cli.serve:serve",
    "generate": "gateway.cli.generate:generate",
    "classify": "gateway.cli.classify:classify",
    "policy": "gateway.cli.policy:policy",
    "decisions": "gateway.cli.decisions:decisions",
    "evidence": "gateway.cli.evidence:evidence",
    "keys": "gateway.cli.keys:keys",
    "classifier": "gateway.cli.classifier:classifier",
    "models": "gateway.cli.models:models",
    "upstream": "gateway.cli.upstream:upstream",
}


class CommandFailed(click.ClickException):
    """What a user of the command line sees of an error: its message alone, and exit status 2."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group that knows where its commands are, and that turns our errors into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name]} is no command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise CommandFailed(error.with_sources()) from error
        except GatewayError as error:
            raise CommandFailed(error.message) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="draftgate", prog_name="draftgate")
def main() -> None:
    """Draftgate decides by policy how each answer is decoded, and keeps the evidence."""
