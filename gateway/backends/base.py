"""The seam to whatever generates: a `Backend` makes a prompt ready and turns a `Job` into a `Generation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
from prometheus_client import CollectorRegistry

from gateway.again import Run
from gateway.chunk import Chunk
from gateway.errors import UnsupportedParameter
from gateway.execution import Execution
from gateway.log import Log
from gateway.types import ChatRequest, Decision, Job, ModelInfo, Prompt


class BackendStatus(msgspec.Struct, frozen=True):
    """Whether a backend can take work now, and how busy it is."""

    ready: bool
    detail: str = ""
    running: int = 0
    queued: int = 0
    warnings: tuple[str, ...] = ()
    """What an operator should mend, although it takes work."""


class Generation(Protocol):
    """One running job: an async iterator of chunks that knows what has really run so far."""

    @property
    def execution(self) -> Execution:
        """The counts so far; final once the iterator has ended or `aclose` has returned."""
        ...

    async def __anext__(self) -> Chunk:
        """The next chunk; every choice ends with exactly one that has a finish reason."""
        ...

    async def aclose(self) -> None:
        """Stop the work (it takes effect within one decode step) and settle the counts. Idempotent."""
        ...


@runtime_checkable
class Traced(Protocol):
    """A generation that knows its tokens."""

    @property
    def outputs(self) -> Sequence[Sequence[int]]:
        """The token ids of each answer so far, in the order of their seeds; final like the counts."""
        ...


@runtime_checkable
class Redecoder(Protocol):
    """A backend that can decode a request again, to hold the tokens against those of before."""

    async def decode_again(self, job: Job, *, patient: bool) -> Run | None:
        """What the job gives now. With ``patient`` it runs only while nothing else waits, and is
        given up when something does; None then, and where the backend stops. Raises like `generate`.
        """
        ...


@runtime_checkable
class Checker(Protocol):
    """A backend that can tell before any request whether it could obey a decision."""

    def check(self, decision: Decision) -> None:
        """Raise ConfigError, with what is missing, when it could not."""
        ...


@runtime_checkable
class Starter(Protocol):
    """A backend that has something to do while the gateway runs, even when nobody asks."""

    async def start(self, log: Log, registry: CollectorRegistry) -> None:
        """Begin with it, on the event loop; `aclose` ends it. Must not fail because of others."""
        ...


class Backend(Protocol):
    """Where answers are generated.

    Its constructor takes its options and ``name``, its name in the configuration, which its
    executions report.
    """

    @property
    def models(self) -> Sequence[ModelInfo]:
        """The models served here."""
        ...

    @property
    def status(self) -> BackendStatus:
        """Read by health checks and metrics; cheap."""
        ...

    async def prepare(self, request: ChatRequest) -> Prompt:
        """Render and tokenize.

        Raises ContextLengthExceeded, UnsupportedParameter or another InvalidRequest.
        """
        ...

    async def generate(self, job: Job) -> Generation:
        """Queue the job. Raises QueueFull or Unavailable; nothing is generated before this is called."""
        ...

    async def aclose(self) -> None:
        """Cancel what runs and free the model."""
        ...


def serves(backend: Backend, model: str) -> bool:
    """Whether one of its models has this id."""
    return any(known.id == model for known in backend.models)


def refuse_token_parameters(
    request: ChatRequest, *, takes_tools: bool = False, forwards: bool = False
) -> None:
    """For backends without a model: raise UnsupportedParameter for what only one with tokens can do.

    One that ``forwards`` leaves it to others, but for what it could not take back from them.
    """
    refused: list[tuple[str, object]] = [("echo", request.echo), ("best_of", request.best_of)]
    if not forwards:
        refused += _of_tokens(request, takes_tools=takes_tools)
    for param, given in refused:
        if given:
            raise UnsupportedParameter(f"This model does not support {param!r}.", param=param)


def _of_tokens(request: ChatRequest, *, takes_tools: bool) -> list[tuple[str, object]]:
    return [
        ("stop_token_ids", request.sampling.stop_token_ids),
        ("ignore_eos", request.sampling.ignore_eos),
        ("min_tokens", request.sampling.min_tokens),
        (request.grammar.param if request.grammar else "", request.grammar),
        ("tool_choice", request.called or (request.may_call and not takes_tools)),
    ]
