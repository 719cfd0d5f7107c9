"""``draftgate decisions digest``: what the log calls a request's body."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import click

from gateway import config, credentials
from gateway.audit.digests import Digests
from gateway.audit.keys import keyring
from gateway.cli.asking import as_bad_input
from gateway.cli.printing import print_json


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="YAML file of the gateway."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def digest(file: BinaryIO, config_path: Path | None, as_json: bool) -> None:
    """Print the digests of FILE, a request's raw body (`-` reads it from standard input).

    One line for each key of the log that the environment holds, the one in use first, and one for
    records made without a key. `decisions search DIGEST` finds the requests.
    """
    with as_bad_input():
        digests = Digests(keyring(credentials.signing_secrets(config.load(config_path).audit)))
    found = list(digests.candidates(file.read()))
    if as_json:
        print_json([{"digest": each.value, "digest_key": each.key_id} for each in found])
        return
    for each in found:
        click.echo(f"{each.value}  {each.key_id or '(no key)'}")
