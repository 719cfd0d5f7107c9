"""Proof by exact enumeration: what the engine emits has the target's law, to 1e-12.

The whole engine is replayed over every branch of every choice on models of a few tokens, and the law
of its outputs is compared with the product of the target's own conditional laws. The reference
below shares no code with the engine. No sampling, no p-values.
"""

import itertools
import math

import pytest

from decoders.cost import CostModel
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from decoders.params import SamplingParams
from decoders.profile import Profile
from decoders.request import Request
from decoders.testing import (
    Branches,
    CharacterTokenizer,
    ScriptedDraftSource,
    TableModel,
    enumerate_law,
)

TEXT = "ab."
EOS = 2
VOCAB = 3
PROMPT = (0, 1, 0)

# (a, b, end) by the last two tokens: plain, sharp, tied, and with impossible tokens.
ROWS = {
    (0, 0): (0.5, 0.3, 0.2),
    (0, 1): (0.6, 0.4, 0.0),
    (1, 0): (0.25, 0.5, 0.25),
    (1, 1): (0.0, 1.0, 0.0),
}


def target(prefix):
    return ROWS[prefix[-2], prefix[-1]]


PROCESSORS = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 2},
    "top_k_one": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.55},
    "bias": {"logit_bias": {0: 1.0, 2: -0.5}},
    "ban": {"logit_bias": {1: -math.inf}},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    "repetition": {"repetition_penalty": 1.5},
    "greedy": {"temperature": 0.0},
    "all": {
        "temperature": 0.8,
        "top_k": 2,
        "top_p": 0.9,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {2: 0.3},
    },
}


def oracle(tokens, count):
    """Drafts that are often right: the target's most likely continuation."""
    tokens = list(tokens)
    for _ in range(count):
        row = target(tuple(t % 2 for t in tokens))
        tokens.append(row.index(max(row)))
    return tokens[-count:]


MODES = {
    "standard": lambda k: Standard(),
    "oracle": lambda k: Speculative(ScriptedDraftSource(oracle), k),
    "wrong": lambda k: Speculative(ScriptedDraftSource(lambda t, n: [(t[-1] + 1) % 2] * n), k),
    "suffix": lambda k: Speculative(SuffixDraftSource(min_match=1), k),
    "end-in-draft": lambda k: Speculative(
        ScriptedDraftSource(lambda t, n: ([1] * (len(t) % 3) + [EOS, 0, 1])[:n]), k
    ),
    "standard-first": lambda k: Hybrid(ScriptedDraftSource(oracle), [StandardFirst(2)], k),
    "content-tokens": lambda k: Hybrid(
        ScriptedDraftSource(oracle), [ContentTokens(FunctionWords([" the", " cat", "."]))], k
    ),
    # Between the entropies of the target's rows, so that it opens and shuts along an answer.
    "entropy": lambda k: Hybrid(ScriptedDraftSource(oracle), [EntropyGate(0.8)], k),
}


def reference(params, stop=(), max_tokens=4):
    """The law of complete answers: a tree walk over the target's processed laws."""
    law = {}

    def walk(output, weight):
        text = "".join(TEXT[t] for t in output if t != EOS)
        ended = output and (
            output[-1] == EOS or any(s in text for s in stop) or len(output) == max_tokens
        )
        if ended:
            law[output] = law.get(output, 0.0) + weight
            return
        for token, mass in enumerate(processed(params, output)):
            if mass > 0:
                walk((*output, token), weight * mass)

    walk((), 1.0)
    return law


def processed(params, output):
    """Bias, repetition, frequency and presence, temperature, min-p, top-k, top-p, in plain floats."""
    raw = target(tuple(t % 2 for t in PROMPT + output))
    logits = [math.log(m) if m > 0 else -math.inf for m in raw]
    logits = [z + params.logit_bias.get(t, 0.0) for t, z in enumerate(logits)]
    for t in range(VOCAB):
        count = output.count(t)
        if count or t in PROMPT:
            r = params.repetition_penalty
            logits[t] = logits[t] / r if logits[t] > 0 else logits[t] * r
        logits[t] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    if params.temperature == 0:
        best = logits.index(max(logits))
        return [float(t == best) for t in range(VOCAB)]
    weights = [math.exp((z - max(logits)) / params.temperature) for z in logits]
    weights = [w if w >= params.min_p * max(weights) else 0.0 for w in weights]
    if params.top_k:
        floor = sorted(weights, reverse=True)[params.top_k - 1]
        weights = [w if w >= floor else 0.0 for w in weights]
    total, mass = sum(weights), 0.0
    for w in sorted(weights, reverse=True):
        mass += w / total
        if mass >= params.top_p:
            weights = [v if v >= w else 0.0 for v in weights]
            break
    return [w / sum(weights) for w in weights]


