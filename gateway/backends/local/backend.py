"""Serves one model with the engine: one thread decodes, the event loop only passes pieces on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from decoders.calibration import load_profile
from decoders.cost import Cost, CostModel, EverythingPays
from decoders.engine import Engine
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, Gate, StandardFirst
from decoders.hedges import hedge_ids
from decoders.loader import DEMO, LoadedModel
from decoders.meter import LawMeter, Meter, NoMeter
from decoders.models.base import ModelError
from decoders.modes import Hybrid, Speculative, Standard
from decoders.modes import Mode as RowMode
from decoders.params import ParameterError, SamplingParams
from decoders.request import EngineStopped, PromptTooLong, Request
from decoders.request import QueueFull as EngineQueueFull
from decoders.verifiers.base import Verifier
from gateway import extensions
from gateway.again import Run
from gateway.backends.base import BackendStatus
from gateway.backends.calls import CallFormat, format_of
from gateway.backends.local.drafts import draft_sources as draft_sources_of
from gateway.backends.local.generation import LocalGeneration
from gateway.backends.local.grammars import Grammars, described, shown
from gateway.backends.local.loading import config_error, load
from gateway.backends.local.probe import find_probe
from gateway.backends.local.revival import Reviver
from gateway.backends.local.second_opinion import SecondOpinion
from gateway.backends.local.turns import turns_of, with_calls_written
from gateway.errors import (
    BackendFailed,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    QueueFull,
    Unavailable,
    UnsupportedParameter,
)
from gateway.types import (
    ChatRequest,
    Decision,
    Job,
    Mode,
    ModelInfo,
    Prompt,
    Sampling,
)


class LocalBackend:
    """Serves one model on this machine."""

    def __init__(
        self,
        *,
        name: str = "local",
        model: str = DEMO,
        draft_model: str | None = None,
        draft_layers: int | None = None,
        served_name: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        num_slots: int = 8,
        max_length: int = 4096,
        max_queue: int = 64,
        max_queue_per_caller: int | None = None,
        queue_seconds: float | None = None,
        prefill_chunk_tokens: int = 256,
        threads: int | Literal["auto"] = "auto",
        waiting: Literal["auto", "spin", "passive"] = "auto",
        cache: str | None = None,
        cost_model: Literal["auto", "off", "frozen"] | bool = "auto",
        draft_sources: dict[str, dict[str, Any]] | None = None,
        probe: str | bool = "auto",
        evidence: Literal["on", "off"] | bool = True,
    ) -> None:
        """Load the model and start the engine; ``served_name`` is what clients call it.

        ``draft_model`` drafts for the source ``model``; of it, or of ``model`` itself where it is
        not given, only the first ``draft_layers`` layers where that is.

        ``dtype`` ``fastest`` and ``threads`` ``auto`` are what decodes fastest here, by measuring.
        ``waiting`` is for the command line, which settles it before torch is there.
        ``cost_model`` weighs each draft against its cost as it learns, from the start-up profile
        alone when ``frozen``, not at all when ``off``; YAML reads a bare ``off`` as False.
        ``draft_sources``: the options of a draft source, by its name.
        ``probe`` reads what each prompt is about while it is computed: a file that was trained for
        this model, ``auto`` for the one that ships with Draftgate if there is one, or ``off``.
        ``evidence``: whether every emitted token is held against the model's law; YAML reads ``on`` as True.

        Raises ConfigError when the model cannot be loaded or served exactly.
        """
        folder = Path(cache) if cache else None
        try:
            self._loaded, self._runs = load(
                model,
                dtype=dtype,
                device=device,
                num_slots=num_slots,
                max_length=max_length,
                threads=threads,
                cache_dir=folder,
            )
            self._sources = draft_sources_of(
                draft_sources or {},
                self._loaded,
                draft_model or (model if draft_layers is not None else None),
                draft_layers,
                device=device,
                cache=folder,
                timed=cost_model not in ("off", False),
            )
            self._probe = find_probe(probe, self._loaded)
            pieces = self._loaded.pieces
            self._engine = Engine(
                self._loaded.model,
                self._loaded.tokenizer,
                max_queue=max_queue,
                max_queue_per_scope=max_queue_per_caller,
                prefill_chunk_tokens=prefill_chunk_tokens,
                cost=_cost(cost_model, self._loaded, folder),
                probe=self._probe,
                meter=_meter(evidence, pieces),
            )
        except (ModelError, ValueError) as error:
            raise config_error(error) from error
        self._name = name
        self._served_name = served_name or self._loaded.name
        self._grammars = Grammars(self._loaded)
        tokenizer = self._loaded.tokenizer
        # A template that takes no tools says nothing of calls: the model is told how to write them.
        shown_calls = format_of(tokenizer.chat_template)
        self._calls = shown_calls if tokenizer.takes_tools else CallFormat.TAGGED
        self._shows_calls = "tool_calls" in tokenizer.chat_template
        self._function_words = FunctionWords(pieces)
        self._verifiers: dict[str, Callable[..., Verifier]] = {}
        self._num_slots = num_slots
        self._max_answers = num_slots + max_queue
        self._closed = False
        self.models: Sequence[ModelInfo] = (
            ModelInfo(
                self._served_name,
                self._loaded.created,
                self._loaded.model.max_length,
                fingerprint=self._loaded.fingerprint,
                dtype=self._loaded.dtype,
            ),
        )
        self._queue_seconds = queue_seconds
        self._reviver = Reviver(self._engine)

    @property
    def status(self) -> BackendStatus:
        """Ready while the engine's thread runs; the model is loaded on construction."""
        ready = self._engine.alive and not self._closed
        return BackendStatus(
            ready=ready,
            detail=self._runs if ready else self._reviver.detail,
            running=self._engine.num_running,
            queued=self._engine.num_waiting,
        )

    def check(self, decision: Decision) -> None:
        """Raise ConfigError when the decision's draft source cannot run here."""
        self._mode(decision)

    async def prepare(self, request: ChatRequest) -> Prompt:
        """Render the chat template, tokenize and compile the grammar, off the event loop."""
        if request.num_answers > self._max_answers:
            param = "n" if request.best_of is None else "best_of"
            raise InvalidRequest(
                f"{param!r} is {request.num_answers}; this server has room for "
                f"{self._max_answers} answers at once.",
                param=param,
            )
        if request.may_call and self._calls is None:
            raise UnsupportedParameter(
                "'tool_choice': 'auto' is not supported: this model's chat template writes calls "
                "in a way that is not read here; send 'required', a function's name as "
                "{'type': 'function', 'function': {'name': …}}, or 'none'.",
                param="tool_choice",
            )
        token_ids = await asyncio.to_thread(self._encode, request)
        return Prompt(len(token_ids), token_ids, await self._grammars.compile(request))

    async def generate(self, job: Job) -> LocalGeneration:
        """Hand one row per answer to the engine, all or none."""
        return self._submit(job)

    async def decode_again(self, job: Job, *, patient: bool) -> Run | None:
        """See `Redecoder`."""
        return await self._submit(job, patient=patient, with_margins=True).run()

    def _submit(
        self, job: Job, *, patient: bool = False, with_margins: bool = False
    ) -> LocalGeneration:
        second = self._second_opinion(job)
        calls = self._calls if job.request.may_call else None
        generation = LocalGeneration(
            self._name,
            self._served_name,
            self._loaded,
            job,
            second,
            calls,
            queue_seconds=None if patient else self._queue_seconds,
        )
        try:
            mode, grammar = self._mode(job.decision), job.prompt.grammar
        except ConfigError as error:  # a policy that came into force after the start
            raise BackendFailed(detail=str(error)) from error
        requests = [
            Request(
                prompt_ids=job.prompt.payload,
                params=_params(job.request, job.sampling, answer),
                mode=mode,
                verifier=self._verifier(job.decision),
                listener=generation.listener(answer),
                scope=job.caller_id,
                domain=job.domain,
                constraint=None if grammar is None else grammar.constraint(),
                on_prefill=second,
                patient=patient,
                with_margins=with_margins,
            )
            for answer in range(job.request.num_answers)
        ]
        try:
            generation.begin(self._engine.submit(requests))
        except EngineQueueFull as error:
            wait = 1 + self._engine.num_waiting // self._num_slots
            raise QueueFull(f"The queue is full: {error}.", retry_after=wait) from error
        except EngineStopped as error:
            raise Unavailable("The engine does not run just now.", retry_after=5) from error
        return generation

    async def aclose(self) -> None:
        """Cancel every row and end the engine's thread. Idempotent."""
        self._closed = True
        self._reviver.close()
        self._grammars.close()
        await asyncio.to_thread(self._engine.stop)

    def _encode(self, request: ChatRequest) -> list[int]:
        tokenizer, model, sampling = self._loaded.tokenizer, self._loaded.model, request.sampling
        try:
            if isinstance(request.prompt, tuple):
                token_ids = list(request.prompt)
            elif request.prompt is not None:
                token_ids = tokenizer.encode(request.prompt)
            else:
                token_ids = self._encode_chat(request)
            self._engine.check(token_ids)
            _params(request, sampling, 0)
        except PromptTooLong as error:
            raise ContextLengthExceeded(
                f"The prompt has {len(token_ids)} tokens; this model's context holds "
                f"{model.max_length}, of which at least one is for the answer.",
                param="messages" if request.prompt is None else "prompt",
            ) from error
        except ParameterError as error:
            raise InvalidRequest(f"{error}.", param=error.param) from error
        for param, named in (
            ("logit_bias", tuple(sampling.logit_bias)),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if unknown := [i for i in named if i >= model.vocab_size]:
                raise InvalidRequest(
                    f"{param} names token {unknown[0]}; this model has tokens 0 to "
                    f"{model.vocab_size - 1}.",
                    param=param,
                )
        return token_ids

    def _encode_chat(self, request: ChatRequest) -> list[int]:
        try:
            return self._encode_turns(request, turns_of(request.messages))
        except ParameterError:
            if not any(turn.tool_calls for turn in request.messages):
                raise
        # A few templates put past arguments between other texts, and want them as text.
        return self._encode_turns(request, turns_of(request.messages, as_text=True))

    def _encode_turns(self, request: ChatRequest, turns: list[Mapping[str, Any]]) -> list[int]:
        tokenizer = self._loaded.tokenizer
        if not self._shows_calls:
            turns = with_calls_written(turns)
        if request.tools and tokenizer.takes_tools:
            return tokenizer.encode_chat(turns, [shown(tool) for tool in request.tools])
        # A template that does not take them is told of tools where one may be called.
        if request.called or request.may_call:
            turns = described(turns, request.tools, demanded=bool(request.called))
        return tokenizer.encode_chat(turns)

    def _mode(self, decision: Decision) -> RowMode:
        if decision.mode is Mode.STANDARD or decision.draft is None:
            return Standard()
        source = self._sources.get(decision.draft.source)
        count = decision.draft.num_speculative_tokens
        if decision.mode is Mode.SPECULATIVE:
            return Speculative(source, count)
        gates: list[Gate] = [StandardFirst(decision.standard_first)]
        if decision.content_tokens is Mode.STANDARD:
            gates.append(ContentTokens(self._function_words))
        if decision.max_entropy is not None:
            gates.append(EntropyGate(decision.max_entropy))
        return Hybrid(source, gates, count)

    def _second_opinion(self, job: Job) -> SecondOpinion | None:
        """Who hears what the probe reads; nobody where there is none, or none to ask what follows."""
        if self._probe is None or job.review is None:
            return None
        return SecondOpinion(self._probe, job.review, job.decision.mode)

    def _verifier(self, decision: Decision) -> Verifier:
        """One for each choice: a lossy verifier keeps its choice's account.

        Raises BackendFailed when the verifier is lossy and the decision allows no distortion, or
        the other way round.
        """
        # What is kept is how to make one: finding that out takes milliseconds of the event loop.
        if decision.verifier not in self._verifiers:
            self._verifiers[decision.verifier] = extensions.load("verifiers", decision.verifier)
        factory = self._verifiers[decision.verifier]
        budget = decision.max_distortion
        lossy = "max_distortion" in inspect.signature(factory).parameters
        if lossy is (budget is not None):
            verifier = factory(max_distortion=budget) if lossy else factory()
            if verifier.exact is not lossy:
                return verifier
        raise BackendFailed(
            detail=f"the verifier {decision.verifier!r} is {'lossy' if lossy else 'exact'}; rule "
            f"{decision.rule!r} must give `max_distortion` to lossy verifiers and to no other"
        )


def _cost(cost_model: str | bool, loaded: LoadedModel, folder: Path | None) -> Cost:
    if cost_model in ("off", False):
        return EverythingPays()
    profile = load_profile(loaded, cache_dir=folder)
    return CostModel(profile, frozen=cost_model == "frozen")


def _meter(evidence: str | bool, pieces: Sequence[str]) -> Meter:
    if evidence not in ("on", "off", True, False):
        raise ValueError(f"evidence is {evidence!r}; give on or off")
    return LawMeter(hedge_ids(pieces)) if evidence in ("on", True) else NoMeter()


def _params(request: ChatRequest, sampling: Sampling, answer: int) -> SamplingParams:
    """The row's parameters; each further answer has the next seed."""
    ranked = 0 if request.num_answers > request.n else None
    return SamplingParams(
        logit_bias=sampling.logit_bias,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        temperature=sampling.temperature,
        min_p=sampling.min_p,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        seed=None if sampling.seed is None else sampling.seed + answer,
        logprobs=ranked if sampling.logprobs is None else sampling.logprobs,
        prompt_logprobs=sampling.logprobs if request.echo else None,
    )
