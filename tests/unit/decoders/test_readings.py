"""What a probe reads in a prompt: whole, before the first draft, and without touching an answer.

The table model shows each token as its own hidden state, so a reading spells the prompt that the
engine believes is in the slot.
"""

import math

import pytest
import torch

from decoders.engine import Engine
from decoders.models.base import ModelError, Row, check_watched
from decoders.modes import Speculative, Standard
from decoders.params import FinishReason, SamplingParams
from decoders.request import Request
from decoders.testing import ScriptedDraftSource, TableModel
from decoders.verifiers.conservative import ConservativeVerifier
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from decoders.verifiers.typical import TypicalVerifier
from tests.decoding import ALPHABET, TOKENIZER, choosing, drain, likeliest, make_engine, modes

PROMPT = "abcdabcaabbcddbacbda" * 2


class Speller:
    """Reads the tokens themselves; may be told to fail."""

    layers = (1,)

    def __init__(self, fail_project=False, fail_read=False):
        self.fail_project, self.fail_read = fail_project, fail_read

    def project(self, hidden):
        if self.fail_project:
            raise RuntimeError("no projection")
        return hidden[0]

    def read(self, projections, token_ids):
        if self.fail_read:
            raise RuntimeError("no reading")
        assert len(projections) == len(token_ids)
        if projections.isnan().any():
            return [math.nan]
        return projections.argmax(dim=1).tolist()


class Ear:
    """Notes what it hears, and how many draft tokens there had been."""

    def __init__(self, may_draft=True):
        self.may_draft, self.heard, self.ticket = may_draft, [], None
        self.drafted_before = None

    def __call__(self, reading):
        self.heard.append(reading)
        if self.ticket is not None:
            self.drafted_before = self.ticket.stats.num_draft_tokens
        return self.may_draft


def request(prompt=PROMPT, mode=None, ear=None, verifier=None, **params):
    params = {"max_tokens": 16, "seed": 5} | params
    return Request(
        TOKENIZER.encode(prompt),
        SamplingParams(**params),
        mode or Standard(),
        verifier or CoupledVerifier(),
        on_prefill=ear,
    )


def drafting():
    return Speculative(ScriptedDraftSource(likeliest), 3)


def engine(probe=None, **options):
    return make_engine(probe=probe or Speller(), **options)


def spelled(ear):
    return ["".join(ALPHABET[i] for i in reading) for reading in ear.heard]


@pytest.mark.parametrize("chunk", [1, 3, 7, 256])
@pytest.mark.parametrize("prompt", ["a", "ab", PROMPT])
def test_a_prompt_is_read_whole_however_it_is_cut(chunk, prompt):
    ear = Ear()

    engine(prefill_chunk_tokens=chunk).generate(request(prompt, drafting(), ear))

    assert spelled(ear) == [prompt]


@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize("verifier", [CoupledVerifier, RejectionVerifier])
def test_a_row_that_may_draft_is_as_if_nobody_had_listened(mode, verifier):
    plain = make_engine().generate(request(mode=modes()[mode], verifier=verifier()))
    ear = Ear()
    heard = engine().generate(request(mode=modes()[mode], ear=ear, verifier=verifier()))

    assert heard.output_ids == plain.output_ids
    assert heard.stats.num_draft_tokens == plain.stats.num_draft_tokens
    assert len(ear.heard) == 1


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_drafted_before_the_prompt_is_read(again):
    """Also where one token of it was left to compute, so that its step might have had a draft."""
    ear, made = Ear(), engine()
    if again:
        made.generate(request())
    (ear.ticket,) = made.submit([request(mode=drafting(), ear=ear)])
    drain(made)

    assert ear.drafted_before == 0
    assert ear.ticket.stats.first_draft_position == 1
    assert ear.ticket.stats.num_cached_tokens == (len(PROMPT) - 1 if again else 0)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "verifier",
    [
        CoupledVerifier(),
        RejectionVerifier(),
        TypicalVerifier(max_distortion=1.0),
        ConservativeVerifier(max_distortion=1.0),
    ],
    ids=lambda verifier: verifier.name,
)
def test_a_row_that_may_not_draft_is_a_standard_row(verifier, again):
    exact = verifier if verifier.exact else CoupledVerifier()
    expected = make_engine().generate(request(verifier=exact)).output_ids
    made, ear = engine(), Ear(may_draft=False)
    if again:
        made.generate(request())
    (ticket,) = made.submit([request(mode=drafting(), ear=ear, verifier=verifier)])
    drain(made)

    assert ticket.sequence.output_ids == expected
    assert ticket.stats.num_draft_tokens == 0
    assert ticket.stats.distortion == 0
    assert (ticket.mode.name, ticket.verifier.name) == ("standard", exact.name)
    assert ticket.restricted
    assert ticket.request.mode.name == "speculative"


def test_a_cached_beginning_is_read_too():
    made = engine()
    made.generate(request())
    for prompt in (PROMPT, PROMPT + "ccc", PROMPT[:25] + "hh"):
        ear = Ear()
        (ticket,) = made.submit([request(prompt, ear=ear)])
        drain(made)

        assert ticket.stats.num_cached_tokens >= 24
        assert spelled(ear) == [prompt]


def test_what_was_answered_is_read_when_it_is_asked_again():
    """Draft tokens that were rejected leave nothing behind."""
    made = engine()
    wrong = Speculative(ScriptedDraftSource(lambda tokens, count: [7] * count), 5)
    first = made.generate(request(mode=wrong))
    following = TOKENIZER.decode(first.token_ids) + "e"
    ear = Ear()
    (ticket,) = made.submit([request(following, ear=ear)])
    drain(made)

    assert ticket.stats.num_cached_tokens == len(first.token_ids) - 1
    assert spelled(ear) == [following]


