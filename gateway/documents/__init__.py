"""Strict YAML documents: text to frozen structs, every problem at once and at its own place.

It knows YAML and types; it must not know what any document means.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from gateway.documents.conversion import Check, convert, suggestion
from gateway.documents.document import At, Document, parse, read

__all__ = ["At", "Check", "Document", "convert", "load", "parse", "read", "suggestion"]

T = TypeVar("T")


def load(path: Path, type: type[T]) -> T:
    """Read, parse and convert one file. Raises ConfigError with all its problems."""
    return convert(parse(read(path), path), type)
