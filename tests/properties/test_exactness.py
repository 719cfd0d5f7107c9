"""Proof by exact enumeration: what the engine emits has the target's law, to 1e-12.

The whole engine is replayed over every branch of every choice on models of a few tokens, and the law
of its outputs is compared with the product of the target's own conditional laws (`tests/laws.py`).
No sampling, no p-values.
"""

import itertools
import math

import pytest

from decoders.cost import CostModel
from decoders.draft import Draft
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, GateContext, StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from decoders.params import SamplingParams
from decoders.profile import Profile
from decoders.request import Request
from decoders.testing import (
    Branches,
    CharacterTokenizer,
    SampledDraftSource,
    ScriptedDraftSource,
    TableModel,
    enumerate_law,
)
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.laws import (
    DRAFT_LAWS,
    EOS,
    PROCESSORS,
    PROMPT,
    TEXT,
    VOCAB,
    assert_equal_laws,
    block,
    emitted,
    oracle,
    product,
    reference,
    sampled_draft,
    target,
)

WORDS = FunctionWords([" the", " cat", "."])
MIDDLING = 0.8
"""Between the entropies of the target's rows, so that the gate opens and shuts along an answer."""
VERIFIERS = {"coupled": CoupledVerifier, "rejection": RejectionVerifier}
MODES = {
    "standard": lambda k: Standard(),
    "oracle": lambda k: Speculative(ScriptedDraftSource(oracle), k),
    "wrong": lambda k: Speculative(ScriptedDraftSource(lambda t, n: [(t[-1] + 1) % 2] * n), k),
    "suffix": lambda k: Speculative(SuffixDraftSource(min_match=1), k),
    "end-in-draft": lambda k: Speculative(
        ScriptedDraftSource(lambda t, n: ([1] * (len(t) % 3) + [EOS, 0, 1])[:n]), k
    ),
    "standard-first": lambda k: Hybrid(ScriptedDraftSource(oracle), [StandardFirst(2)], k),
    "content-tokens": lambda k: Hybrid(ScriptedDraftSource(oracle), [ContentTokens(WORDS)], k),
    "entropy": lambda k: Hybrid(ScriptedDraftSource(oracle), [EntropyGate(MIDDLING)], k),
}
SAMPLED = {
    "near": lambda k: Speculative(SampledDraftSource(DRAFT_LAWS["near"]), k),
    "blind": lambda k: Speculative(SampledDraftSource(DRAFT_LAWS["blind"]), k),
    "padded": lambda k: Speculative(SampledDraftSource(DRAFT_LAWS["padded"]), k),
    "narrow": lambda k: Speculative(SampledDraftSource(DRAFT_LAWS["narrow"]), k),
    "standard-first": lambda k: Hybrid(
        SampledDraftSource(DRAFT_LAWS["near"]), [StandardFirst(2)], k
    ),
    "content-tokens": lambda k: Hybrid(
        SampledDraftSource(DRAFT_LAWS["near"]), [ContentTokens(WORDS)], k
    ),
    "entropy": lambda k: Hybrid(SampledDraftSource(DRAFT_LAWS["near"]), [EntropyGate(MIDDLING)], k),
}


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_emitted_law_is_the_targets(verifier, processor, mode, k):
    params = PROCESSORS[processor]

    law = emitted(params, lambda: MODES[mode](k), verifier=VERIFIERS[verifier])

    assert_equal_laws(law, reference(SamplingParams(**params)))


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processor", ["top_k", "all"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_emitted_law_is_the_targets_with_long_drafts(verifier, processor, mode, k):
    """Answers long enough for a draft of k tokens after the first token, which has none."""
    params = PROCESSORS[processor]

    law = emitted(params, lambda: MODES[mode](k), verifier=VERIFIERS[verifier], max_tokens=k + 2)

    assert_equal_laws(law, reference(SamplingParams(**params), max_tokens=k + 2))


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_emitted_law_is_the_targets_with_sampled_drafts(processor, mode):
    """Through the engine, which is where drafts are fitted to the target's vocabulary."""
    params = PROCESSORS[processor]

    law = emitted(
        params,
        lambda: SAMPLED[mode](2 if processor == "all" else 1),
        verifier=RejectionVerifier,
        max_tokens=3,
    )

    assert_equal_laws(law, reference(SamplingParams(**params), max_tokens=3))


def gated(noise, k):
    """A sampled draft through the engine's gate, which looks at its tokens."""
    mode = Hybrid(ScriptedDraftSource(oracle), [ContentTokens(WORDS)], k)
    return mode.admit(sampled_draft(noise, DRAFT_LAWS["near"], k), GateContext(0))


def proposed(noise, k):
    return Draft(tuple(oracle(PROMPT, k)))


ONE_HOT = {"proposed": proposed, "gated": gated}
DRAWN = {
    name: lambda noise, k, law=law: sampled_draft(noise, law, k) for name, law in DRAFT_LAWS.items()
}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("draft", ONE_HOT)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_judged_as_given_leaves_the_law_of_a_block(verifier, processor, draft, k):
    """One draft of full length; what follows the block is the target's own."""
    params = PROCESSORS[processor]

    law = block(VERIFIERS[verifier], params, lambda noise: ONE_HOT[draft](noise, k), k + 1)

    assert_equal_laws(law, product(params, k + 1))


