"""`Webhook`: tells another system of alarms, in the background. Knows nothing of how they are raised."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import msgspec

from gateway.audit.record import EvidenceEvent
from gateway.evidence.alarm import words
from gateway.log import Log

SIGNATURE = "x-draftgate-signature"
ATTEMPTS = 6
"""With the pauses between them, about half a minute."""
_MAX_UNDER_WAY = 32
_encoder = msgspec.json.Encoder()

Post = Callable[[str, bytes, dict[str, str], float], None]
"""Sends a body to a URL with headers, within seconds; raises OSError where it does not arrive."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An alarm goes where the configuration says and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def post(url: str, body: bytes, headers: dict[str, str], seconds: float) -> None:
    """POST ``body``. Raises OSError, which an answer other than 2xx is too."""
    # The configuration lets no other scheme than http and https in.
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
    try:
        with _opener.open(request, timeout=seconds):
            return
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class Webhook:
    """A `Messenger` by HTTP POST. What cannot be delivered is said in the log output."""

    def __init__(
        self,
        url: str,
        *,
        secret: bytes | None,
        timeout_seconds: float,
        log: Log,
        pause_seconds: float = 1.0,
        post: Post = post,
    ) -> None:
        """``secret`` signs the body; ``pause_seconds`` before the second attempt, then doubled."""
        self._url = url
        self._secret = secret
        self._timeout = timeout_seconds
        self._log = log
        self._pause = pause_seconds
        self._post = post
        self._under_way: set[asyncio.Task[None]] = set()

    def send(self, event: EvidenceEvent) -> None:
        """Take the event along. Returns at once and never raises."""
        if len(self._under_way) >= _MAX_UNDER_WAY:
            self._log.error("webhook_not_delivered", cell=event.cell.text, error="too many wait")
            return
        task = asyncio.create_task(self._deliver(event))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def aclose(self) -> None:
        """Let what is under way have one more attempt's time, then give it up."""
        tasks = tuple(self._under_way)
        if tasks:
            await asyncio.wait(tasks, timeout=self._timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, event: EvidenceEvent) -> None:
        try:
            error = await self._attempts(event)
        except asyncio.CancelledError:
            self._log.error(
                "webhook_not_delivered", cell=event.cell.text, error="the end came first"
            )
            raise
        if error:
            self._log.error("webhook_not_delivered", cell=event.cell.text, error=error)

    async def _attempts(self, event: EvidenceEvent) -> str:
        """Why it could not be delivered; empty where it was."""
        body = message(event)
        headers = {"content-type": "application/json", "user-agent": "draftgate"}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, body)
        pause, error = self._pause, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                await asyncio.to_thread(self._post, self._url, body, headers, self._timeout)
                return ""
            except OSError as failure:
                error = str(failure) or type(failure).__name__
            except Exception as failure:  # noqa: BLE001 - said below; nobody awaits this
                error = f"{type(failure).__name__}: {failure}"
                break
        return error


def message(event: EvidenceEvent) -> bytes:
    """The body: JSON with the event, its cell's id, and the cause in words."""
    return _encoder.encode(
        {
            "type": "evidence.alarm",
            "cell_id": event.cell.id,
            "message": f"{event.cell.text}: {words(event)}",
            "event": event,
        }
    )


def signature(secret: bytes, body: bytes) -> str:
    """What the receiver should find in the header `SIGNATURE`: HMAC-SHA256 of the body."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
