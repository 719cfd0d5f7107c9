"""``draftgate classifier calibrate``: bars that keep a target miss rate, and the contract about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import numpy as np
from rich.console import RenderableType
from rich.text import Text

from gateway.classification.contract import Contract
from gateway.classification.promise import Labelled, Target, choose, promise
from gateway.classification.rows import corpora, labels_of, read_rows
from gateway.cli.classifier.logged import Window, log_options, read_labelled
from gateway.cli.classifier.measured import (
    build,
    classifier_option,
    domain_option,
    measure,
    policy_of,
    probabilities_option,
    refuse_unbanned,
    weights_option,
)
from gateway.cli.classifier.tables import percent, table
from gateway.cli.files import replace, require_place
from gateway.cli.printing import console, print_json
from gateway.routing.bars import thresholds


@click.command()
@click.argument("data", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--miss-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.005,
    show_default=True,
    help="The share of a domain's requests that may pass its bar.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of the bound on the miss rate, for each domain by itself.",
)
@domain_option
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="POLICY",
    help="Choose nothing: measure the bars that this policy's bans have.",
)
@weights_option
@classifier_option
@probabilities_option
@click.option("--from-log", is_flag=True, help="Rows: the decision log's requests with feedback.")
@log_options
@click.option("--out", type=click.Path(path_type=Path), help="Write the contract.")
@click.option("--json", "as_json", is_flag=True, help="Print the contract as JSON.")
def calibrate(
    data: tuple[Path, ...],
    miss_rate: float,
    confidence: float,
    domains: tuple[str, ...],
    keep: Path | None,
    weights: Path | None,
    name: str,
    probabilities: Path | None,
    from_log: bool,
    window: Window,
    out: Path | None,
    as_json: bool,
) -> None:
    """Choose the bars of bans on labelled rows, or on feedback in the decision log.

    The miss rate of each bar is within the target with the stated confidence, if the rows are drawn
    like your traffic. Exits with 1 where a bar of --keep does not meet the target.
    """
    if bool(data) == from_log or (from_log and probabilities is not None):
        raise click.UsageError("Give either files of labelled rows or --from-log.")
    if window.given and not from_log:
        raise click.UsageError("--config, --url, --since and --by go with --from-log.")
    if out is not None:
        require_place(out)
    kept: Mapping[str, float] | None = None
    if keep is not None:
        policy = policy_of(keep)
        refuse_unbanned(domains, policy)
        kept = {domain: thresholds(policy)[domain] for domain in domains}
    held_out = False
    if from_log:
        content_hash = build(name, weights).content_hash
        labelled = read_labelled(window, content_hash)
    else:
        rows = read_rows(data)
        measured = measure(rows, name, weights, probabilities)
        content_hash, held_out = measured.content_hash, measured.held_out
        sources = [row.family for row in rows]
        labelled = Labelled(measured.probabilities, labels_of(rows), sources, corpora(rows))
    target = Target(miss_rate, confidence)
    bars = choose(labelled, tuple(dict.fromkeys(domains)), target) if kept is None else kept
    contract = promise(
        labelled,
        bars,
        target,
        classifier=name,
        classifier_hash=content_hash,
        held_out=held_out,
        chosen=kept is None,
    )
    if out is not None:
        replace(out, contract.dump())
    if as_json:
        print_json(contract)
    else:
        console().print(*_shown(contract), sep="\n")
    if not all(map(contract.meets, contract.domains)):
        raise SystemExit(1)


def _shown(contract: Contract) -> Iterator[RenderableType]:
    rows = table(
        "domain", "bar", "recall (95 %)", "of", "missed at most", "false bans (95 %)", "of"
    )
    for one in contract.domains:
        rows.add_row(
            one.domain,
            f"{one.threshold:g}",
            percent(one.recall),
            str(one.recall.rows),
            Text(f"{one.miss_bound:.3%}", style="" if contract.meets(one) else "bold red"),
            percent(one.false_bans),
            str(one.false_bans.rows),
        )
    yield rows
    yield Text(
        f"{contract.rows} rows. Missed at most: with {contract.confidence:.0%} confidence; "
        f"the target is {contract.miss_rate:.3%}."
    )
    for one in contract.domains:
        if not contract.meets(one):
            yield Text(f"{one.domain}: the target is not met at {one.threshold:g}.", style="red")
        if one.worst_recall is not None:
            yield Text(
                f"{one.domain}: worst source {one.worst_source}, recall "
                f"{percent(one.worst_recall)} of {one.worst_recall.rows}."
            )
    yield Text(f"False bans of any of them: {percent(contract.false_bans)}.")
    if contract.chosen:
        yield Text("\nInto the policy:\n", style="bold")
        for one in contract.domains:
            yield Text(
                f"  - id: {one.domain.replace('_', '-')}\n"
                f"    when: {{domain: {{is: {one.domain}, "
                f"min_probability: {np.format_float_positional(one.threshold, trim='-')}}}}}\n"
                f"    ban: [speculative, hybrid]"
            )
