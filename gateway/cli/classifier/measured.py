"""Which classifier a command measures, on which rows, and where the bars of the bans are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from gateway import extensions
from gateway.classification.base import Classifier
from gateway.classification.card import Evaluation
from gateway.classification.evaluation import evaluate
from gateway.classification.rows import Row, corpora
from gateway.classification.scoring import (
    Probabilities,
    read_probabilities,
    score_all,
    score_with,
)
from gateway.cli.progress import count_progress
from gateway.config import default_policy_path
from gateway.errors import ConfigError, Problem
from gateway.routing.bars import thresholds
from gateway.routing.policy import Policy, load
from gateway.types import DOMAINS

GUARDED = ("medical", "legal")
"""The domains whose bans are a promise; other bans are about speed."""

weights_option = click.option(
    "--weights", type=click.Path(path_type=Path), help="A weights file; default: the one shipped."
)
classifier_option = click.option(
    "--classifier",
    "name",
    default="domain",
    show_default=True,
    help="A registered classifier that gives the signal `domain`.",
)
probabilities_option = click.option(
    "--probabilities",
    type=click.Path(path_type=Path),
    help="Held-out probabilities of the rows (.npy, rows x domains) in place of the classifier's.",
)
domain_option = click.option(
    "--domain",
    "domains",
    type=click.Choice(DOMAINS),
    multiple=True,
    default=GUARDED,
    show_default=True,
    help="A guarded domain, once for each.",
)


class Measured(NamedTuple):
    """A classifier's probabilities on rows."""

    name: str
    content_hash: str
    probabilities: Probabilities
    """Shape (rows, domains)."""
    held_out: bool


def build(name: str, weights: Path | None) -> Classifier:
    """The classifier. Raises ConfigError."""
    options = {} if weights is None else {"weights": str(weights)}
    made: Classifier = extensions.build("classifiers", name, options)
    return made


def measure(
    rows: Sequence[Row], name: str, weights: Path | None, given: Path | None = None
) -> Measured:
    """Score the rows, or read their probabilities from the file ``given``. Raises ConfigError."""
    classifier = build(name, weights)
    if given is not None:
        found = read_probabilities(given, len(rows))
        return Measured(name, classifier.content_hash, found, held_out=True)
    with count_progress("scoring") as progress:
        found = score_all(score_with(classifier), rows, progress)
    return Measured(name, classifier.content_hash, found, held_out=False)


def policy_of(path: Path | None) -> Policy:
    """The policy in a file, else the shipped one. Raises ConfigError."""
    return load(path or default_policy_path())


def refuse_unbanned(domains: Sequence[str], policy: Policy) -> None:
    """Raises ConfigError for a domain that the policy does not ban from a probability on."""
    lowest = thresholds(policy)
    if without := [domain for domain in domains if domain not in lowest]:
        message = f"no rule bans {', '.join(without)} from a probability on, whatever else holds"
        hint = "name the domains that it bans with --domain, or another --policy"
        raise ConfigError([Problem(message, path=policy.path, hint=hint)])


def evaluation_of(
    rows: Sequence[Row],
    measured: Measured,
    policy: Policy,
    domains: Sequence[str] = GUARDED,
    training: Sequence[Row] = (),
    *,
    show_errors: int = 0,
    show_text: bool = False,
) -> Evaluation:
    """What was measured, at the bars of the policy's bans."""
    return Evaluation(
        classifier=measured.name,
        classifier_hash=measured.content_hash,
        held_out=measured.held_out,
        policy=f"{policy.name} {policy.version}",
        data=corpora(rows),
        training=corpora(training),
        report=evaluate(
            rows,
            measured.probabilities,
            thresholds=thresholds(policy),
            guarded=domains,
            show_errors=show_errors,
            show_text=show_text,
        ),
    )
