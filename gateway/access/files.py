"""API keys in a JSON file that only its owner can read, replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.access.keys import StoredKey
from gateway.access.store import Keys
from gateway.errors import ConfigError, Problem


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's contents."""

    keys: tuple[StoredKey, ...] = ()
    version: int = 1


class FileKeyStore:
    """A `KeyStore` in one file. A file that is not there has no keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def version(self) -> object:
        """The file's identity, size and time."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}", "check its owner") from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def read(self) -> Keys:
        """See `KeyStore`."""
        try:
            document = msgspec.json.decode(self._path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}", "check its owner") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "bring back a copy; only `draftgate keys` should write it"
            raise self._wrong(f"is no file of keys: {error}", hint) from error
        if document.version != 1:
            raise self._wrong(f"has the version {document.version}", "use a newer Draftgate")
        return document.keys

    def change(self, edit: Callable[[Keys], Keys]) -> None:
        """See `KeyStore`. The file is whole at every moment, and on the disk when this returns."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise self._wrong(f"cannot be written: {error.strerror}", "check its folder") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._replace(edit(self.read()))
        finally:
            os.close(lock)

    def _replace(self, keys: Keys) -> None:
        text = msgspec.json.format(msgspec.json.encode(_Document(keys)), indent=1)
        folder = self._path.parent
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".keys-", delete=False) as part:
                try:
                    part.write(text + b"\n")
                    part.flush()
                    os.fsync(part.fileno())
                    os.replace(part.name, self._path)
                except BaseException:
                    os.unlink(part.name)
                    raise
        except OSError as error:
            raise self._wrong(f"cannot be written: {error.strerror}", "check its folder") from error

    def _wrong(self, message: str, hint: str) -> ConfigError:
        return ConfigError([Problem(f"the store of keys {message}", path=self.name, hint=hint)])
