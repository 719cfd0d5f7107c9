"""`EventReader`: server-sent events from bytes, however they are cut. Knows nothing of what they say."""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 8 * 1024 * 1024


class TooLong(ValueError):
    """An event without an end."""


class EventReader:
    """Yields the data of each event; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The events that are whole with ``piece``. Raises TooLong."""
        self._rest += piece
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end]).removesuffix(b"\r")
            del self._rest[: end + 1]
            event = self._line(line)
            if event is not None:
                yield event
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise TooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            return data or None
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)
        return None
