"""The domain probe: its file, its arithmetic, and what a backend does with what it reads."""

import msgspec
import numpy as np
import pytest
import torch

from decoders.loader import load as load_model
from gateway import probe as probes
from gateway.audit.attestation import attest
from gateway.backends.local import LocalBackend
from gateway.backends.local.probe import DomainProbe, find_probe, prefix_length
from gateway.errors import ConfigError
from gateway.probe import ProbeWeights
from gateway.types import DOMAINS, ChatRequest, Decision, DraftSetting, Job, Message, Mode, Sampling
from tests.records import decision_record

HIDDEN = 32
MEDICAL = 0


def probe_weights(loaded, *, medical=5.0, hidden=HIDDEN, **changes):
    """A probe that says the same of every prompt."""
    intercept = np.full(len(DOMAINS), -5.0, np.float32)
    intercept[MEDICAL] = medical
    given = {
        "model": loaded.name,
        "model_weights": loaded.weights,
        "layers": (1,),
        "projection": np.zeros((1, hidden, len(DOMAINS)), np.float32),
        "mixing": np.ones((2, len(DOMAINS)), np.float32),
        "intercept": intercept,
        "window": 4,
        "step": 2,
        "prefix": (),
    }
    return ProbeWeights(**(given | changes))


@pytest.fixture(scope="module")
def loaded(tiny_model):
    return load_model(str(tiny_model), device="cpu", dtype="float32", num_slots=2, max_length=96)


@pytest.fixture
def write(tmp_path, loaded):
    def write(**changes):
        path = tmp_path / "probe.npz"
        path.write_bytes(probe_weights(loaded, **changes).dump())
        return path

    return write


