"""``draftgate classifier``: trains the domain classifier, measures it, and says what its bans are worth.

Exit codes: 0 all is well, 1 the answer is no (a target is not met, the traffic has drifted), 2 the input
is wrong.
"""

from __future__ import annotations

import click

from gateway.cli.classifier.calibrate import calibrate
from gateway.cli.classifier.card import card
from gateway.cli.classifier.drift import drift
from gateway.cli.classifier.encoder import encoder
from gateway.cli.classifier.evaluate import evaluate
from gateway.cli.classifier.train import train
from gateway.cli.classifier.train_probe import train_probe


@click.group()
def classifier() -> None:
    """Train and measure the domain classifier, and hold its bans to a contract."""


for command in (train, encoder, train_probe, evaluate, calibrate, drift, card):
    classifier.add_command(command)
