"""The ways to decode that are compared: transformers' ``generate``, and our engine's modes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from benchmarks.measure import Answer, Arm, Task
from benchmarks.runs import ASSISTED, GENERATE, HYBRID, LOOKUP, MODEL, SPECULATIVE, STANDARD
from decoders import (
    CostModel,
    Engine,
    Hybrid,
    ModelDraftSource,
    Request,
    SamplingParams,
    Speculative,
    Standard,
    SuffixDraftSource,
    load_draft,
    load_profile,
)
from decoders.drafts.base import DraftSource
from decoders.gates import StandardFirst
from decoders.loader import LoadedModel, fetch
from decoders.modes import Mode

NUM_SPECULATIVE_TOKENS = 8


def modes(draft: DraftSource | None = None) -> dict[str, Mode]:
    """Our arms: name → mode; with ``draft``, one more that asks it."""
    source = SuffixDraftSource()
    chosen: dict[str, Mode] = {
        STANDARD: Standard(),
        SPECULATIVE: Speculative(source, NUM_SPECULATIVE_TOKENS),
        HYBRID: Hybrid(source, [StandardFirst(10)], NUM_SPECULATIVE_TOKENS),
    }
    if draft is not None:
        chosen[MODEL] = Speculative(draft, NUM_SPECULATIVE_TOKENS)
    return chosen


def ours(loaded: LoadedModel, chosen: Mapping[str, Mode]) -> list[Arm]:
    """One arm for each mode, all over one engine."""
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))

    def arm(name: str, mode: Mode) -> Arm:
        return Arm(name, lambda task: _engine_answer(engine, mode, task), same_noise=True)

    return [arm(name, mode) for name, mode in chosen.items()]


def model_drafts(
    spec: str, num_layers: int | None, loaded: LoadedModel, dtype: str, device: str
) -> DraftSource:
    """The draft model at ``spec`` as a source. Raises ModelError where it cannot draft for ``loaded``."""
    draft = load_draft(spec, loaded, dtype=dtype, device=device, num_layers=num_layers)
    return ModelDraftSource(draft.model, load_profile(draft))


def theirs(
    model: str, dtype: str, device: str, draft_model: str | None, draft_layers: int | None
) -> list[Arm]:
    """transformers' arms, over the same weights; with an assistant model where one is given."""
    target = _plain(model, dtype, device)
    extras: dict[str, dict[str, Any]] = {
        GENERATE: {},
        LOOKUP: {"prompt_lookup_num_tokens": NUM_SPECULATIVE_TOKENS},
    }
    if draft_model is not None:
        extras[ASSISTED] = {"assistant_model": _plain(draft_model, dtype, device, draft_layers)}

    def arm(name: str, extra: dict[str, Any]) -> Arm:
        return Arm(name, lambda task: _generate_answer(target, extra, task), same_noise=False)

    return [arm(name, extra) for name, extra in extras.items()]


def request(task: Task, mode: Mode) -> Request:
    """A request in a scope of its own, so that no run finds its prompt computed by the one before."""
    params = SamplingParams(
        temperature=task.temperature, max_tokens=task.max_tokens, seed=task.seed
    )
    scope = secrets.token_hex(8)
    return Request(task.token_ids, params, mode, scope=scope, domain=task.domain)


def _engine_answer(engine: Engine, mode: Mode, task: Task) -> Answer:
    sequence = engine.generate(request(task, mode))
    stats = sequence.stats
    return Answer(
        sequence.output_ids,
        stats.queue_seconds + stats.prefill_seconds,
        stats.num_steps,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    )


class _FirstToken(BaseStreamer):  # type: ignore[misc]  # transformers is not typed
    """Notes when the first token of an answer comes; what is put first is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        if len(self.times) < 2:
            self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to flush."""


@torch.inference_mode()
def _generate_answer(model: PreTrainedModel, extra: dict[str, Any], task: Task) -> Answer:
    ids = torch.tensor([list(task.token_ids)], device=model.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if task.temperature > 0:
        torch.manual_seed(task.seed)
        # The model's own settings may cut the law; ours is not cut here.
        sampling = {"do_sample": True, "temperature": task.temperature, "top_k": 0, "top_p": 1.0}
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    hook = model.register_forward_pre_hook(count)
    streamer = _FirstToken()
    start = time.perf_counter()
    try:
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=task.max_tokens,
            streamer=streamer,
            **sampling,
            **extra,
        )
    finally:
        hook.remove()
    return Answer(output[0, ids.shape[1] :].tolist(), streamer.times[-1] - start, steps)


def _plain(model: str, dtype: str, device: str, num_layers: int | None = None) -> PreTrainedModel:
    cut = {} if num_layers is None else {"num_hidden_layers": num_layers}
    loaded = AutoModelForCausalLM.from_pretrained(fetch(model), dtype=getattr(torch, dtype), **cut)
    return loaded.to(device).eval()
