"""``draftgate policy fmt``: policies, their tests and their statements in one layout, comments kept."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from gateway import documents
from gateway.cli.policy.chosen import chosen_path, file_argument
from gateway.documents.layout import laid_out
from gateway.routing.layers import SET_FILE
from gateway.routing.reference import KINDS, kind_of


@click.command()
@file_argument
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
@click.option("--diff", "show_diff", is_flag=True, help="Change nothing; show what would change.")
def fmt(file: Path | None, check: bool, show_diff: bool) -> None:
    """Write a policy and its tests, or all files of a folder, in the canonical layout.

    Two spaces a level, the keys of a rule in one order, comments kept. Exits with 0, with 1 if
    --check finds a file that would change, with 2 when a file is wrong.
    """
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
        else:
            click.echo(f"{'would change' if check else 'changed'} {path}")
        if not check and not show_diff:
            path.write_text(new, encoding="utf-8", newline="\n")
    if check and changed:
        raise SystemExit(1)


def _files(path: Path) -> list[Path]:
    """The file, its tests and its statements; of a folder, every file that `kind_of` knows."""
    if not path.is_dir():
        beside = (path.with_name(f"{path.stem}_{kind}{path.suffix}") for kind in ("test", "proof"))
        return [path, *filter(Path.exists, beside)]
    files = [*path.rglob("*.yaml"), *path.rglob("*.yml")]
    return sorted(files, key=lambda f: (f.name != SET_FILE, f))
