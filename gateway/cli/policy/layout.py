"""``draftgate policy fmt``: policies, their tests and their statements in one layout, comments kept."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from gateway import documents
from gateway.cli.policy.chosen import chosen_path, file_argument
from gateway.cli.printing import print_json
from gateway.documents.layout import laid_out
from gateway.routing import files
from gateway.routing.layers import SET_FILE
from gateway.routing.reference import KINDS, kind_of


@click.command()
@file_argument
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
@click.option("--diff", "show_diff", is_flag=True, help="Change nothing; show what would change.")
@click.option("--json", "as_json", is_flag=True, help="Print the paths that change as JSON.")
def fmt(file: Path | None, check: bool, show_diff: bool, as_json: bool) -> None:
    """Write a policy, its tests and proofs, or those of a set, in the canonical layout.

    Two spaces a level, the keys of a rule in one order, comments kept. Exits with 0, with 1 if
    --check finds a file that would change, with 2 when a file is wrong.
    """
    if show_diff and as_json:
        raise click.UsageError("--diff goes without --json.")
    changed = []
    for path in _files(chosen_path(file)):
        text = documents.read(path)
        new = laid_out(text, path, KINDS[kind_of(path, text)])
        if new == text:
            continue
        changed.append(path)
        if show_diff:
            old, lines = text.splitlines(keepends=True), new.splitlines(keepends=True)
            click.echo("".join(difflib.unified_diff(old, lines, str(path), str(path))), nl=False)
        elif not as_json:
            click.echo(f"{'would change' if check else 'changed'} {path}")
        if not check and not show_diff:
            path.write_text(new, encoding="utf-8", newline="\n")
    if as_json:
        print_json({"changed": [str(path) for path in changed]})
    if check and changed:
        raise SystemExit(1)


def _files(path: Path) -> list[Path]:
    """The policy, of a set all its policies, each with its tests and proofs where there are any.

    Of a folder of single policies, such as the shipped ones, all files.
    """
    index = path / SET_FILE
    if path.is_dir() and not index.exists():
        return sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
    policies = [path]
    if files.is_set(path):
        index = index if path.is_dir() else path
        policies = [index, *files.listed(index)]
    return [
        name
        for policy in policies
        for name in (policy, *filter(Path.exists, files.names(policy)[1:]))
    ]
