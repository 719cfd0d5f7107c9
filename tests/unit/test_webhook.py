"""The webhook: in the background, a few attempts, and nothing that can raise into a request."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.audit.record import EvidenceEvent
from gateway.cell import Cell
from gateway.evidence.webhook import ATTEMPTS, SIGNATURE, Webhook, message, post, signature
from gateway.log import build_log

EVENT = EvidenceEvent(
    happened_at=1.0, kind="alarm", cell=Cell("code", "speculative", "coupled", "m"), cause="change"
)


class Receiver:
    """Fails as often as it is told."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or OSError("refused")
        self.got: list[tuple[str, bytes, dict[str, str], float]] = []

    def __call__(self, url: str, body: bytes, headers: dict[str, str], seconds: float) -> None:
        self.got.append((url, body, headers, seconds))
        if len(self.got) <= self.failures:
            raise self.error


async def deliver(receiver: Receiver, secret: bytes | None = None) -> None:
    webhook = Webhook(
        "http://there/",
        secret=secret,
        timeout_seconds=2.0,
        log=build_log("critical"),
        pause_seconds=0.0,
        post=receiver,
    )
    webhook.send(EVENT)
    await asyncio.gather(*webhook._under_way)
    await webhook.aclose()


async def test_it_is_tried_again_and_not_more_than_so_often() -> None:
    for failures, calls in ((0, 1), (2, 3), (99, ATTEMPTS)):
        receiver = Receiver(failures)
        await deliver(receiver)
        assert len(receiver.got) == calls
        assert receiver.got[0][0] == "http://there/"
        assert receiver.got[0][3] == 2.0


async def test_what_is_no_fault_of_the_network_is_not_tried_again() -> None:
    receiver = Receiver(99, ValueError("no URL"))
    await deliver(receiver)
    assert len(receiver.got) == 1


async def test_it_is_signed_where_there_is_a_key() -> None:
    receiver = Receiver(0)
    await deliver(receiver, b"secret")
    _, body, headers, _ = receiver.got[0]
    assert body == message(EVENT)
    assert headers[SIGNATURE] == signature(b"secret", body)
    unsigned = Receiver(0)
    await deliver(unsigned)
    assert SIGNATURE not in unsigned.got[0][2]


async def test_closing_gives_up_what_waits() -> None:
    webhook = Webhook(
        "http://there/",
        secret=None,
        timeout_seconds=2.0,
        log=build_log("critical"),
        pause_seconds=3600.0,
        post=Receiver(99),
    )
    for _ in range(40):
        webhook.send(EVENT)
    assert len(webhook._under_way) == 32
    await asyncio.sleep(0)
    await webhook.aclose()
    assert not webhook._under_way


def test_an_alarm_is_not_taken_elsewhere_by_a_redirect() -> None:
    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(OSError, match="302"):
            post(f"http://127.0.0.1:{server.server_port}/", b"{}", {}, 5.0)
        thread.join()
