"""Which policy a command is about: the file or folder that it names, else the configured one."""

from __future__ import annotations

from pathlib import Path

import click

from gateway import config
from gateway.assurance import Assured
from gateway.classification.contract import SHIPPED_CONTRACT, read_contract
from gateway.cli.signals import SignalReader
from gateway.routing.policy import Policy, load

file_argument = click.argument(
    "file", type=click.Path(path_type=Path), required=False, metavar="[POLICY.yaml|FOLDER]"
)


def chosen_path(file: Path | None) -> Path:
    """Where the policy is."""
    return file if file is not None else config.load().policy or config.default_policy_path()


def chosen_policy(file: Path | None) -> Policy:
    """The policy in ``file``, or the configured one, held against the configured backends."""
    if file is not None:
        return load(file)
    return load(chosen_path(None), backends=config.load().backends)


def reader() -> SignalReader:
    """The configured classifiers, built when there is text to classify."""
    return SignalReader(config.load().classifiers)


def assured() -> Assured:
    """What the configured contract says, whatever classifier is loaded where."""
    return Assured(read_contract(config.load().classification.contract or SHIPPED_CONTRACT))
