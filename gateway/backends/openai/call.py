"""`Call`: one answer, or a part of one, from one arm; from another replica where the first one fails.

A replica is given up only before anything of the answer is there, and only for one of the same arm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import TypeVar

import httpx

from gateway.backends.openai.answer import Answer
from gateway.backends.openai.events import EventReader, TooLong
from gateway.backends.openai.failures import Failed, broken, midway, of_answer
from gateway.backends.openai.replica import STANDARD, Arm, Replica
from gateway.backends.openai.settings import Pace
from gateway.chunk import Chunk
from gateway.errors import ArmUnavailable, BackendFailed, GatewayError
from gateway.types import ChatRequest

_T = TypeVar("_T")
_DONE = b"[DONE]"
_MAX_ERROR_BYTES = 64 * 1024


class Call:
    """The chunks of one call, without the endings of its choices, which its answer has."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        arm: Arm,
        request: ChatRequest,
        path: str,
        body: bytes,
        headers: dict[str, str],
        pace: Pace,
        *,
        ids: Iterator[str],
        prompt: Callable[[], bytes],
        told: Callable[[Replica, str], None],
    ) -> None:
        """``ids``: one for each attempt. ``prompt``: what the affinity to a replica goes by. ``told``
        hears of what fails."""
        self._client, self._arm, self._pace = client, arm, pace
        self._request, self._path, self._body, self._headers = request, path, body, headers
        self._ids, self._prompt, self._told = ids, prompt, told
        self.answer = Answer(request, arm.name)
        self.replica: Replica | None = None
        """The one that answers; None before the first has taken the request."""

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """The chunks. Raises ArmUnavailable, or what the servers answered."""
        tried: list[Replica] = []
        last: GatewayError | None = None
        is_first = True
        while (replica := self._arm.choose(tried, self._prompt)) is not None:
            tried.append(replica)
            await replica.look_once(self._client)
            if not replica.usable:
                continue
            try:
                async with aclosing(self._attempt(replica, is_first=is_first)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except Failed as failure:
                last, is_first = failure.error, False
                self._told(replica, last.detail if isinstance(last, BackendFailed) else str(last))
                if not failure.again:
                    raise last from None
        raise self._down(last)

    def _down(self, last: GatewayError | None) -> GatewayError:
        if last is not None and not isinstance(last, BackendFailed):
            return last
        return ArmUnavailable(
            f"No server of the {self._arm.name} arm could answer; a request is not sent to an arm "
            "that speculates in its place. Try again soon.",
            retry_after=5,
        )

    async def _attempt(self, replica: Replica, *, is_first: bool) -> AsyncGenerator[Chunk]:
        """Raises Failed before the first chunk, BackendFailed after it.

        ``is_first``: one request that breaks every server must not close them all to the others.
        """
        self.answer, self.replica = Answer(self._request, replica.url), None
        begun = False
        with replica.busy():
            try:
                async with aclosing(self._answered(replica)) as chunks:
                    async for chunk in chunks:
                        if not begun:
                            begun = True
                            replica.breaker.succeed()
                        yield chunk
                if not self.answer.is_whole:
                    raise broken(f"{replica.url} ended before the answer did")
                replica.breaker.succeed()
                self._hold_to_its_word(replica)
            except (Failed, BackendFailed) as error:
                failure = _failure(error, by_request=not begun)
                if failure.blame and (is_first or not failure.by_request):
                    replica.breaker.fail()
                elif not failure.again:
                    replica.breaker.succeed()
                raise (midway(failure.error) if begun else failure) from None

    def _hold_to_its_word(self, replica: Replica) -> None:
        drafted = self.answer.drafted
        if self._arm.name == STANDARD and drafted is not None and drafted.num_draft_tokens:
            replica.catch()
            self._told(replica, f"it proposed {drafted.num_draft_tokens} draft tokens")

    async def _answered(self, replica: Replica) -> AsyncGenerator[Chunk]:
        """What one server answers, with the transport's errors as Failed."""
        url = f"{replica.place.api}{self._path}"
        headers = {**self._headers, "x-request-id": next(self._ids)}
        request = self._client.build_request(
            "POST", url, content=self._body, headers=headers, timeout=None
        )
        try:
            response = await _within(
                self._client.send(request, stream=True), self._pace.first_seconds
            )
            try:
                if response.status_code != 200:
                    raise await self._refused(response, replica)
                self.replica = replica
                async with aclosing(self._read(response)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                await response.aclose()
        except TimeoutError:
            raise broken(f"{replica.url} did not answer in time") from None
        except TooLong as error:
            raise broken(f"{replica.url} sent {error}") from None
        except httpx.HTTPError as error:
            detail = f"{replica.url}: {type(error).__name__}: {error}".rstrip(": ")
            raise broken(detail) from error

    async def _refused(self, response: httpx.Response, replica: Replica) -> Failed:
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MAX_ERROR_BYTES:
                break
        return of_answer(response.status_code, body, response.headers, replica.url)

    async def _read(self, response: httpx.Response) -> AsyncGenerator[Chunk]:
        reader, pieces = EventReader(), response.aiter_bytes()
        loop, begun = asyncio.get_running_loop(), False
        until = loop.time() + self._pace.first_seconds
        # Comments keep a connection alive; they are no part of an answer that has not begun.
        while (piece := await _within(anext(pieces, None), until - loop.time())) is not None:
            num_said = self.answer.num_said
            for data in reader.feed(piece):
                if data == _DONE:
                    return
                for chunk in self.answer.read(data):
                    begun = True
                    yield chunk
            if begun:
                until = loop.time() + self._pace.idle_seconds
            elif self.answer.num_said > num_said:
                # It thinks, which is left out, or writes what is not yet a piece.
                until = max(until, loop.time() + self._pace.idle_seconds)


def _failure(error: Failed | BackendFailed, *, by_request: bool) -> Failed:
    if isinstance(error, Failed):
        return error
    return Failed(error, again=True, blame=True, by_request=by_request)


async def _within(work: Awaitable[_T], seconds: float) -> _T:
    """Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        return await work
