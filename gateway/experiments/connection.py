"""`Connection`: HTTP/1.1 by hand over one connection that is kept.

For measuring: a client library would take more time than some of what is measured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

import msgspec

_MAX_LINE = 1 << 20
Headers = Mapping[str, str]


class Answered(msgspec.Struct, frozen=True):
    """The head of an answer, its names in lower case."""

    status: int
    headers: Headers


class _NoByte(ConnectionError):
    """The connection ended before anything of an answer had come."""


class Connection:
    """To one server. Not for two requests at a time."""

    def __init__(self, url: str, headers: Headers | None = None) -> None:
        """``headers`` go with every request. Raises ValueError for a URL that is none of HTTP's."""
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"{url!r} is no address such as http://127.0.0.1:8080")
        tls = place.scheme == "https"
        self._host = place.hostname
        self._port = place.port or (443 if tls else 80)
        self._tls = ssl.create_default_context() if tls else None
        self._base = place.path.rstrip("/")
        self._headers = {"host": place.netloc.rpartition("@")[2], **(headers or {})}
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Headers | None = None
    ) -> tuple[Answered, AsyncIterator[bytes]]:
        """The head of the answer, and its body as it comes; to be read to its end before the next.

        A connection that was kept and that the server has ended since is opened again, once. Raises
        OSError, also where the server ends the connection.
        """
        lines = [f"{method} {self._base}{path} HTTP/1.1"]
        given = {**self._headers, **(headers or {}), "content-length": str(len(body))}
        lines += [f"{name}: {value}" for name, value in given.items()]
        message = "\r\n".join([*lines, "", ""]).encode() + body
        kept = self._is_open()
        try:
            reader, head = await self._exchange(message)
        except _NoByte:
            self.close()
            if not kept:
                raise
            reader, head = await self._exchange(message)
        return head, self._body(reader, head)

    async def _exchange(self, message: bytes) -> tuple[asyncio.StreamReader, Answered]:
        """Write a request, and read the head of its answer. Raises OSError."""
        reader, writer = await self._open()
        try:
            writer.write(message)
            await writer.drain()
            return reader, _head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError as error:
            self.close()
            kind = ConnectionError if error.partial else _NoByte
            raise kind("the server ended the connection") from error
        except asyncio.LimitOverrunError as error:
            self.close()
            raise ConnectionError("the head of the answer is too long") from error
        except (ConnectionResetError, BrokenPipeError) as error:
            self.close()
            # What of a head had come before a reset is lost with the reader.
            raise _NoByte(str(error) or "the server ended the connection") from error

    async def read(
        self, method: str, path: str, body: bytes = b"", headers: Headers | None = None
    ) -> tuple[Answered, bytes]:
        """The head of the answer and all of its body. Raises OSError."""
        head, pieces = await self.send(method, path, body, headers)
        return head, b"".join([piece async for piece in pieces])

    def close(self) -> None:
        """Close it; the next request opens it again."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def _is_open(self) -> bool:
        return (
            self._reader is not None
            and self._writer is not None
            and not self._writer.is_closing()
            and not self._reader.at_eof()
        )

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None or not self._is_open():
            self.close()
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=_MAX_LINE
            )
        return self._reader, self._writer

    async def _body(self, reader: asyncio.StreamReader, head: Answered) -> AsyncIterator[bytes]:
        try:
            if head.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await reader.readline()).split(b";")[0], 16):
                    yield (await reader.readexactly(size + 2))[:-2]
                while (await reader.readline()).strip():
                    pass
            elif "content-length" in head.headers:
                yield await reader.readexactly(int(head.headers["content-length"]))
            elif head.status not in (204, 304):
                while piece := await reader.read(_MAX_LINE):
                    yield piece
                self.close()
        except (asyncio.IncompleteReadError, ValueError) as error:
            self.close()
            raise ConnectionError("the server ended the connection within an answer") from error
        if head.headers.get("connection", "").lower() == "close":
            self.close()


def _head(raw: bytes) -> Answered:
    first, *lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    parts = first.split(None, 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise ConnectionError(f"no HTTP answer: {first[:80]!r}")
    return Answered(int(parts[1]), headers)
