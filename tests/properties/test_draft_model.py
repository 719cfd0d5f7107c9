"""Drafts of a model, by exact enumeration: they never bend the law of what is emitted.

The real `ModelDraftSource` over models of three tokens, through the engine: its cache is rolled back
after every rejection, so a slot that holds a wrong token would change what it draws from, and a law
that is not the one drawn from would change what is emitted.
"""

import pytest
import torch

from decoders.cost import CostModel
from decoders.drafts.base import DraftRequest
from decoders.drafts.model import ModelDraftSource
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, GateContext, StandardFirst
from decoders.modes import Hybrid, Speculative
from decoders.noise import Greedy
from decoders.params import SamplingParams
from decoders.profile import Profile
from decoders.sampling import TokenCounts, process
from decoders.testing import TableModel
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.laws import (
    DRAFT_LAWS,
    PROCESSORS,
    PROMPT,
    VOCAB,
    assert_equal_laws,
    block,
    emitted,
    product,
    reference,
)

WORDS = FunctionWords([" the", " cat", "."])
VERIFIERS = {"coupled": CoupledVerifier, "rejection": RejectionVerifier}
GATES = {
    "none": list,
    "standard_first": lambda: [StandardFirst(2)],
    "content_tokens": lambda: [ContentTokens(WORDS)],
    "entropy": lambda: [EntropyGate(1.05)],
    "all": lambda: [StandardFirst(1), EntropyGate(1.2), ContentTokens(WORDS)],
}


def source(law, **options):
    """A draft model with as many columns as its law has."""
    draft_law = DRAFT_LAWS[law]
    return ModelDraftSource(
        TableModel(draft_law, len(draft_law((0, 0))), num_slots=1, max_length=12), **options
    )


def drafted(noise, law, mode, k, params):
    """One draft of ``k`` tokens from a cold cache, through the gates of ``mode``."""
    row = SamplingParams(**params)
    if row.greedy:
        noise = Greedy()

    def processed(logits, drafted):
        counts = TokenCounts(PROMPT, (), VOCAB, torch.device("cpu"))
        return process(logits, row, counts, drafted)

    (draft,) = source(law).propose([DraftRequest(0, PROMPT, k, 0, noise, process=processed)])
    return mode.admit(draft, GateContext(3, torch.tensor([2.0, 1.0, 0.0])))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_behind_every_gate_leaves_the_law_of_a_block(verifier, gate, k):
    """One draft of full length; what follows the block is the target's own."""
    mode = Hybrid(source("near"), GATES[gate](), k)
    params = PROCESSORS["top_k" if k > 2 else "plain"]

    law = block(
        VERIFIERS[verifier], params, lambda noise: drafted(noise, "near", mode, k, params), k + 1
    )

    assert_equal_laws(law, product(params, k + 1))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_with_every_processor_leaves_the_law_of_a_block(verifier, processor):
    params = PROCESSORS[processor]
    mode = Speculative(source("near"), 2)

    law = block(
        VERIFIERS[verifier], params, lambda noise: drafted(noise, "near", mode, 2, params), 3
    )

    assert_equal_laws(law, product(params, 3))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_emitted_law_is_the_targets_behind_every_gate(verifier, gate):
    """Through the engine: the cache is rolled back, read on from and cut along an answer."""
    params = PROCESSORS["top_k"]

    law = emitted(
        params,
        lambda: Hybrid(source("near"), GATES[gate](), 2),
        verifier=VERIFIERS[verifier],
        max_tokens=4,
    )

    assert_equal_laws(law, reference(SamplingParams(**params), max_tokens=4))


@pytest.mark.parametrize("law", DRAFT_LAWS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_emitted_law_is_the_targets_whatever_the_draft_model_believes(verifier, law):
    """Also with fewer token ids than the target, and with more, as a padded embedding has."""
    found = emitted(
        {}, lambda: Speculative(source(law), 1), verifier=VERIFIERS[verifier], max_tokens=3
    )

    assert_equal_laws(found, reference(SamplingParams(), max_tokens=3))


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_model_that_reads_its_prompt_in_pieces_leaves_the_law(verifier, chunk):
    found = emitted(
        {},
        lambda: Speculative(source("near", prefill_chunk_tokens=chunk), 2),
        verifier=VERIFIERS[verifier],
        max_tokens=3,
    )

    assert_equal_laws(found, reference(SamplingParams(), max_tokens=3))


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("draw_seconds", [0.01, 0.2, 0.6])
def test_what_drawing_costs_does_not_bend_the_law(draw_seconds, verifier):
    """One cost model learns through all branches, and rules before anything is drawn."""
    cost = CostModel(Profile({(1, 1): 1.0, (1, 9): 1.2}))

    found = emitted(
        {},
        lambda: Speculative(
            ModelDraftSource(
                TableModel(DRAFT_LAWS["near"], 3, num_slots=1, max_length=12),
                Profile({(1, 1): draw_seconds}),
            ),
            2,
        ),
        verifier=VERIFIERS[verifier],
        max_tokens=3,
        cost=cost,
    )

    assert_equal_laws(found, reference(SamplingParams(), max_tokens=3))
