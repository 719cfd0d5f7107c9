"""``draftgate classifier card``: the model card, written from what was measured."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.classification.card import SHIPPED_EVALUATION, read_evaluation
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.classification.page import write_card
from gateway.cli.files import replace, require_place


@click.command()
@click.argument(
    "evaluation", type=click.Path(path_type=Path), default=SHIPPED_EVALUATION, metavar="[EVAL.json]"
)
@click.option(
    "--contract",
    "contract_file",
    type=click.Path(path_type=Path),
    default=SHIPPED_CONTRACT,
    help="The contract; default: the one shipped.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write it there; default: print it.")
def card(evaluation: Path, contract_file: Path, out: Path | None) -> None:
    """Write the model card from EVAL.json (what `evaluate --json` printed) and a contract."""
    text = write_card(read_evaluation(evaluation), read_contract(contract_file))
    if out is None:
        click.echo(text, nl=False)
        return
    require_place(out)
    replace(out, text.encode())