def test_a_file_gives_back_what_was_written(write, loaded):
    wanted = probe_weights(loaded, prefix=(3, 4))
    read, content_hash = probes.load(write(prefix=(3, 4)))

    assert len(content_hash) == 64
    assert read.dump() == wanted.dump()
    assert (read.layers, read.prefix, read.window) == ((1,), (3, 4), 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intercept": np.zeros(3, np.float32)}, "intercept has shape"),
        ({"mixing": np.full((2, len(DOMAINS)), np.nan, np.float32)}, "not finite"),
        ({"layers": (1, 2)}, "projection has shape"),
        ({"window": 0}, "at least 1"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(write, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        probes.load(write(**changes))

    assert "train-probe" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    path = tmp_path / "probe.npz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"probe\.npz"):
        probes.load(path)


def test_a_short_buried_passage_has_its_own_window(loaded):
    weights = probe_weights(loaded)
    scores = np.zeros((40, len(DOMAINS)))
    scores[17:21, MEDICAL] = 1.0
    mean, highest = weights.pooled(scores)

    assert mean[MEDICAL] == pytest.approx(0.1)
    assert highest[MEDICAL] == pytest.approx(0.75)
    assert weights.pooled(scores[17:20])[1][MEDICAL] == 1.0
    assert weights.pooled(scores[:0])[0].tolist() == [0.0] * len(DOMAINS)


def test_the_last_tokens_have_a_window_too(loaded):
    scores = np.zeros((41, len(DOMAINS)))
    scores[-4:, MEDICAL] = 1.0

    assert probe_weights(loaded).pooled(scores)[1][MEDICAL] == 1.0


@pytest.mark.parametrize(
    ("prefix", "prompt", "length"),
    [((1, 2), (1, 2, 3), 2), ((1, 2), (1, 2), 0), ((1, 2), (2, 2, 3), 0), ((), (1,), 0)],
)
def test_the_prefix_is_left_out_where_it_stands(prefix, prompt, length):
    assert prefix_length(prefix, prompt) == length


def test_a_token_is_scored_alone_and_its_length_does_not_count(loaded):
    generator = torch.Generator().manual_seed(3)
    projection = torch.randn(2, HIDDEN, len(DOMAINS), generator=generator).numpy()
    probe = DomainProbe(probe_weights(loaded, layers=(1, 2), projection=projection), "h")
    hidden = [torch.randn(5, HIDDEN, generator=generator) for _ in range(2)]
    together = probe.project(hidden)

    one = [probe.project([state[i : i + 1] * 7.0 for state in hidden]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(one), atol=1e-4, rtol=1e-4)
    assert probe.project([state.bfloat16() for state in hidden]).dtype == torch.float32


@pytest.mark.parametrize("option", ["off", False])
def test_it_can_be_left_out(option, loaded):
    assert find_probe(option, loaded) is None


@pytest.mark.parametrize("option", ["auto", True])
def test_a_model_without_a_probe_of_ours_has_none(option, loaded):
    assert find_probe(option, loaded) is None


def test_every_shipped_probe_can_be_read():
    from gateway.backends.local.probe import SHIPPED

    for path in SHIPPED.glob("*.npz"):
        assert probes.load(path)[0].model


def test_a_probe_of_another_model_is_refused_with_both_names(write, loaded):
    with pytest.raises(ConfigError, match="trained for") as caught:
        find_probe(str(write(model_weights="0" * 16, model="other")), loaded)

    assert "other" in str(caught.value)
    assert loaded.weights in str(caught.value)


def test_a_backend_with_a_probe_of_another_model_does_not_start(write, tiny_model):
    with pytest.raises(ConfigError, match="trained for"):
        LocalBackend(model=str(tiny_model), device="cpu", probe=str(write(model_weights="0" * 16)))


def test_a_backend_with_a_probe_of_layers_that_are_not_there_does_not_start(write, tiny_model):
    path = write(layers=(9,))
    with pytest.raises(ConfigError, match="name some of 1 to 1"):
        LocalBackend(model=str(tiny_model), device="cpu", cost_model="off", probe=str(path))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_hash_of_the_weights_does_not_depend_on_the_dtype(tiny_model, dtype, loaded):
    sizes = {"num_slots": 2, "max_length": 96}
    assert load_model(str(tiny_model), device="cpu", dtype=dtype, **sizes).weights == loaded.weights
    first = load_model(str(tiny_model), device="cpu", dtype=dtype, num_layers=1, **sizes)
    assert first.weights != loaded.weights


def bans_medical(scores):
    return "medical" if scores["medical"] >= 0.1 else None


def breaks(scores):
    raise RuntimeError("no policy")


@pytest.fixture
async def make_backend(tiny_model, tmp_path):
    made = []

    def make(probe):
        options = {"device": "cpu", "dtype": "float32", "num_slots": 3, "cost_model": "off"}
        backend = LocalBackend(model=str(tiny_model), **options, cache=str(tmp_path), probe=probe)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.aclose()


SPECULATIVE = Decision(
    mode=Mode.SPECULATIVE,
    rule="r",
    policy="p",
    policy_hash="h",
    draft=DraftSetting(num_speculative_tokens=4),
)
LOSSY = msgspec.structs.replace(SPECULATIVE, verifier="typical", max_distortion=1.0)


async def run(backend, decision=SPECULATIVE, *, review=bans_medical, n=1, text="abcabcabcabcabc"):
    request = ChatRequest(backend.models[0].id, (Message("user", text),), n=n)
    sampling = Sampling(max_tokens=24, seed=3, temperature=0.0)
    prompt = await backend.prepare(request)
    job = Job("req", request, decision, sampling, prompt, review=review)
    generation = await backend.generate(job)
    async for _ in generation:
        pass
    facts = msgspec.structs.replace(decision_record().request, model=backend.models[0].id, n=n)
    record = decision_record(decision=decision, request=facts, sampling=Sampling(max_tokens=24))
    return generation, generation.execution, attest(record, generation.execution)


@pytest.mark.parametrize("decision", [SPECULATIVE, LOSSY], ids=["exact", "lossy"])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_row_is_tightened_before_its_first_draft(make_backend, write, decision, n):
    standard = Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="h")
    expected, _, _ = await run(make_backend("off"), standard, n=n)
    generation, ran, attested = await run(make_backend(str(write())), decision, n=n)

    assert (ran.mode, ran.verifier, ran.verifier_class) == (Mode.STANDARD, "coupled", "exact")
    assert ran.num_draft_tokens == 0
    assert ran.tightened_by == "probe"
    assert ran.opinion.rule == "medical"
    assert ran.opinion.scores["medical"] == pytest.approx(0.9933, abs=1e-4)
    assert ran.opinion.scores["code"] == pytest.approx(0.0067, abs=1e-4)
    assert ran.opinion.content_hash == probes.load(write())[1]
    assert attested == "ok"
    assert [generation.outputs[i] for i in range(n)] == [expected.outputs[i] for i in range(n)]


@pytest.mark.parametrize("n", [1, 3])
async def test_a_harmless_prompt_is_decoded_as_decided_with_both_opinions(make_backend, write, n):
    expected, plain, _ = await run(make_backend("off"), n=n)
    generation, ran, attested = await run(make_backend(str(write(medical=-5.0))), n=n)

    assert ran.mode is Mode.SPECULATIVE
    assert 0 < ran.num_draft_tokens <= plain.num_draft_tokens
    assert (ran.tightened_by, ran.opinion.rule, ran.opinion.error) == (None, None, None)
    assert set(ran.opinion.scores) == set(DOMAINS)
    assert plain.opinion is None
    assert attested == "ok"
    assert generation.outputs[0] == expected.outputs[0]


async def test_what_was_decided_standard_is_read_and_not_tightened(make_backend, write):
    standard = Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="h")
    _, ran, attested = await run(make_backend(str(write())), standard, review=lambda scores: None)

    assert ran.opinion.scores["medical"] > 0.9
    assert ran.tightened_by is None
    assert attested == "ok"


async def test_an_opinion_that_cannot_be_judged_tightens_and_says_so(make_backend, write):
    _, ran, attested = await run(make_backend(str(write(medical=-5.0))), review=breaks)

    assert (ran.mode, ran.tightened_by) == (Mode.STANDARD, "probe")
    assert ran.num_draft_tokens == 0
    assert ran.opinion.error == "RuntimeError: no policy"
    assert attested == "ok"


async def test_a_probe_that_fails_tightens_and_says_so(make_backend, write):
    _, ran, attested = await run(make_backend(str(write(hidden=7))))

    assert (ran.mode, ran.tightened_by) == (Mode.STANDARD, "probe")
    assert "no reading" in ran.opinion.error
    assert ran.opinion.scores == {}
    assert attested == "ok"


async def test_without_somebody_to_ask_nothing_is_read(make_backend, write):
    _, ran, _ = await run(make_backend(str(write())), review=None)

    assert ran.mode is Mode.SPECULATIVE
    assert ran.opinion is None


async def test_a_job_cancelled_before_its_prompt_was_read_is_as_it_was_decided(make_backend, write):
    backend = make_backend(str(write()))
    request = ChatRequest(backend.models[0].id, (Message("user", "abc"),), n=3)
    prompt = await backend.prepare(request)
    backend._engine.stop()
    generation = backend_generation(backend, request, prompt)
    assert generation.execution.mode is Mode.SPECULATIVE
    assert (generation.execution.opinion, generation.execution.tightened_by) == (None, None)


def backend_generation(backend, request, prompt):
    """A generation whose rows were queued and never computed."""
    from decoders.engine import Engine
    from gateway.backends.local.generation import LocalGeneration
    from gateway.backends.local.second_opinion import SecondOpinion

    job = Job("req", request, SPECULATIVE, Sampling(seed=1), prompt, review=bans_medical)
    second = SecondOpinion(backend._probe, bans_medical, Mode.SPECULATIVE)
    generation = LocalGeneration("local", "m", backend._loaded, job, second)
    engine = Engine(backend._loaded.model, backend._loaded.tokenizer, probe=backend._probe)
    from decoders.request import Request

    asked = Request(prompt.payload, mode=backend._mode(SPECULATIVE), on_prefill=second)
    generation.begin(engine.submit([asked]))
    engine.stop()
    return generation
