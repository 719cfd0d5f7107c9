"""`OpenAIBackend`: one model on twin deployments, one that speculates and one that does not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import httpx
from prometheus_client import CollectorRegistry

from gateway.backends.base import BackendStatus, refuse_token_parameters
from gateway.backends.openai.call import Call
from gateway.backends.openai.generation import UpstreamGeneration
from gateway.backends.openai.plan import plan
from gateway.backends.openai.replica import SPECULATIVE, STANDARD, Arm, Replica
from gateway.backends.openai.settings import Arms, ArmSettings, Balance, Pace, api_key
from gateway.backends.openai.watch import Watch
from gateway.backends.openai.wire import (
    attempt_ids,
    body_of,
    headers_of,
    path_of,
    refuse_unreadable_calls,
)
from gateway.errors import (
    ConfigError,
    ContextLengthExceeded,
    Problem,
    QueueFull,
    Unavailable,
)
from gateway.log import Log
from gateway.types import ChatRequest, Decision, Job, ModelInfo, Prompt, Sampling

_UNKNOWN_LENGTH = 131_072
_BYTES_A_TOKEN = 4
_AFFINITY_BYTES = 4096
"""As much of a prompt's beginning says where it belongs."""


class OpenAIBackend:
    """Answers from servers that speak the OpenAI API."""

    def __init__(
        self,
        *,
        name: str = "openai",
        model: str,
        arms: Arms,
        upstream_model: str | None = None,
        max_length: int | None = None,
        balance: Balance = "least_loaded",
        pace: Pace | None = None,
        max_running: int = 1000,
        probes: bool = True,
    ) -> None:
        """``model`` is what clients call it, ``upstream_model`` what its servers do.

        ``max_length``: the context in tokens; None: what the servers say. ``probes``: whether an arm
        is asked a few short questions when it comes up, to see what it honours.

        Raises ConfigError where an API key is not in the environment.
        """
        self._name, self._model = name, model
        self._upstream_model = upstream_model or model
        self._max_length = max_length
        self._pace = pace or Pace()
        self._max_running = max_running
        self._created = int(time.time())
        self._closed = False
        self._open: set[UpstreamGeneration] = set()
        self._arms = {
            arm_name: self._arm(arm_name, settings, balance)
            for arm_name, settings in ((STANDARD, arms.standard), (SPECULATIVE, arms.speculative))
            if settings is not None
        }
        urls = [replica.url for arm in self._arms.values() for replica in arm.replicas]
        self._client = client_for(urls, self._pace, max_running)
        self._watch = Watch(
            name,
            self._upstream_model,
            self._arms,
            self._client,
            seconds=self._pace.check_seconds,
            probes=probes,
        )

    @property
    def models(self) -> Sequence[ModelInfo]:
        """The one model."""
        return (
            ModelInfo(
                self._model,
                self._created,
                self._longest(),
                fingerprint=f"{self._name} {self._model}",
            ),
        )

    @property
    def status(self) -> BackendStatus:
        """Ready while a server of the standard arm can be used: some requests may go nowhere else."""
        standard = self._arms[STANDARD]
        ready = not self._closed and standard.usable
        return BackendStatus(
            ready=ready,
            detail="closed" if self._closed else _summary(self._arms),
            running=len(self._open),
            warnings=self._watch.warnings(),
        )

    async def start(self, log: Log, registry: CollectorRegistry) -> None:
        """Look at the servers, and go on looking."""
        await self._watch.start(log, registry)

    def check(self, decision: Decision) -> None:
        """Raise ConfigError for a verifier with a budget, which no server keeps."""
        if decision.max_distortion is not None:
            message = f"no upstream keeps the budget of the lossy verifier {decision.verifier!r}"
            hint = "use coupled, or send the rule's requests to a local backend"
            raise ConfigError([Problem(message, path="backends", hint=hint)])

    async def prepare(self, request: ChatRequest) -> Prompt:
        """Estimate the prompt's length: how its servers cut it into tokens they alone know."""
        refuse_token_parameters(request, forwards=True)
        refuse_unreadable_calls(request)
        num_words, num_bytes = _size(request)
        # Words are cut into tokens, and not put together to some: this many there are at least.
        if num_words >= self._longest():
            raise ContextLengthExceeded(
                f"The prompt has at least {num_words} tokens and the model's context is "
                f"{self._longest()}; shorten the prompt.",
                param="prompt" if request.prompt is not None else "messages",
            )
        return Prompt(max(num_words, math.ceil(num_bytes / _BYTES_A_TOKEN), 1))

    async def generate(self, job: Job) -> UpstreamGeneration:
        """Send the job to the arm that its decision allows. Raises UnsupportedParameter too."""
        if self._closed:
            raise Unavailable("The backend is closed.")
        if len(self._open) >= self._max_running:
            raise QueueFull(f"{len(self._open)} requests are running; try again soon.")
        planned = plan(job, self._arms)
        begin = partial(self._begin, job, attempt_ids(job))
        generation: UpstreamGeneration | None = None

        def ended() -> None:
            if generation is not None:
                self._open.discard(generation)

        generation = UpstreamGeneration(self._name, job, planned, begin, ended)
        self._open.add(generation)
        return generation

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        await self._watch.aclose()
        for generation in tuple(self._open):
            await generation.aclose()
        await self._client.aclose()

    def _begin(
        self, job: Job, ids: Iterator[str], arm_name: str, sampling: Sampling, prefix: str
    ) -> Call:
        arm = self._arms[arm_name]
        return Call(
            self._client,
            arm,
            job.request,
            path_of(job.request),
            body_of(job, self._upstream_model, arm.honours, sampling=sampling, prefix=prefix),
            headers_of(job, arm.key),
            self._pace,
            ids=ids,
            prompt=lambda: _beginning(job.request),
            told=self._watch.note,
        )

    def _arm(self, name: str, settings: ArmSettings, balance: Balance) -> Arm:
        key = api_key(settings, name)
        replicas = [
            Replica(url, self._upstream_model, key, name, self._pace) for url in settings.urls
        ]
        return Arm(name, replicas, key=key, balance=balance, declared=settings.honours)

    def _longest(self) -> int:
        if self._max_length is not None:
            return self._max_length
        lengths = [arm.max_length for arm in self._arms.values()]
        return min((each for each in lengths if each is not None), default=_UNKNOWN_LENGTH)


def client_for(urls: Iterable[str], pace: Pace, most: int) -> httpx.AsyncClient:
    """One pool of connections; HTTP/2 where a server has it, and nothing from the environment."""
    secure = any(url.startswith("https:") for url in urls)
    return httpx.AsyncClient(
        http2=True,
        # Certificates take long to load, and are for https only.
        verify=secure,
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=pace.connect_seconds, pool=pace.connect_seconds),
        limits=httpx.Limits(max_connections=most + 64, max_keepalive_connections=256),
    )


def _summary(arms: Mapping[str, Arm]) -> str:
    parts = []
    for arm in arms.values():
        states = [replica.state for replica in arm.replicas]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        parts.append(f"{arm.name}: {counts}")
    return "; ".join(parts)


def _size(request: ChatRequest) -> tuple[int, int]:
    """The words and the bytes of all that a model may read; token ids are words."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt), 0
    texts = request.texts()
    return sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)


def _beginning(request: ChatRequest) -> bytes:
    if isinstance(request.prompt, tuple):
        return repr(request.prompt[:_AFFINITY_BYTES]).encode()
    return "\0".join(request.texts()).encode()[:_AFFINITY_BYTES]
