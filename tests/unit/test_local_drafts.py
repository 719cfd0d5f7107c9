"""A draft model beside the local backend's own: loaded with it, checked at the start, used by rules."""

import json
import shutil

import pytest

from decoders.loader import load
from decoders.models.base import ModelError
from decoders.pairing import load_draft
from decoders.profile import Profile
from gateway import extensions
from gateway.backends.local import LocalBackend
from gateway.errors import ConfigError
from gateway.routing.policy import parse_policy
from gateway.runtime import check
from gateway.types import ChatRequest, Decision, DraftSetting, Job, Message, Mode, Sampling

POLICY = """\
version: 1
name: tests
rules:
  - {id: plain, when: {keyword: [dose]}, decide: {mode: standard}}
  - id: modelled
    when: {keyword: [function]}
    decide: {mode: speculative, draft: {source: model, num_speculative_tokens: 3}}
"""
DRAFTED = Decision(
    mode=Mode.SPECULATIVE, rule="r", policy="p", policy_hash="h", draft=DraftSetting("model", 3)
)
STANDARD = Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="h")


def build(tiny_model, tmp_path, **options):
    return LocalBackend(
        model=str(tiny_model),
        device="cpu",
        dtype="float32",
        num_slots=2,
        max_length=96,
        cache=str(tmp_path),
        cost_model="off",
        **options,
    )


async def run(backend, decision, **knobs):
    request = ChatRequest(backend.models[0].id, (Message("user", "abcabc"),))
    sampling = Sampling(**{"max_tokens": 16, "seed": 3} | knobs)
    job = Job("req", request, decision, sampling, await backend.prepare(request))
    generation = await backend.generate(job)
    async for _ in generation:
        pass
    return generation


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("given", ["layers", "folder"])
async def test_a_rule_that_names_the_draft_model_gets_its_drafts(
    tiny_model, tmp_path, given, temperature
):
    options = {"draft_layers": 1} if given == "layers" else {"draft_model": str(tiny_model)}
    backend = build(tiny_model, tmp_path, **options)
    try:
        expected = await run(backend, STANDARD, temperature=temperature)
        generation = await run(backend, DRAFTED, temperature=temperature)
    finally:
        await backend.aclose()

    assert generation.outputs[0] == expected.outputs[0]
    (proposed, accepted) = generation.execution.drafts_by_source["model"]
    assert proposed > 0
    if given == "folder":  # it drafts for itself
        assert accepted == proposed


async def test_the_draft_model_is_timed_where_the_cost_model_weighs_it(
    tiny_model, tmp_path, monkeypatch
):
    timed = []

    def measure(loaded, cache_dir):
        timed.append(loaded.fingerprint)
        return Profile({(1, 1): 0.001})

    monkeypatch.setattr("gateway.backends.local.drafts.load_profile", measure)
    build(tiny_model, tmp_path, draft_layers=1)._engine.stop()
    assert timed == []
    backend = LocalBackend(
        model=str(tiny_model), device="cpu", num_slots=1, cache=str(tmp_path), draft_layers=1
    )
    try:
        generation = await run(backend, DRAFTED)
    finally:
        await backend.aclose()

    assert [name.split("-")[1] for name in timed] == ["first1"]
    assert generation.execution.why_k


async def test_a_policy_that_names_a_draft_model_that_is_not_there_is_refused(tiny_model, tmp_path):
    policy = parse_policy(
        POLICY,
        "mine.yaml",
        verifiers=extensions.names("verifiers"),
        draft_sources=extensions.names("draft_sources"),
    )
    without = build(tiny_model, tmp_path)
    with_one = build(tiny_model, tmp_path, draft_layers=1)
    try:
        check(policy, {"ours": with_one})
        with pytest.raises(ConfigError) as caught:
            check(policy, {"ours": with_one, "other": without})
    finally:
        await without.aclose()
        await with_one.aclose()

    assert "mine.yaml: rule 'modelled' on backend 'other'" in str(caught.value)
    assert "the draft source 'model' needs a draft model" in str(caught.value)
    assert "draft_layers" in str(caught.value)


@pytest.mark.parametrize("num_layers", [0, 3])
def test_a_model_cannot_be_cut_to_more_layers_than_it_has(tiny_model, tmp_path, num_layers):
    with pytest.raises(ConfigError, match=rf"has 2 layers; it cannot be cut to {num_layers}"):
        build(tiny_model, tmp_path, draft_layers=num_layers)


def other_vocabulary(tiny_model, folder, change):
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    change(document["model"]["vocab"])
    path.write_text(json.dumps(document))
    return folder


def test_a_draft_model_with_another_vocabulary_is_refused(tiny_model, tmp_path):
    def swap(vocabulary):
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    folder = other_vocabulary(tiny_model, tmp_path / "other", swap)

    with pytest.raises(ConfigError) as caught:
        build(tiny_model, tmp_path, draft_model=str(folder))

    message = str(caught.value)
    assert "other cannot draft for" in message
    assert "'a' in one and 'b' in the other" in message
    assert "the target's own tokenizer" in message


def test_a_vocabulary_may_be_longer_than_the_other(tiny_model, tmp_path):
    folder = other_vocabulary(
        tiny_model, tmp_path / "longer", lambda vocabulary: vocabulary.update({"<more>": 258})
    )
    target = load(str(tiny_model), device="cpu", dtype="float32", num_slots=1, max_length=32)
    draft = load_draft(str(folder), target, device="cpu", dtype="float32")

    assert draft.model.vocab_size == target.model.vocab_size + 1
    assert target.tokenizer.difference(draft.tokenizer) is None


def test_a_missing_draft_model_is_named(tiny_model):
    target = load(str(tiny_model), device="cpu", dtype="float32", num_slots=1, max_length=32)

    with pytest.raises(ModelError, match="no model at /nowhere/draft"):
        load_draft("/nowhere/draft", target, device="cpu")