@pytest.mark.parametrize(
    ("draft", "k"),
    [(draft, k) for draft in DRAWN for k in (1, 2)] + [("near", 3), ("blind", 3), ("blind", 4)],
)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_draft_judged_by_its_law_leaves_the_law_of_a_block(processor, draft, k):
    params = PROCESSORS[processor]

    law = block(RejectionVerifier, params, lambda noise: DRAWN[draft](noise, k), k + 1)

    assert_equal_laws(law, product(params, k + 1))


@pytest.mark.parametrize(
    ("verifier", "mode"),
    [
        *((v, mode) for v in VERIFIERS for mode in ("oracle", "wrong", "entropy")),
        *(("rejection", f"sampled {mode}") for mode in ("near", "entropy")),
    ],
)
@pytest.mark.parametrize("processor", ["plain", "all"])
@pytest.mark.parametrize(
    "profile",
    [
        {(1, 1): 1.0, (1, 9): 1.1},
        {(1, 1): 1.0, (1, 3): 1.1, (1, 4): 3.0},
        {(1, 1): 1.0, (1, 9): 9.0},
    ],
)
def test_what_drafts_cost_does_not_bend_the_law(profile, processor, verifier, mode):
    """One cost model learns through all branches, so that it rules differently in each."""
    params = PROCESSORS[processor]
    sampled = mode.removeprefix("sampled ")
    make = MODES[mode] if sampled == mode else SAMPLED[sampled]

    law = emitted(
        params,
        lambda: make(2),
        verifier=VERIFIERS[verifier],
        max_tokens=3,
        cost=CostModel(Profile(profile)),
    )

    assert_equal_laws(law, reference(SamplingParams(**params), max_tokens=3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_tokens", [1, 2, 4])
@pytest.mark.parametrize("stop", [(), ("bb",), ("ab", "ba"), ("aab",)])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_stop_strings_and_limits_cut_where_they_should(verifier, mode, stop, max_tokens):
    law = emitted(
        {},
        lambda: MODES[mode](3),
        verifier=VERIFIERS[verifier],
        stop=stop,
        max_tokens=max_tokens,
    )

    assert_equal_laws(law, reference(SamplingParams(), stop, max_tokens))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "ends",
    [
        {"ignore_eos": True},
        {"stop_token_ids": (1,)},
        {"stop_token_ids": (0, 1), "ignore_eos": True},
        {"stop_token_ids": (EOS,), "ignore_eos": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_tokens_that_end_an_answer_cut_where_they_should(verifier, ends, mode):
    """An end that counts for nothing inside a draft, and an ordinary token that ends one."""
    params = {**ends, "temperature": 2.0, "logit_bias": {EOS: 1.0}}

    law = emitted(params, lambda: MODES[mode](3), verifier=VERIFIERS[verifier], stop=("bab",))

    assert_equal_laws(law, reference(SamplingParams(**params), stop=("bab",)))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_rows_of_all_modes_in_one_batch_are_independent(verifier):
    """The joint law of three rows that share every forward is the product of their own."""
    tokenizer = CharacterTokenizer(TEXT, eos_ids=[EOS])

    def run(noise):
        engine = Engine(TableModel(target, VOCAB, max_length=12), tokenizer)
        tickets = engine.submit(
            [
                Request(
                    PROMPT,
                    SamplingParams(max_tokens=2),
                    MODES[mode](2),
                    VERIFIERS[verifier](),
                    noise=noise,
                )
                for mode in ("standard", "oracle", "standard-first")
            ]
        )
        while engine.step():
            pass
        return tuple(tuple(ticket.sequence.output_ids) for ticket in tickets)

    single = reference(SamplingParams(), max_tokens=2)
    joint = {
        outputs: math.prod(single[output] for output in outputs)
        for outputs in itertools.product(single, repeat=3)
    }

    assert_equal_laws(enumerate_law(run), joint)


# -- gates on sampled drafts -----------------------------------------------------------------------

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


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_same_gate_before_the_verifier_is_exact(verifier):
    """The same target, draft law and content tokens, through the engine's own gate."""
    words = FunctionWords([" cat", " the", " of"])
    tokenizer = CharacterTokenizer("abc")

    def run(noise):
        mode = Hybrid(SampledDraftSource(lambda prefix: Q), [ContentTokens(words)], 1)
        params = SamplingParams(max_tokens=3)
        engine = Engine(TableModel(lambda prefix: P, 3), tokenizer)
        request = Request([0], params, mode, VERIFIERS[verifier](), noise=noise)
        return (engine.generate(request).output_ids[1],)

    law = enumerate_law(run)

    assert [law[(token,)] for token in range(3)] == pytest.approx(P, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("way", ["one_hot", "restricted"])
def test_a_selection_is_exact_either_way_back(way, k):
    """Cut before the first b, which is then judged as given, or by the law without b."""

    def draft(noise):
        drawn = sampled_draft(noise, DRAFT_LAWS["near"], k)
        kept = drawn.token_ids.index(1) if 1 in drawn.token_ids else k
        selection = drawn.select(kept)
        if way == "one_hot":
            return selection.one_hot()
        return selection.restricted(drawn.law.draft_probs.new_tensor([1, 0, 1]).bool())

    assert_equal_laws(block(RejectionVerifier, {}, draft, k + 1), product({}, k + 1))


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("draft", [0, 1, 2])
def test_no_draft_of_any_token_moves_the_law(draft, verifier):
    law = block(VERIFIERS[verifier], {}, lambda noise: Draft((draft,) * 2), 3)

    assert_equal_laws(law, product({}, 3))
