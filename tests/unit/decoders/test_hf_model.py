"""Rows on the slot cache give the logits of a fresh prefill, for every architecture that is let in."""

import random

import pytest
import torch
import transformers

from decoders.models.adapt import adapt, reference_logits
from decoders.models.attention import Plan
from decoders.models.base import ModelError, Row
from decoders.models.fused import FusedModel
from decoders.models.hf import HFModel
from decoders.models.kernels import KernelTable
from decoders.models.linear import NUM_SIZES, Kernel
from decoders.models.norm import RMSNorm

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
SERVED = {
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 2}),
    "llama-mha": (transformers.LlamaConfig, {}),
    "qwen2": (transformers.Qwen2Config, {"num_key_value_heads": 1}),
    "qwen3": (transformers.Qwen3Config, {"num_key_value_heads": 2, "head_dim": 16}),
    "mistral": (transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": None}),
    "gpt-neox": (transformers.GPTNeoXConfig, {}),
    "olmo2": (transformers.Olmo2Config, {}),
}
REFUSED = {
    "sliding window": (
        transformers.MistralConfig,
        {"num_key_value_heads": 2, "sliding_window": 8},
        "sliding",
    ),
    "a window longer than the check": (
        transformers.MistralConfig,
        {"num_key_value_heads": 2, "sliding_window": 64},
        "sliding window of 64",
    ),
    "gemma with a soft cap and sliding layers": (
        transformers.Gemma2Config,
        {"num_key_value_heads": 2, "head_dim": 8},
        "cannot be",
    ),
    "recurrent state": (
        transformers.MambaConfig,
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2},
        "attention of its own",
    ),
    "dynamic rotary embeddings": (
        transformers.LlamaConfig,
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "dynamic",
    ),
}


SETTINGS = {"vocab_size": 97, "num_slots": 4, "max_length": 96}


def own(config_class, options):
    torch.manual_seed(0)
    options = options if "hidden_size" in options else TINY | options
    return transformers.AutoModelForCausalLM.from_config(config_class(**options)).float().eval()


def build(config_class, options, **kwargs):
    return adapt(own(config_class, options), **(SETTINGS | kwargs))


def all_use(kernel):
    """The choice of one kernel for every layer."""

    def choose(layers):
        return KernelTable({tuple(layer.weight.shape): (kernel,) * NUM_SIZES for layer in layers})

    return choose


@pytest.fixture(
    scope="module",
    params=[
        *SERVED,
        "llama, unfused",
        "qwen3, unfused",
        "qwen2, turned",
        "qwen2, packed",
        "qwen2, panels",
    ],
)
def pair(request):
    """(served model, the architecture's own)"""
    name, _, variant = request.param.partition(", ")
    original = own(*SERVED[name])
    if variant == "unfused":
        return HFModel(own(*SERVED[name]), **SETTINGS), original
    choice = {"choose": all_use(Kernel(variant))} if variant else {}
    return adapt(original, **SETTINGS, **choice), original


@pytest.fixture
def model(pair):
    return pair[0]


@pytest.fixture
def fresh(pair):
    """Logits after the last token, by the architecture's own forward pass without a cache."""
    return lambda token_ids: reference_logits(pair[1], token_ids)[-1]


class Schedule:
    """Rows that come, draft, are accepted or rejected, and leave, at random; see `step`."""

    def __init__(self, model, fresh, seed):
        self.model = model
        self.fresh = fresh
        self.source = random.Random(seed)
        self.rows = {}  # slot → (tokens, number of them in the cache)
        self.checked = 0

    def step(self):
        """One forward over all rows; every second row's logits are held against a fresh prefill."""
        for slot in range(4):
            if slot not in self.rows and self.source.random() < 0.4:
                self.rows[slot] = (self.some_tokens(1, 20), 0)
            elif slot in self.rows and self.source.random() < 0.08:
                del self.rows[slot]  # its keys and values stay behind as garbage
        drafts = {slot: self.draft(*row) for slot, row in self.rows.items()}
        batch = [self.row(slot, drafts[slot]) for slot in self.rows]
        self.source.shuffle(batch)
        if batch:
            logits = self.model.forward(batch)
            for row in batch:
                self.commit(row, drafts[row.slot], logits[: row.num_logits])
                logits = logits[row.num_logits :]

    def some_tokens(self, low, high):
        return [self.source.randrange(97) for _ in range(self.source.randint(low, high))]

    def draft(self, tokens, cached):
        return self.some_tokens(0, 6) if len(tokens) - cached == 1 else []

    def row(self, slot, draft):
        tokens, cached = self.rows[slot]
        pending = tokens[cached:]
        chunk = pending if len(pending) == 1 else pending[: self.source.randint(1, 8)]
        count = len(draft) + 1 if len(chunk) == len(pending) else 0
        return Row(slot, cached, tuple(chunk + draft), count)

    def commit(self, row, draft, logits):
        tokens, cached = self.rows[row.slot]
        if not row.num_logits:
            self.rows[row.slot] = (tokens, cached + len(row.token_ids))
            return
        accepted = self.source.randint(0, len(draft))
        for i in {0, accepted}:
            expected = self.fresh(tokens + draft[:i])
            assert torch.allclose(logits[i], expected, atol=2e-4, rtol=1e-3)
            self.checked += 1
        tokens = tokens + draft[:accepted] + self.some_tokens(1, 1)
        self.rows[row.slot] = (tokens, len(tokens) - 1)
        if len(tokens) > 80:
            del self.rows[row.slot]


