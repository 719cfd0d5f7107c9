"""The files that make up a policy: the policy itself, its tests and proofs beside it, or a folder.

Knows names and bytes, and nothing of what is in them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gateway.routing.layers import SET_FILE

COMPANIONS = ("_test", "_proof")
_MAX_BYTES = 4 << 20


def beside(policy: Path, companion: str) -> Path:
    """Where a companion of a policy file is: ``x_test.yaml`` beside ``x.yaml``."""
    return policy.with_name(f"{policy.stem}{companion}{policy.suffix}")


def names(policy: Path) -> tuple[Path, ...]:
    """The policy and its companions, whether they are there or not."""
    return (policy, *(beside(policy, companion) for companion in COMPANIONS))


def _watched(policy: Path) -> tuple[Path, ...]:
    """The files whose change may change the policy: of a folder, all that may be part of the set."""
    if not is_set(policy):
        return names(policy)
    folder = _folder(policy)
    return tuple(sorted(path for end in ("yaml", "yml") for path in folder.rglob(f"*.{end}")))


def is_set(policy: Path) -> bool:
    """Whether the policy is a folder of files, named by itself or by its ``set.yaml``."""
    return policy.name == SET_FILE or policy.is_dir()


def _folder(policy: Path) -> Path:
    return policy if policy.is_dir() else policy.parent


def read(policy: Path) -> dict[str, str]:
    """The texts by file name, of those files that are there; of a folder, by path within it.

    Raises OSError when the policy itself cannot be read; what is no UTF-8 is replaced.
    """
    if is_set(policy):
        folder = _folder(policy)
        return {path.relative_to(folder).as_posix(): _text(path) for path in _watched(policy)}
    texts = {policy.name: _text(policy)}
    for path in names(policy)[1:]:
        try:
            texts[path.name] = _text(path)
        except FileNotFoundError:
            continue
    return texts


def fingerprint(policy: Path) -> str:
    """A digest of all bytes of the files; changes whenever one does, appears or goes away.

    The bytes are read, not the times of change: a swapped symbolic link or a restored copy keeps
    those.
    """
    digest = hashlib.sha256()
    for path in _watched(policy):
        try:
            with path.open("rb") as file:
                data = path.name.encode() + b"+" + file.read(_MAX_BYTES)
        except OSError as error:
            data = b"-" + str(error.errno).encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def write(policy: Path, texts: Mapping[str, str]) -> None:
    """Put ``texts`` in place, each file whole or not at all, and remove companions not in it.

    All are written beside their places first, so that a full disk changes nothing; the policy goes
    last. A symbolic link stays one. Raises OSError.
    """
    places = [path for path in reversed(names(policy)) if path.name in texts]
    ready: list[tuple[str, Path]] = []
    try:
        for path in places:
            real = path.resolve()
            ready.append((_beside(real, texts[path.name]), real))
        for temporary, real in ready:
            os.replace(temporary, real)
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)
    for path in names(policy)[1:]:
        if path.name not in texts:
            path.unlink(missing_ok=True)


def _beside(real: Path, text: str) -> str:
    """A new file with ``text`` and the permissions of ``real``, durable."""
    handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, real.stat().st_mode & 0o777 if real.exists() else 0o644)
    return temporary


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
