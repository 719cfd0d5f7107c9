"""`Journal`: the rows of an experiment on disk, appended one by one, so that none is lost or made twice.

A folder holds ``settings.json``, which says what its rows are about, and ``results.jsonl``. Whoever
comes back with the same settings goes on after the last whole row.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from gateway.errors import ConfigError, Problem

T = TypeVar("T", bound=msgspec.Struct)
SETTINGS, RESULTS = "settings.json", "results.jsonl"


class Journal(Generic[T]):
    """The rows so far, and where new ones go."""

    def __init__(self, rows: list[T], file: FileIO | None) -> None:
        """``file`` is written to at its end; None: the rows are kept in memory alone."""
        self.rows = rows
        self.num_found = len(rows)
        """How many rows were there before."""
        self._file = file

    def add(self, row: T) -> None:
        """Keep a row; it is in the system's hands when this returns. Raises ConfigError."""
        if self._file is not None:
            try:
                left = msgspec.json.encode(row) + b"\n"
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise _unwritable(error, Path(str(self._file.name))) from None
        self.rows.append(row)


@contextmanager
def open_journal(
    folder: Path | None, settings: msgspec.Struct, kind: type[T]
) -> Iterator[Journal[T]]:
    """The journal in ``folder``, which is made where there is none; without one, in memory.

    A last row that was torn off by a crash is dropped. Raises ConfigError for a folder with other
    settings, with damaged rows, or that somebody else is writing to.
    """
    if folder is None:
        yield Journal[T]([], None)
        return
    with ExitStack() as stack:
        # Around the opening alone: an OSError of the run is none of the folder's.
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / RESULTS).open("a+b"))
            _lock(file, folder)
            _agree(folder / SETTINGS, settings)
            rows = _rows(file, folder / RESULTS, kind)
            # Unbuffered: a row that could not be written must not come back when it is closed.
            end = stack.enter_context((folder / RESULTS).open("ab", buffering=0))
        except OSError as error:
            raise _unwritable(error, folder) from None
        yield Journal(rows, end)


def _unwritable(error: OSError, path: Path) -> ConfigError:
    return ConfigError([Problem(f"cannot write: {error.strerror or error}", path=path)])


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "wait until it has ended, or give another --out"
        raise ConfigError([Problem("another run writes here", path=folder, hint=hint)]) from None


def _agree(path: Path, settings: msgspec.Struct) -> None:
    """Write the settings, or compare them with those that are there."""
    wanted = msgspec.to_builtins(settings)
    if not path.exists():
        path.write_bytes(msgspec.json.format(msgspec.json.encode(wanted), indent=2) + b"\n")
        return
    try:
        there = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        problem = Problem(f"no settings: {error}", path=path, hint="give another --out")
        raise ConfigError([problem]) from None
    # What is read back has lists for tuples.
    wanted = msgspec.json.decode(msgspec.json.encode(wanted))
    if there == wanted:
        return
    names = [
        name for name in wanted if not isinstance(there, dict) or there.get(name) != wanted[name]
    ]
    raise ConfigError(
        [
            Problem(
                f"the results in this folder were made with another {', '.join(names) or 'version'}",
                path=path.parent,
                hint="give the same options to go on with them, or another --out",
            )
        ]
    )


def _rows(file: BinaryIO, path: Path, kind: type[T]) -> list[T]:
    """All whole rows; the file is cut after the last of them."""
    file.seek(0)
    decoder = msgspec.json.Decoder(kind)
    rows: list[T] = []
    end = 0
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            hint = "give another --out, or take the line out to make its row again"
            raise ConfigError(
                [Problem(f"no row: {error}", path=path, line=number, hint=hint)]
            ) from None
        end += len(line)
    file.truncate(end)
    file.seek(0, 2)
    return rows