def emitted(params, mode, k, stop=(), max_tokens=4, cost=lambda: None):
    tokenizer = CharacterTokenizer(TEXT, eos_ids=[EOS])
    row = SamplingParams(
        **params, stop=stop, max_tokens=max_tokens, seed=0 if params.get("temperature") == 0 else 1
    )

    def run(noise):
        model = TableModel(
            lambda prefix: target(tuple(t % 2 for t in prefix)), VOCAB, max_length=12
        )
        request = Request(PROMPT, row, MODES[mode](k), noise=None if row.greedy else noise)
        return tuple(Engine(model, tokenizer, cost=cost()).generate(request).output_ids)

    return enumerate_law(run)


def assert_equal_laws(law, expected):
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    for output in law.keys() | expected.keys():
        assert law.get(output, 0.0) == pytest.approx(expected.get(output, 0.0), abs=1e-12), output


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_emitted_law_is_the_targets(processor, mode, k):
    if mode == "standard" and k > 1:
        k = 1
    params = PROCESSORS[processor]

    assert_equal_laws(emitted(params, mode, k), reference(SamplingParams(**params)))


@pytest.mark.parametrize("mode", ["oracle", "wrong", "end-in-draft", "entropy"])
@pytest.mark.parametrize("processor", ["plain", "penalties", "all"])
@pytest.mark.parametrize(
    "profile",
    [
        {(1, 1): 1.0, (1, 9): 1.1},
        {(1, 1): 1.0, (1, 3): 1.1, (1, 4): 3.0},
        {(1, 1): 1.0, (1, 9): 9.0},
    ],
)
def test_what_drafts_cost_does_not_bend_the_law(profile, processor, mode):
    """One cost model learns through all branches, so that it rules differently in each."""
    cost = CostModel(Profile(profile))
    params = PROCESSORS[processor]

    law = emitted(params, mode, 4, cost=lambda: cost)

    assert_equal_laws(law, reference(SamplingParams(**params)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
@pytest.mark.parametrize("stop", [(), ("bb",), ("ab", "ba"), ("aab",)])
def test_stop_strings_and_limits_cut_where_they_should(mode, stop, max_tokens):
    law = emitted({}, mode, 3, stop, max_tokens)

    assert_equal_laws(law, reference(SamplingParams(), stop, max_tokens))


def test_rows_of_all_modes_in_one_batch_are_independent():
    """The joint law of three rows that share every forward is the product of their own."""
    tokenizer = CharacterTokenizer(TEXT, eos_ids=[EOS])

    def run(noise):
        model = TableModel(
            lambda prefix: target(tuple(t % 2 for t in prefix)), VOCAB, max_length=12
        )
        engine = Engine(model, tokenizer)
        tickets = engine.submit(
            [
                Request(PROMPT, SamplingParams(max_tokens=2), MODES[mode](2), noise=noise)
                for mode in ("standard", "oracle", "standard-first")
            ]
        )
        while engine.step():
            pass
        return tuple(tuple(ticket.sequence.output_ids) for ticket in tickets)

    single = reference(SamplingParams(), max_tokens=2)
    product = {
        outputs: math.prod(single[output] for output in outputs)
        for outputs in itertools.product(single, repeat=3)
    }

    assert_equal_laws(enumerate_law(run), product)


# -- the enumeration catches what it should --------------------------------------------------------

P, Q, CONTENT = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5), {0}


def replay(procedure):
    law, branches, more = [0.0] * 3, Branches(), True
    while more:
        token = procedure(branches)
        law[token] += branches.weight
        more = branches.rewind()
    return law


def test_naive_gating_of_a_sampled_draft_is_biased_and_seen():
    """Speculative sampling that throws away an accepted content token and draws it again."""

    def naive(branches):
        token = branches.pick(Q)
        accept = min(1.0, P[token] / Q[token])
        if not branches.pick((1 - accept, accept)):
            residual = [max(0.0, p - q) for p, q in zip(P, Q, strict=True)]
            return branches.pick([mass / sum(residual) for mass in residual])
        return branches.pick(P) if token in CONTENT else token

    assert replay(naive) == pytest.approx((0.40, 0.36, 0.24), abs=1e-12)


@pytest.mark.parametrize("draft", [0, 1, 2])
def test_a_gate_before_the_coupled_verifier_is_exact(draft):
    """The same target and content tokens, whatever the draft proposes."""
    words = FunctionWords([" cat", " the", " of"])
    tokenizer = CharacterTokenizer("abc")

    def run(noise):
        source = ScriptedDraftSource(lambda tokens, count: [draft] * count)
        mode = Hybrid(source, [ContentTokens(words)], 2)
        params = SamplingParams(max_tokens=3)
        engine = Engine(TableModel(lambda prefix: P, 3), tokenizer)
        return (engine.generate(Request([0], params, mode, noise=noise)).output_ids[1],)

    law = enumerate_law(run)

    assert [law[(token,)] for token in range(3)] == pytest.approx(P, abs=1e-12)
