"""The files that make up a policy: the policy, its tests and proofs beside it, those a set lists.

Knows names and bytes; of what is in them, only which files a set lists.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway import documents
from gateway.errors import ConfigError, Problem
from gateway.routing.layers import SET_FILE, SetEntry

T = TypeVar("T")

TESTS, PROOFS = "_test", "_proof"
COMPANIONS = (TESTS, PROOFS)
_MAX_BYTES = 4 << 20
_TRIES = 5


class Snapshot(msgspec.Struct, frozen=True):
    """What the files of a policy held at one time."""

    contents: dict[str, bytes]
    """By file name, of those that could be read; of a set, by path within its folder."""
    fingerprint: str
    """Changes whenever a file does, appears or goes away."""


def texts(contents: Mapping[str, bytes]) -> dict[str, str]:
    """The same as text; what is no UTF-8 is replaced."""
    return {name: data.decode(errors="replace") for name, data in contents.items()}


def beside(policy: Path, companion: str) -> Path:
    """Where a companion of a policy file is: ``x_test.yaml`` beside ``x.yaml``."""
    return policy.with_name(f"{policy.stem}{companion}{policy.suffix}")


def names(policy: Path) -> tuple[Path, ...]:
    """The policy and its companions, whether they are there or not."""
    return (policy, *(beside(policy, companion) for companion in COMPANIONS))


def is_set(policy: Path) -> bool:
    """Whether the policy is a folder of files, named by itself or by its ``set.yaml``."""
    return policy.name == SET_FILE or policy.is_dir()


def listed(policy: Path) -> tuple[Path, ...]:
    """The files that a set lists, in its order; none where it cannot be read."""
    index = _index(policy)
    try:
        entry = documents.load(index, SetEntry)
    except ConfigError:
        return ()
    return tuple(index.parent / name for name in (*entry.policies, *entry.tighten))


def read(policy: Path) -> Snapshot:
    """All files whose change may change the policy.

    The bytes are read, not the times of change: a swapped symbolic link or a restored copy keeps
    those.
    """
    places = names(policy)
    if is_set(policy):
        places = (*names(_index(policy)), *listed(policy))
    folder = places[0].parent
    contents: dict[str, bytes] = {}
    digest = hashlib.sha256()
    for path in places:
        name = path.relative_to(folder).as_posix()
        try:
            with path.open("rb") as file:
                contents[name] = file.read(_MAX_BYTES)
        except OSError as error:
            parts = (os.fsencode(name), b"-", str(error.errno).encode())
        else:
            parts = (os.fsencode(name), b"+", contents[name])
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
    return Snapshot(contents, digest.hexdigest())


def fingerprint(policy: Path) -> str:
    """That of what the files hold now."""
    return read(policy).fingerprint


def settled(policy: Path, make: Callable[[], T]) -> tuple[T, Snapshot]:
    """What ``make`` makes of the files, and these, all of one generation.

    ``make`` reads one file after another and is asked again when any has changed meanwhile.
    Raises what it raises, and ConfigError when the files do not come to rest.
    """
    before = fingerprint(policy)
    for _ in range(_TRIES):
        failed: ConfigError | None = None
        try:
            made = make()
        except ConfigError as error:
            failed = error
        after = read(policy)
        if after.fingerprint == before:
            if failed is not None:
                raise failed
            return made, after
        before = after.fingerprint
    hint = "try again when they are in place"
    raise ConfigError([Problem("the files changed while they were read", path=policy, hint=hint)])


def write(policy: Path, contents: Mapping[str, bytes]) -> None:
    """Put ``contents`` in place, each file whole or not at all, and remove companions not in it.

    All are written beside their places first, so that a full disk changes nothing; the policy goes
    last. A symbolic link stays one. Raises OSError.
    """
    places = [path for path in reversed(names(policy)) if path.name in contents]
    ready: list[tuple[str, Path]] = []
    try:
        for path in places:
            real = path.resolve()
            ready.append((_temporary(real, contents[path.name]), real))
        for temporary, real in ready:
            os.replace(temporary, real)
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)
    for path in names(policy)[1:]:
        if path.name not in contents:
            path.unlink(missing_ok=True)


def _index(policy: Path) -> Path:
    return policy / SET_FILE if policy.is_dir() else policy


def _temporary(real: Path, data: bytes) -> str:
    """A new file beside ``real`` with these bytes and its permissions, durable."""
    handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, real.stat().st_mode & 0o777 if real.exists() else 0o644)
    return temporary
