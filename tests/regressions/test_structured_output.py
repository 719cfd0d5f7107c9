"""Answers with a form, where drafts run across it.

Batched speculation has missed that a grammar ended inside an accepted draft, kept what a draft broke
the grammar with, not come back from tokens that were rejected, and asked the matcher for a mask
after the end of the sequence, which it refuses or answers with nothing.
"""

import pytest
import torch

from decoders.grammar import Grammar, GrammarCompiler, GrammarKind
from decoders.modes import Speculative, Standard
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import ScriptedDraftSource
from tests.decoding import ALPHABET, EOS, TOKENIZER, VERIFIERS, make_engine

VOCABULARY = [letter.encode() for letter in ALPHABET[:EOS]] + [b""]
GRAMMAR = GrammarCompiler(VOCABULARY, [EOS]).compile(Grammar(GrammarKind.REGEX, "abcd(ef)?"))
RIGHT = (*TOKENIZER.encode("abcd"), EOS)


def law(prefix):
    """Likes `RIGHT` best where the grammar lets it, and anything else nearly as much."""
    at = len(prefix) - 1
    best = RIGHT[at] if at < len(RIGHT) else 0
    return [2.0 / 10 if i == best else 1.0 / 10 for i in range(len(ALPHABET))]


def generate(mode, verifier):
    params = SamplingParams(temperature=0.0, max_tokens=12)
    request = Request((0,), params, mode, verifier(), constraint=GRAMMAR.constraint())
    return make_engine(law).generate(request)


def drafting(tokens, k):
    """`tokens` from wherever the answer is."""

    def script(token_ids, count):
        return tokens[len(token_ids) - 1 :][:count]

    return Speculative(ScriptedDraftSource(script), k)


@pytest.mark.parametrize("beyond", [(), (0,), (EOS, 0), (EOS, EOS)])
@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_grammar_that_ends_inside_a_draft_ends_the_answer_there(verifier, k, beyond):
    sequence = generate(drafting((*RIGHT, *beyond), k), VERIFIERS[verifier])

    assert tuple(sequence.output_ids) == RIGHT
    assert sequence.finish_reason == "stop"
    assert sequence.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("wrong", [6, EOS])
@pytest.mark.parametrize("index", range(len(RIGHT) - 1))
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_that_breaks_the_grammar_is_cut_there_and_leaves_no_trace(verifier, index, wrong):
    """What is drafted after the wrong token would go on as if it had been the right one."""
    broken = (*RIGHT[:index], wrong, *RIGHT[index + 1 :])

    sequence = generate(drafting(broken, 5), VERIFIERS[verifier])

    assert sequence.output_ids == generate(Standard(), VERIFIERS[verifier]).output_ids
    assert tuple(sequence.output_ids) == RIGHT
    assert sequence.stats.num_accepted_tokens >= index


@pytest.mark.parametrize("index", range(len(RIGHT)))
def test_a_draft_that_was_asked_about_and_rejected_is_taken_back(index):
    constraint, afresh = GRAMMAR.constraint(), GRAMMAR.constraint()
    for token_id in RIGHT[:index]:
        constraint.accept([token_id])
        afresh.accept([token_id])

    constraint.allowed([*RIGHT[index:], 0, EOS])
    constraint.count_allowed([*RIGHT[index:-1], 4, 5, EOS, 0])

    assert torch.equal(constraint.allowed([]), afresh.allowed([]))
    assert constraint.allowed([])[0, RIGHT[index]]


def test_a_mask_after_the_end_of_the_sequence_is_given_and_never_empty():
    constraint = GRAMMAR.constraint()

    inside = constraint.allowed([*RIGHT, 0, EOS])
    constraint.accept(RIGHT)

    assert inside.shape == (len(RIGHT) + 3, len(ALPHABET))
    assert inside[len(RIGHT) - 1].nonzero().flatten().tolist() == [4, EOS]
    assert inside.any(dim=-1).all()
    assert constraint.count_allowed([0]) == 0
    assert constraint.count_allowed([EOS]) == 0