def test_all_choices_of_a_prompt_and_their_neighbours_are_read():
    made = engine(num_slots=4, prefill_chunk_tokens=8)
    prompts = [PROMPT, PROMPT, PROMPT, "hgfe" * 6]
    ears = [Ear() for _ in prompts]
    tickets = made.submit(
        [request(prompt, drafting(), ear) for prompt, ear in zip(prompts, ears, strict=True)]
    )
    drain(made)

    assert [spelled(ear) for ear in ears] == [[prompt] for prompt in prompts]
    assert [ticket.stats.num_cached_tokens for ticket in tickets] == [0, 39, 39, 0]


def test_one_row_of_a_batch_can_be_restricted():
    made = engine()
    ears = [Ear(), Ear(may_draft=False), Ear()]
    tickets = made.submit([request(mode=drafting(), ear=ear, seed=i) for i, ear in enumerate(ears)])
    drain(made)

    drafted = [ticket.stats.num_draft_tokens > 0 for ticket in tickets]
    assert drafted == [True, False, True]
    for i, ticket in enumerate(tickets):
        assert ticket.sequence.output_ids == make_engine().generate(request(seed=i)).output_ids


def test_a_row_that_is_cancelled_in_its_prompt_hears_nothing():
    made, ear = engine(prefill_chunk_tokens=8), Ear()
    (ticket,) = made.submit([request(mode=drafting(), ear=ear)])
    made.step()
    ticket.cancel()
    drain(made)

    assert ear.heard == []
    assert ticket.sequence.finish_reason is FinishReason.CANCELLED
    assert ticket.mode.name == "speculative"


@pytest.mark.parametrize("fault", [{"fail_project": True}, {"fail_read": True}])
def test_a_probe_that_fails_costs_its_reading_and_nothing_else(fault):
    ear = Ear(may_draft=False)
    expected = make_engine().generate(request()).output_ids
    made = engine(Speller(**fault))

    assert made.generate(request(mode=drafting(), ear=ear)).output_ids == expected
    assert ear.heard == [None]


def test_what_a_failed_probe_left_out_is_never_read_as_if_it_were_there():
    made = engine(Speller())
    made.generate(request("hgfe"))
    made._readings._probe.fail_project = True
    made.generate(request())
    made._readings._probe.fail_project = False
    ear = Ear()
    made.generate(request(PROMPT + "a", ear=ear))

    assert ear.heard == [None]


def test_a_listener_that_fails_leaves_a_standard_row():
    def broken(reading):
        raise RuntimeError("cannot judge")

    made = engine()
    (ticket,) = made.submit([request(mode=drafting(), ear=broken)])
    drain(made)

    assert ticket.sequence.output_ids == make_engine().generate(request()).output_ids
    assert ticket.stats.num_draft_tokens == 0
    assert ticket.restricted


def test_a_prompt_that_only_is_scored_is_read():
    ear = Ear()
    engine().generate(request(ear=ear, max_tokens=0, prompt_logprobs=1))

    assert spelled(ear) == [PROMPT]


def test_listening_to_an_engine_without_a_probe_is_refused():
    with pytest.raises(ValueError, match="no probe"):
        make_engine().submit([request(ear=Ear())])


def test_a_model_that_shows_nothing_is_refused():
    model = TableModel(choosing, len(ALPHABET))

    class Opaque:
        vocab_size, max_length, num_slots = model.vocab_size, model.max_length, model.num_slots
        forward, reset = model.forward, model.reset

    with pytest.raises(TypeError, match="shows no hidden states"):
        Engine(Opaque(), TOKENIZER, probe=Speller())


@pytest.mark.parametrize("layers", [(), (0,), (2, 1), (1, 1), (3,), (1, 4)])
def test_layers_that_cannot_be_shown_are_refused(layers):
    with pytest.raises(ModelError, match="name some of 1 to 2"):
        check_watched(layers, 3)


class Glass:
    """Keeps copies of what it is shown, by place."""

    layers = (1, 2)

    def __init__(self):
        self.seen = {}

    def see(self, places, hidden):
        for i, place in enumerate(places.tolist()):
            self.seen[place] = torch.stack([state[i] for state in hidden]).clone()


def test_both_adapters_show_what_transformers_computes():
    import transformers

    from decoders.models.fused import FusedModel
    from decoders.models.hf import HFModel

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    sizes = {"vocab_size": 40, "num_slots": 2, "max_length": 64}
    token_ids = tuple(range(3, 20))
    with torch.inference_mode():
        states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    expected = torch.stack([states[1][0], states[2][0]], dim=1)
    for adapter in (FusedModel, HFModel):
        glass, served = Glass(), adapter(model, **sizes)
        served.watch(glass)
        served.forward([Row(1, 0, token_ids[:9], 0), Row(0, 0, token_ids[:4], 1)])
        served.forward([Row(0, 4, token_ids[4:5], 1), Row(1, 9, token_ids[9:], 1)])
        whole = torch.stack([glass.seen[64 + at] for at in range(len(token_ids))])

        torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
        assert set(glass.seen) == {*range(5), *range(64, 64 + len(token_ids))}
        with pytest.raises(ModelError):
            served.watch(type("Last", (), {"layers": (3,)})())
