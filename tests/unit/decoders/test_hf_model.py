"""Rows on the slot cache give the logits of a fresh prefill, for every architecture that is let in."""

import random

import pytest
import torch
import transformers

from decoders.models.base import ModelError, Row
from decoders.models.hf import HFModel

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


def build(config_class, options, **kwargs):
    torch.manual_seed(0)
    options = options if "hidden_size" in options else TINY | options
    model = transformers.AutoModelForCausalLM.from_config(config_class(**options))
    settings = {"vocab_size": 97, "num_slots": 4, "max_length": 96} | kwargs
    return HFModel(model.float(), **settings)


@pytest.fixture(scope="module", params=SERVED)
def model(request):
    return build(*SERVED[request.param])


def fresh(model, token_ids):
    """Logits after the last token, by the architecture's own forward pass without a cache."""
    return model._reference(token_ids)[-1]


class Schedule:
    """Rows that come, draft, are accepted or rejected, and leave, at random; see `step`."""

    def __init__(self, model, seed):
        self.model = model
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
            expected = fresh(self.model, tokens + draft[:i])
            assert torch.allclose(logits[i], expected, atol=2e-4, rtol=1e-3)
            self.checked += 1
        tokens = tokens + draft[:accepted] + self.some_tokens(1, 1)
        self.rows[row.slot] = (tokens, len(tokens) - 1)
        if len(tokens) > 80:
            del self.rows[row.slot]


def test_random_accept_and_reject_schedules_equal_a_fresh_prefill(model):
    """Ragged drafts, rollbacks, chunked prefills and idle slots, in one batch of changing rows."""
    schedule = Schedule(model, seed=7)
    for _ in range(30):
        schedule.step()

    assert schedule.checked > 60


def test_logits_come_in_the_order_of_the_rows(model):
    rows = [Row(3, 0, (5, 6, 7), 1), Row(0, 0, (8,), 1), Row(2, 0, (9, 10), 2)]

    logits = model.forward(rows)

    for row, place in zip(rows, (0, 1, 3), strict=True):
        assert torch.allclose(logits[place], fresh(model, row.token_ids), atol=2e-4, rtol=1e-3)


def test_padding_of_the_vocabulary_is_cut_off():
    model = build(*SERVED["llama"], vocab_size=90)

    assert model.vocab_size == 90
    assert model.forward([Row(0, 0, (1, 2), 1)]).shape == (1, 90)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_served_exactly_is_refused_with_the_reason(name):
    config, options, reason = REFUSED[name]

    with pytest.raises(ModelError, match=reason):
        build(config, options)


def test_a_model_whose_logits_differ_on_the_slot_cache_is_refused(monkeypatch):
    """Whatever the reason: here the positions that the attention sees are off by one."""
    original = HFModel._mask

    def shifted(self, rows, *args):
        return original(self, [Row(r.slot, r.start + 1, r.token_ids, 0) for r in rows], *args)

    monkeypatch.setattr(HFModel, "_mask", shifted)
    with pytest.raises(ModelError, match="differ"):
        build(*SERVED["llama"])
