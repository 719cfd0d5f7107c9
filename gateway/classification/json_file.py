"""Reads a JSON file that a command wrote, or says what is wrong with it and which command writes one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.errors import ConfigError, Problem

T = TypeVar("T")


def read_json(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """The file as a ``kind``, which an error message calls ``what``. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        problem = Problem(f"cannot read: {error.strerror}", path=path, hint=hint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = Problem(f"not {what}: {error}", path=path, hint=hint)
    raise ConfigError([problem])
