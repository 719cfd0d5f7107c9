"""Proof by enumeration: constrained answers have the target's law, renormalised over what is allowed.

A rule of the test's own, and real grammars over a tokenizer of characters, for every exact verifier,
mode, processor and K.
"""

import json
import math

import pytest
import torch

from decoders.engine import Engine
from decoders.grammar import Grammar, GrammarCompiler, GrammarKind
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import (
    CharacterTokenizer,
    ScriptedConstraint,
    TableModel,
    enumerate_law,
)
from tests.laws import (
    EOS,
    PROCESSORS,
    PROMPT,
    TEXT,
    VOCAB,
    assert_equal_laws,
    emitted,
    reference,
    target,
)
from tests.properties.test_exactness import MODES, SAMPLED, VERIFIERS


def no_triples(output):
    """Never the same letter three times; no end before two letters."""
    allowed = {0, 1, EOS} if len(output) >= 2 else {0, 1}
    if len(output) >= 2 and output[-1] == output[-2] == 0:
        allowed.discard(0)
    return allowed


def compiled(kind, source):
    vocabulary = [letter.encode() for letter in TEXT[:EOS]] + [b""]
    return GrammarCompiler(vocabulary, [EOS]).compile(Grammar(kind, source))


# Ends in a only, as the target does, so that something is always left.
REGEX = "a(b?a)?|ba{1,4}"
GRAMMAR = compiled(GrammarKind.REGEX, REGEX)


def matches(output):
    """What may follow an output of `REGEX`, spelled out."""
    words = {"a", "aa", "aba", "ba", "baa", "baaa", "baaaa"}
    text = "".join(TEXT[t] for t in output)
    letters = {TEXT.index(w[len(text)]) for w in words if w.startswith(text) and w != text}
    return letters | ({EOS} if text in words else set())


CONSTRAINTS = {
    "rule": (no_triples, lambda: ScriptedConstraint(no_triples, VOCAB)),
    "grammar": (matches, GRAMMAR.constraint),
}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("processor", ["plain", "all"])
def test_the_emitted_law_is_the_renormalised_one(verifier, constraint, mode, k, processor):
    rule, make = CONSTRAINTS[constraint]
    params, length = PROCESSORS[processor], max(4, k + 2)

    law = emitted(
        params,
        lambda: MODES[mode](k),
        verifier=VERIFIERS[verifier],
        max_tokens=length,
        constraint=make,
    )

    assert_equal_laws(law, reference(SamplingParams(**params), max_tokens=length, rule=rule))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("mode", ["oracle", "end-in-draft"])
def test_every_processor_sees_the_allowed_tokens_alone(mode, processor, constraint):
    rule, make = CONSTRAINTS[constraint]
    params = PROCESSORS[processor]

    law = emitted(params, lambda: MODES[mode](2), constraint=make)

    assert_equal_laws(law, reference(SamplingParams(**params), rule=rule))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_drawn_drafts_are_judged_by_the_renormalised_law(constraint, mode, k):
    rule, make = CONSTRAINTS[constraint]

    law = emitted(
        {},
        lambda: SAMPLED[mode](k),
        verifier=VERIFIERS["rejection"],
        max_tokens=3,
        constraint=make,
    )

    assert_equal_laws(law, reference(SamplingParams(), max_tokens=3, rule=rule))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("stop", ["ab", "aa"])
@pytest.mark.parametrize("max_tokens", [1, 2, 4])
def test_stop_strings_and_limits_cut_constrained_answers(max_tokens, stop, verifier, mode):
    law = emitted(
        {},
        lambda: MODES[mode](3),
        verifier=VERIFIERS[verifier],
        stop=(stop,),
        max_tokens=max_tokens,
        constraint=GRAMMAR.constraint,
    )

    assert_equal_laws(law, reference(SamplingParams(), (stop,), max_tokens, rule=matches))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("min_tokens", [1, 2, 3])
def test_no_answer_ends_before_min_tokens(min_tokens, verifier, mode):
    def rule(output):
        return range(VOCAB) if len(output) >= min_tokens else (0, 1)

    params = {"min_tokens": min_tokens}

    law = emitted(params, lambda: MODES[mode](3), verifier=VERIFIERS[verifier])

    assert_equal_laws(law, reference(SamplingParams(), rule=rule))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_constrained_and_free_rows_share_a_batch(verifier):
    def run(noise):
        engine = Engine(
            TableModel(target, VOCAB, max_length=12), CharacterTokenizer(TEXT, eos_ids=[EOS])
        )
        tickets = engine.submit(
            [
                Request(
                    PROMPT,
                    SamplingParams(max_tokens=2),
                    MODES["oracle"](2),
                    VERIFIERS[verifier](),
                    constraint=constraint,
                    noise=noise,
                )
                for constraint in (GRAMMAR.constraint(), None, GRAMMAR.constraint())
            ]
        )
        while engine.step():
            pass
        return tuple(tuple(ticket.sequence.output_ids) for ticket in tickets)

    bound = reference(SamplingParams(), max_tokens=2, rule=matches)
    free = reference(SamplingParams(), max_tokens=2)
    joint = {
        (a, b, c): math.prod((bound[a], free[b], bound[c]))
        for a in bound
        for b in free
        for c in bound
    }

    assert_equal_laws(enumerate_law(run), joint)


def test_what_is_never_allowed_ends_the_row_with_a_reason():
    engine = Engine(
        TableModel(lambda prefix: (1.0, 0.0, 0.0), VOCAB), CharacterTokenizer(TEXT, eos_ids=[EOS])
    )
    constraint = ScriptedConstraint(lambda output: {1}, VOCAB)

    with pytest.raises(RuntimeError, match="not allowed"):
        engine.generate(Request(PROMPT, SamplingParams(seed=1), constraint=constraint))


@pytest.mark.parametrize(
    ("kind", "source", "texts"),
    [
        (GrammarKind.CHOICE, json.dumps(["a", "ba", "aba"]), {"a", "ba", "aba"}),
        (GrammarKind.EBNF, 'root ::= "a" | x "a"\nx ::= "b" | "ab"', {"a", "ba", "aba"}),
        (GrammarKind.REGEX, "(a?b)?a", {"a", "ba", "aba"}),
    ],
)
def test_grammars_of_every_kind_give_exactly_their_texts(kind, source, texts):
    grammar = compiled(kind, source)

    law = emitted({}, lambda: MODES["suffix"](2), constraint=grammar.constraint)

    assert {"".join(TEXT[t] for t in output[:-1]) for output in law} == texts
    assert all(output[-1] == EOS for output in law)


def test_a_vocabulary_that_is_no_multiple_of_a_word_is_masked_to_its_end():
    vocabulary = [bytes([97 + i % 26]) for i in range(70)] + [b"", b"\xff"]
    compiler = GrammarCompiler(vocabulary, [70])

    allowed = compiler.compile(Grammar(GrammarKind.REGEX, "a")).constraint().allowed([0])

    assert allowed.shape == (2, 72)
    assert allowed[0].nonzero().flatten().tolist() == [0, 26, 52]
    assert allowed[1].nonzero().flatten().tolist() == [70]


def test_rejected_drafts_leave_no_trace():
    constraint = GRAMMAR.constraint()
    before = constraint.allowed([])

    constraint.allowed([0, 0, 1, EOS, 0])
    constraint.allowed([1, 1])
    assert constraint.count_allowed([0, 0, 0, 1]) == 2
    assert constraint.count_allowed([0, 1, 0, EOS, 0]) == 4

    assert torch.equal(constraint.allowed([]), before)