def test_random_accept_and_reject_schedules_equal_a_fresh_prefill(model, fresh):
    """Ragged drafts, rollbacks, chunked prefills and idle slots, in one batch of changing rows."""
    schedule = Schedule(model, fresh, seed=7)
    for _ in range(30):
        schedule.step()

    assert schedule.checked > 60


def test_logits_come_in_the_order_of_the_rows(model, fresh):
    rows = [Row(3, 0, (5, 6, 7), 1), Row(0, 0, (8,), 1), Row(2, 0, (9, 10), 2)]

    logits = model.forward(rows)

    for row, place in zip(rows, (0, 1, 3), strict=True):
        assert torch.allclose(logits[place], fresh(row.token_ids), atol=2e-4, rtol=1e-3)


def test_padding_of_the_vocabulary_is_cut_off():
    model = build(*SERVED["llama"], vocab_size=90)

    assert model.vocab_size == 90
    assert model.forward([Row(0, 0, (1, 2), 1)]).shape == (1, 90)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_served_exactly_is_refused_with_the_reason(name):
    config, options, reason = REFUSED[name]

    with pytest.raises(ModelError, match=reason):
        build(config, options)


@pytest.mark.parametrize("name", ["olmo2", "llama"])
def test_a_model_whose_logits_differ_on_the_slot_cache_is_refused(monkeypatch, name):
    """Whatever the reason: here the positions that the attention sees are off by one.

    Where decoding tokens have code of their own, only a prompt shows it.
    """
    original = Plan._mask

    def shifted(self, rows, *args):
        return original(self, [Row(r.slot, r.start + 1, r.token_ids, 0) for r in rows], *args)

    monkeypatch.setattr(Plan, "_mask", shifted)
    with pytest.raises(ModelError, match="differ"):
        build(*SERVED[name])


@pytest.mark.parametrize("name", SERVED)
def test_what_has_the_shape_of_llama_is_fused(name):
    served = build(*SERVED[name])

    fused = name in ("llama", "llama-mha", "qwen2", "qwen3", "mistral")
    assert isinstance(served, FusedModel if fused else HFModel)


def test_an_unusual_member_of_the_family_is_served_as_it_is(monkeypatch):
    """A fused pass that does not equal the model's own is not used."""
    monkeypatch.setattr(RMSNorm, "__call__", lambda self, x: x)

    assert isinstance(build(*SERVED["llama"]), HFModel)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bfloat16_stays_near_float32(name):
    exact = build(*SERVED[name])
    rounded = adapt(own(*SERVED[name]).to(torch.bfloat16), **SETTINGS)
    rows = [Row(0, 0, tuple(range(1, 30)), 29)]

    difference = (exact.forward(rows) - rounded.forward(rows)).abs().max()

    assert isinstance(rounded, FusedModel)
    assert difference < 0.1


def test_a_window_that_the_context_never_reaches_is_full_attention():
    served = build(
        transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 96}, max_length=96
    )

    assert isinstance(served, FusedModel)


@torch.inference_mode()
def test_what_is_not_a_number_does_not_outlive_its_row(model):
    """The slot of a failed row is used again while a longer row shares the forward pass."""
    model.forward([Row(0, 0, tuple(range(1, 60)), 1)])
    for keys, values in model._cache._layers.values():
        keys[0, 40:50] = torch.nan
        values[0, 40:50] = torch.nan

    model.reset(0)
    model.forward([Row(1, 0, tuple(range(1, 60)), 1)])
    logits = model.forward([Row(0, 0, (3,), 1), Row(1, 59, (4,), 1)])

    assert torch.isfinite(logits).all()


def test_another_kernel_is_another_arithmetic():
    plain, turned, again = (
        build(*SERVED["qwen2"], choose=all_use(kernel)).arithmetic
        for kernel in (Kernel.PLAIN, Kernel.TURNED, Kernel.PLAIN)
    )

    assert plain == again != turned
