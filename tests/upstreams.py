"""A scripted upstream: an OpenAI-compatible server on a free port, with switches for its faults.

It answers from a script, token by token, and counts drafts as vLLM does when it is told to speculate.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import uvicorn

MODEL = "twin"
REPLY = "One two three four five six. Seven eight nine ten."
_TOKEN = re.compile("\\s*[^\\s\ufffd]*\ufffd|\\s*\\S+\\s?|\\s+")


class ScriptedUpstream:
    """One server in a thread. ``fault`` says what goes wrong with answers from now on."""

    def __init__(self, *, speculates: bool = False, kind: str = "vllm", reply: str = REPLY) -> None:
        self.speculates = speculates
        self.kind = kind
        self.reply = reply
        self.fault: str | None = None
        self.healthy = True
        self.drafted = 0
        self.max_length = 64
        self.delay = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = threading.Event()
        """Set when a client has left before the end of its answer."""
        self.url = ""
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> ScriptedUpstream:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no connection any more, and break those that there are."""
        assert self._server is not None
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._app, port=0, lifespan="off", log_config=None, ws="none", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - not ours
            await asyncio.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await serving

    async def _app(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"]
        if path in ("/v1/chat/completions", "/v1/completions"):
            await _Answering(self, path, receive, send).run(scope)
            return
        status, body = self._page(path)
        await _whole(send, status, body)

    def _page(self, path: str) -> tuple[int, bytes]:
        if path == "/health":
            return (200, b"") if self.healthy else (503, b"loading")
        if path == "/metrics":
            return 200, self._metrics().encode()
        if path == "/v1/models":
            row = {"id": MODEL, "object": "model", "max_model_len": self.max_length}
            return 200, msgspec.json.encode({"object": "list", "data": [row]})
        return 404, b"{}"

    def _metrics(self) -> str:
        if self.kind != "vllm":
            return ""
        text = 'vllm:num_requests_running{model_name="twin"} 0.0\n'
        if self.speculates:
            text += (
                f'vllm:spec_decode_num_draft_tokens_total{{model_name="twin"}} {self.drafted}.0\n'
            )
        return text


class _Answering:
    """One request."""

    def __init__(self, server: ScriptedUpstream, path: str, receive: Any, send: Any) -> None:
        self._server, self._receive, self._send = server, receive, send
        self._is_chat = path.endswith("/chat/completions")

    async def run(self, scope: Mapping[str, Any]) -> None:
        body = b""
        while True:
            message = await self._receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = msgspec.json.decode(body)
        self._server.bodies.append(asked)
        self._asked = asked
        self._server.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        if await self._refused():
            return
        if not asked.get("stream"):
            await _whole(self._send, 200, self._object(asked))
            return
        events = asyncio.create_task(self._stream(asked))
        gone = asyncio.create_task(self._receive())
        await asyncio.wait({events, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not events.done():
            self._server.left.set()
        for task in (events, gone):
            task.cancel()
        await asyncio.gather(events, gone, return_exceptions=True)

    async def _refused(self) -> bool:
        fault = self._server.fault
        if fault == "continuation":
            fault = "400" if "continue_final_message" in self._asked else None
        if fault is None or not fault.isdigit():
            return False
        error = {"message": f"scripted {fault}", "type": "x", "param": None, "code": None}
        await _whole(self._send, int(fault), msgspec.json.encode({"error": error}))
        return True

    async def _stream(self, asked: Mapping[str, Any]) -> None:
        fault = self._server.fault
        headers = [(b"content-type", b"text/event-stream")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if fault == "hang":
            await asyncio.sleep(60)
        for _ in range(4 if fault == "think" else 0):
            thought = {"delta": {"reasoning_content": "hm"}, "finish_reason": None}
            await self._event([{"index": 0, **thought}])
            await asyncio.sleep(0.1)
        if fault == "garbage":
            await self._piece(b"data: <html>\n\n")
        tokens, reason = self._tokens(asked)
        n = asked.get("n") or 1
        for place, token in enumerate(tokens):
            if place == 2 and fault in ("die_midway", "hang_midway", "error_midway"):
                await self._break(fault)
                return
            for index in range(n):
                await self._event([self._choice(index, token, asked)])
            await asyncio.sleep(self._server.delay)
        for index in range(n):
            await self._event([self._end(index, reason)])
        await self._event([], self._usage(asked, len(tokens) * n))
        await self._piece(b"data: [DONE]\n\n", last=True)

    async def _break(self, fault: str) -> None:
        if fault == "hang_midway":
            await asyncio.sleep(60)
        if fault == "error_midway":
            await self._piece(b'data: {"error": {"message": "scripted", "code": 500}}\n\n')
        # Without an end of the answer, nor of the chunked body.
        await self._piece(b"", last=True)

    def _tokens(self, asked: Mapping[str, Any]) -> tuple[list[str], str]:
        text, stops = self._server.reply, asked.get("stop") or []
        if asked.get("continue_final_message"):
            text = text.removeprefix(asked["messages"][-1]["content"])
        elif isinstance(asked.get("prompt"), str) and "|" in asked["prompt"]:
            text = text.removeprefix(asked["prompt"].partition("|")[2])
        cuts = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops)]
        cuts = [cut for cut in cuts if cut >= 0]
        tokens = _TOKEN.findall(text[: min(cuts)] if cuts else text)
        longest = asked.get("max_completion_tokens") or asked.get("max_tokens") or 1000
        return tokens[:longest], "length" if len(tokens) > longest else "stop"

    def _choice(self, index: int, token: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self._is_chat and asked.get("logprobs"):
            certain = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
            logprobs = {"content": [{**certain, "top_logprobs": [certain]}]}
        said = {"delta": {"content": token}} if self._is_chat else {"text": token}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": None}

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        said = {"delta": {}} if self._is_chat else {"text": ""}
        return {"index": index, **said, "finish_reason": reason}

    def _usage(self, asked: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        usage: dict[str, Any] = {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
        if self._server.speculates:
            self._server.drafted += 4
            if (asked.get("n") or 1) == 1 and tokens > 2:
                usage["metrics"] = {
                    "speculative_decoding": {
                        "num_spec_steps": 2,
                        "num_draft_tokens": 4,
                        "num_accepted_draft_tokens": 2,
                    }
                }
        return usage

    def _object(self, asked: Mapping[str, Any]) -> bytes:
        tokens, reason = self._tokens(asked)
        message = {"role": "assistant", "content": "".join(tokens)}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        # A conversation whose last turn goes on has no marks of its end.
        usage = {"prompt_tokens": 5 if asked.get("continue_final_message") else 7}
        return msgspec.json.encode({"choices": [choice], "usage": usage})

    async def _event(self, choices: list[Any], more: Mapping[str, Any] | None = None) -> None:
        event = {"id": "x", "choices": choices, **(more or {})}
        await self._piece(b"data: " + msgspec.json.encode(event) + b"\n\n")

    async def _piece(self, data: bytes, *, last: bool = False) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": not last}
        await self._send(message)


async def _whole(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
