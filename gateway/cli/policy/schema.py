"""``draftgate policy schema``: what a policy may say, for editors and for people."""

from __future__ import annotations

import click

from gateway.routing.reference import KINDS, json_text, markdown


@click.command()
@click.option(
    "--kind", type=click.Choice(list(KINDS)), default="policy", help="Which kind of file."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="The reference of all kinds.")
def schema(kind: str, as_markdown: bool) -> None:
    """Print the JSON Schema of policies, or the reference in Markdown."""
    click.echo(markdown() if as_markdown else json_text(kind), nl=False)
