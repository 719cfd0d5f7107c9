"""Who is asked for an answer when answers are timed: a gateway over HTTP, or the engine itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from gateway.backends.base import Backend
from gateway.errors import ConfigError, GatewayError, Problem
from gateway.experiments.arms import Arm
from gateway.experiments.connection import Connection
from gateway.experiments.prompts import Prompt
from gateway.types import Job, Sampling

AS_DECIDED = "as decided"
"""The arm in which the gateway's policy chooses the mode."""
_ERROR_LENGTH = 200


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Something of an answer has arrived: a piece of it, or what is known at its end."""

    piece: bool = False
    tokens: int = 0
    """Of the whole answer, at its end."""
    mode: str = ""
    """That was decided or run, once it is known."""
    error: str = ""
    """Why there is no answer, or no more of it."""


class Asker(Protocol):
    """Asks for one answer at a time."""

    def ask(self, prompt: Prompt, arm: str, sampling: Sampling) -> AsyncGenerator[Seen, None]:
        """Everything of the answer as it arrives. Never raises for an answer that fails."""
        ...

    async def aclose(self) -> None:
        """Let go of whoever is asked."""
        ...


class EngineAsker:
    """Asks a backend, as a gateway does behind its policy."""

    def __init__(self, backend: Backend, arms: Sequence[Arm]) -> None:
        self._backend = backend
        self._arms = {arm.name: arm for arm in arms}

    async def ask(self, prompt: Prompt, arm: str, sampling: Sampling) -> AsyncGenerator[Seen, None]:
        """See `Asker`."""
        request = prompt.request(sampling)
        try:
            made = await self._backend.prepare(request)
            # A caller for each prompt: none may find another's prompt computed.
            job = Job(
                "experiment",
                request,
                self._arms[arm].decision,
                sampling,
                made,
                caller_id=f"{arm}/{sampling.seed}",
                domain=prompt.kind,
            )
            generation = await self._backend.generate(job)
        except GatewayError as error:
            yield Seen(error=error.message)
            return
        try:
            while True:
                chunk = await generation.__anext__()
                yield Seen(piece=bool(chunk.said))
        except StopAsyncIteration:
            ran = generation.execution
            mode = "" if ran.mode is None else ran.mode.value
            yield Seen(tokens=ran.usage.completion_tokens, mode=mode)
        except GatewayError as error:
            yield Seen(error=error.message)
        finally:
            await generation.aclose()

    async def aclose(self) -> None:
        """Nothing: the backend is its owner's."""


class GatewayAsker:
    """Asks a gateway, each question over a connection that is kept for the next one."""

    def __init__(self, url: str, key: str | None, model: str) -> None:
        """Raises ConfigError for a URL that is none."""
        self._url, self._key, self._model = url, key, model
        self._idle = [_connect(url, key)]

    async def ask(self, prompt: Prompt, arm: str, sampling: Sampling) -> AsyncGenerator[Seen, None]:
        """See `Asker`."""
        connection = self._idle.pop() if self._idle else _connect(self._url, self._key)
        whole = False
        try:
            head, body = await connection.send(
                "POST",
                "/v1/chat/completions",
                self._body(prompt, sampling),
                {} if arm == AS_DECIDED else {"x-draftgate-mode": arm},
            )
            mode = head.headers.get("x-draftgate-mode", "")
            if head.status != 200:
                text = b"".join([piece async for piece in body])
                yield Seen(error=f"{head.status}: {message_of(text)}", mode=mode)
            else:
                async for event in _events(body):
                    yield _seen(event, mode)
            whole = True
        except (OSError, msgspec.DecodeError) as error:
            yield Seen(error=str(error) or type(error).__name__)
        finally:
            if whole:
                self._idle.append(connection)
            else:
                connection.close()

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.close()

    def _body(self, prompt: Prompt, sampling: Sampling) -> bytes:
        messages = [
            {"role": message.role, "content": message.content}
            for message in prompt.request(sampling).messages
        ]
        return msgspec.json.encode(
            {
                "model": self._model,
                "messages": messages,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "seed": sampling.seed,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


async def first_model(url: str, key: str | None) -> str:
    """The first model that a gateway names. Raises ConfigError where it does not answer."""
    connection = _connect(url, key)
    hint = "see that the gateway runs, and that --url and --key are right"
    try:
        head, body = await connection.read("GET", "/v1/models")
        if head.status != 200:
            raise ConfigError(
                [Problem(f"answers {head.status}: {message_of(body)}", path=url, hint=hint)]
            )
        name: str = msgspec.json.decode(body)["data"][0]["id"]
    except OSError as error:
        raise ConfigError([Problem(f"does not answer: {error}", path=url, hint=hint)]) from None
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise ConfigError([Problem(f"names no model: {error}", path=url, hint=hint)]) from None
    finally:
        connection.close()
    return name


def message_of(body: bytes) -> str:
    """What an error's body says."""
    try:
        said = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        said = body.decode("utf-8", "replace")
    return said[:_ERROR_LENGTH]


def _connect(url: str, key: str | None) -> Connection:
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        return Connection(url, headers)
    except ValueError as error:
        raise ConfigError([Problem(str(error), path="--url")]) from None


async def _events(body: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """What the ``data`` lines of a stream hold, up to ``[DONE]``; all of the body is read."""
    rest = b""
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data and data != b"[DONE]":
                yield msgspec.json.decode(data)


def _seen(event: Any, mode: str) -> Seen:
    if "error" in event:
        return Seen(error=str(event["error"].get("message"))[:_ERROR_LENGTH], mode=mode)
    usage = event.get("usage") or {}
    texts = (choice.get("delta", {}).get("content") for choice in event.get("choices", ()))
    return Seen(piece=any(texts), tokens=int(usage.get("completion_tokens", 0)), mode=mode)
