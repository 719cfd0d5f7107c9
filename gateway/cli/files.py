"""Files that the commands write."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gateway.errors import ConfigError, Problem


def require_place(path: Path) -> None:
    """Raises ConfigError, so that nobody waits for a result that has no place."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError([Problem("no such folder", path=folder, hint="create it first")])
    if path.is_dir():
        raise ConfigError([Problem("cannot write: this is a folder", path=path)])


def replace(path: Path, data: bytes) -> None:
    """Write all or nothing: a gateway may be reading the old file. Raises ConfigError."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, delete=False) as file:
            file.write(data)
        try:
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink()
            raise
    except OSError as error:
        raise ConfigError([Problem(f"cannot write: {error.strerror}", path=path)]) from None
