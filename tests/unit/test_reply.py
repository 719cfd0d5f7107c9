from __future__ import annotations

import asyncio

import pytest

from gateway.chunk import Chunk
from gateway.errors import BackendFailed, QueueFull, Unavailable
from gateway.reply import Emit, Receipt, Reply
from gateway.types import Decision, Mode

RECEIPT = Receipt(
    request_id="req_1",
    decision_id="dec_1",
    created_at=1.0,
    decision=Decision(mode=Mode.STANDARD, rule="default", policy="p", policy_hash="h"),
    prompt_tokens=3,
)


def saying(*texts: str, then: Exception | None = None, log: list[str] | None = None) -> Reply:
    async def produce(emit: Emit) -> None:
        for text in texts:
            await emit(Chunk(text=text))
            if log is not None:
                log.append(text)
        if then is not None:
            raise then

    return Reply(RECEIPT, produce, size=2)


async def read(reply: Reply) -> list[str]:
    return [chunk.text async for chunk in reply]


async def test_chunks_come_in_order_and_only_once() -> None:
    reply = saying("a", "b", "c", "d", "e")

    await reply.prime()

    assert await read(reply) == ["a", "b", "c", "d", "e"]
    assert await read(reply) == []


async def test_an_answer_without_chunks_is_empty() -> None:
    reply = saying()

    await reply.prime()

    assert await read(reply) == []


async def test_an_error_before_the_first_chunk_is_raised_by_prime() -> None:
    reply = saying(then=QueueFull("full"))

    with pytest.raises(QueueFull, match="full"):
        await reply.prime()
    assert await read(reply) == []


async def test_an_error_later_comes_after_what_was_said() -> None:
    reply = saying("a", "b", "c", then=BackendFailed("broke"))
    await reply.prime()
    texts = []

    async def read_on() -> None:
        async for chunk in reply:
            texts.append(chunk.text)

    with pytest.raises(BackendFailed, match="broke"):
        await read_on()

    assert texts == ["a", "b", "c"]
    assert await read(reply) == []


async def test_an_unforeseen_error_tells_the_reader_nothing_of_its_text() -> None:
    reply = saying(then=ZeroDivisionError("secret"))

    with pytest.raises(BackendFailed) as caught:
        await reply.prime()

    assert "secret" not in caught.value.message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_slow_reader_holds_the_producer_back() -> None:
    log: list[str] = []
    reply = saying(*"abcdefgh", log=log)
    await reply.prime()

    for _ in range(50):
        await asyncio.sleep(0)

    assert log == ["a", "b", "c"]
    assert list("abcdefgh") == await read(reply)


async def test_cancel_returns_at_once_and_may_be_repeated() -> None:
    cleaned = asyncio.Event()

    async def produce(emit: Emit) -> None:
        try:
            await emit(Chunk(text="a"))
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    reply = Reply(RECEIPT, produce)
    await reply.prime()

    reply.cancel()
    await asyncio.sleep(0)
    reply.cancel()
    await reply.wait()
    reply.cancel()

    assert cleaned.is_set()


async def test_a_reader_that_waits_is_woken_by_cancel() -> None:
    async def produce(emit: Emit) -> None:
        await asyncio.sleep(60)

    reply = Reply(RECEIPT, produce)
    reader = asyncio.create_task(reply.prime())
    await asyncio.sleep(0)

    reply.cancel()

    with pytest.raises(Unavailable, match="cancelled"):
        await asyncio.wait_for(reader, 1)


async def test_cancel_ends_a_producer_that_waits_for_room() -> None:
    reply = saying(*"abcdefgh")
    await reply.prime()
    await asyncio.sleep(0.01)

    reply.cancel()
    await asyncio.wait_for(reply.wait(), 1)

    with pytest.raises(Unavailable):
        await read(reply)


async def test_cancel_before_the_producer_has_begun_still_wakes_the_reader() -> None:
    reply = saying("a")

    reply.cancel()

    with pytest.raises(Unavailable):
        await asyncio.wait_for(reply.prime(), 1)


async def test_cancel_after_the_end_changes_nothing() -> None:
    reply = saying("a", "b")
    await reply.prime()
    await reply.wait()

    reply.cancel()

    assert await read(reply) == ["a", "b"]


async def test_when_done_is_called_after_success_and_after_cancel() -> None:
    calls: list[str] = []
    finished, cancelled = saying("a"), saying("a")
    finished.when_done(lambda: calls.append("finished"))
    cancelled.when_done(lambda: calls.append("cancelled"))
    await finished.wait()

    cancelled.cancel()
    await cancelled.wait()
    await asyncio.sleep(0)

    assert {"finished", "cancelled"} == set(calls)
