"""``draftgate policy``: check policies, run their tests, explain, prove, compare and lay them out.

Exit codes: 0 all is well, 1 the answer is no (a test failed, a statement is false, a file is not laid
out), 2 the input is wrong (ConfigError, which the group above turns into a message).
"""

from __future__ import annotations

import click

from gateway.cli.policy.diff import diff
from gateway.cli.policy.explain import explain
from gateway.cli.policy.layout import fmt
from gateway.cli.policy.prove import prove
from gateway.cli.policy.replay import replay
from gateway.cli.policy.schema import schema
from gateway.cli.policy.show import show
from gateway.cli.policy.test import test
from gateway.cli.policy.validate import validate


@click.group()
def policy() -> None:
    """Check, test and explain policies. Without a file: the one that the configuration names."""


for command in (show, validate, test, explain, prove, diff, replay, fmt, schema):
    policy.add_command(command)
