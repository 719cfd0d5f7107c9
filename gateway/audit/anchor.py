"""The anchor: a file apart from the database that says how far each chain had come.

It belongs where whoever can write the database cannot: another volume, append-only, or shipped
away line by line. Knows nothing of keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.chain import Link
from gateway.errors import ConfigError, Problem


class Anchored(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a seal, its link, and all that it takes to check the link's code."""

    previous: str
    link: Link
    row: Mapping[str, Any]


class Anchor:
    """The file, as a writer sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def prepare(self) -> None:
        """Make the file if there is none. Raises ConfigError when it cannot be appended to."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.append(())
        except OSError as error:
            raise ConfigError(
                [
                    Problem(
                        f"cannot append to {self._path}: {error.strerror or error}",
                        path="audit.anchor",
                        hint="name a file that the gateway may append to, or leave it out",
                    )
                ]
            ) from error

    def append(self, lines: Sequence[Anchored]) -> None:
        """Add lines, durably; each is whole even where several gateways add. Raises OSError."""
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if data:
                os.write(file, data)
                os.fsync(file)
        finally:
            os.close(file)


def read_anchor(path: Path) -> Iterator[Anchored | None]:
    """The lines; None for one that cannot be read. Raises ConfigError when there is no file."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield msgspec.json.decode(line, type=Anchored)
                except msgspec.DecodeError:
                    yield None
    except OSError as error:
        raise ConfigError(
            [Problem(f"cannot be read: {error.strerror or error}", path=path)]
        ) from error
