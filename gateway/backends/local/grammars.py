"""Makes the grammars of requests ready, off the event loop and away from the engine's thread."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec

from decoders.constraints import GrammarError, UnsupportedGrammar
from decoders.grammar import CompiledGrammar, Grammar, GrammarCompiler, GrammarKind
from decoders.json_schema import calls_schema
from decoders.loader import LoadedModel
from gateway.errors import InvalidRequest, QueueFull, Unavailable, UnsupportedParameter
from gateway.types import ChatRequest, Tool

COMPILE_SECONDS = 10.0
"""A grammar that takes longer, or that has not been begun by then, is refused."""
_THREADS = 2
_DEMANDED = 'Answer with one call, as JSON on one line: {"name": …, "arguments": {…}}'
_OFFERED = (
    "Where one of them helps, answer with a call: "
    '<tool_call>{"name": …, "arguments": {…}}</tool_call>\nElse answer in words.'
)


class Grammars:
    """The compiler of one model."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    async def compile(self, request: ChatRequest) -> CompiledGrammar | None:
        """What holds the answer to its form; None for free text.

        Raises InvalidRequest, or UnsupportedParameter for what cannot be enforced exactly;
        QueueFull when others' grammars keep it from being begun, Unavailable after `close`.
        """
        if request.grammar is None and not request.called:
            return None
        param = "tools" if request.grammar is None else request.grammar.param
        try:
            work = self._pool.submit(self._compile, request)
        except RuntimeError:  # the pool is shut down
            raise Unavailable("The engine is shutting down.", retry_after=5) from None
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await asyncio.wrap_future(work)
        except TimeoutError:
            if work.cancel():  # no thread had begun it
                raise QueueFull(
                    "Other requests' grammars are still being prepared; try again.",
                    retry_after=math.ceil(COMPILE_SECONDS),
                ) from None
            raise InvalidRequest(
                f"{param!r} took longer than {COMPILE_SECONDS:g} seconds to prepare; make it smaller.",
                param=param,
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable("The engine is shutting down.", retry_after=5) from None

    def close(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request: ChatRequest) -> CompiledGrammar:
        if request.grammar is not None:
            given, param = request.grammar, request.grammar.param
            kind = "json_schema" if given.kind == "json_object" else given.kind
            grammar = Grammar(GrammarKind(kind), given.source)
        else:
            grammar, param = _calls(request), "tools"
        with _named(param):
            return self._ready().compile(grammar)

    def _ready(self) -> GrammarCompiler:
        with self._lock:
            if self._compiler is None:
                loaded = self._loaded
                vocabulary = loaded.tokenizer.vocabulary(loaded.model.vocab_size)
                self._compiler = GrammarCompiler(vocabulary, loaded.tokenizer.eos_ids)
            return self._compiler


def described(
    turns: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, demanded: bool
) -> list[Mapping[str, Any]]:
    """The turns with the tools in the system message, for a chat template that does not take them.

    One of them is to be called where that is ``demanded``, and may be where it is not.
    """
    lines = "\n".join(msgspec.json.encode(shown(tool)["function"]).decode() for tool in tools)
    text = f"You can call these functions:\n{lines}\n{_DEMANDED if demanded else _OFFERED}"
    if turns and turns[0]["role"] == "system":
        first = {**turns[0], "content": "\n\n".join(filter(None, (turns[0]["content"], text)))}
        return [first, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def shown(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": msgspec.json.decode(tool.parameters),
    }
    return {"type": "function", "function": function}


def _calls(request: ChatRequest) -> Grammar:
    functions = []
    for i, tool in enumerate(request.tools):
        if tool.name in request.called:
            functions.append((tool.name, tool.parameters))
            with _named(f"tools[{i}].function.parameters"):
                calls_schema(functions[-1:])
    return Grammar(GrammarKind.JSON_SCHEMA, calls_schema(functions))


@contextmanager
def _named(param: str) -> Iterator[None]:
    """Turn what the engine says of a grammar into an error about ``param``."""
    try:
        yield
    except UnsupportedGrammar as error:
        raise UnsupportedParameter(f"{param!r} {error}.", param=param) from None
    except GrammarError as error:
        raise InvalidRequest(f"{param!r} {error}.", param=param) from None
