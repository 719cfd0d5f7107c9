"""Known faults of speculative decoders, put in on purpose: the proofs have to see every one.

Each control runs a check of the suite on sound code, where it passes, and on the fault, where it
must not. A proof that nothing can fail proves nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from decoders import drafter
from decoders.draft import Dense, Draft, LawError
from decoders.gates import ContentTokens, FunctionWords, GateContext
from decoders.modes import Hybrid, Speculative, Standard
from decoders.noise import GumbelNoise, Purpose
from decoders.params import SamplingParams
from decoders.sampling import process_rows
from decoders.sequence import TokenSequence
from decoders.testing import (
    Branches,
    SampledDraftSource,
    ScriptedConstraint,
    ScriptedDraftSource,
)
from decoders.verifiers import rejection
from decoders.verifiers.base import DraftedRow, Verdict, draw
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.laws import (
    DRAFT_LAWS,
    EOS,
    PROCESSORS,
    PROMPT,
    VOCAB,
    answer,
    assert_equal_laws,
    block,
    emitted,
    oracle,
    product,
    reference,
    sampled_draft,
)

CONTENT = 1
WORDS = FunctionWords([" the", " cat", "."])


def near(noise, count=2):
    return sampled_draft(noise, DRAFT_LAWS["near"], count)


def check_block(draft=near, verifier=RejectionVerifier, params="plain"):
    law = block(verifier, PROCESSORS[params], draft, 3)
    assert_equal_laws(law, product(PROCESSORS[params], 3))


def check_answers(params="plain", verifier=RejectionVerifier, mode=None, stop=()):
    chosen = mode or (lambda: Speculative(ScriptedDraftSource(oracle), 2))
    law = emitted(PROCESSORS[params], chosen, verifier=verifier, stop=stop)
    assert_equal_laws(law, reference(SamplingParams(**PROCESSORS[params]), stop))


@pytest.mark.parametrize("verifier", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize("params", PROCESSORS)
def test_the_checks_pass_on_sound_code(params, verifier):
    check_block(verifier=verifier, params=params)
    check_answers(params, verifier)


# -- the draft's law -------------------------------------------------------------------------------


def wrongly_stated(drawn_from, stated):
    """Draws two tokens from one law and states another."""

    def draft(noise):
        drawn, laws = [], []
        for i in range(2):
            prefix = (*PROMPT, *drawn)
            scores = drawn_from(prefix).log().unsqueeze(0)
            drawn.append(noise.choose(scores, i)[0])
            laws.append(stated(prefix))
        return Draft(tuple(drawn), law=Dense(torch.stack(laws)))

    return draft


def full(prefix):
    return torch.tensor(DRAFT_LAWS["near"](prefix), dtype=torch.float64)


def top_two(prefix):
    law = full(prefix)
    law[law.argmin()] = 0.0
    return law / law.sum()


def warmer(prefix):
    return full(prefix).sqrt() / full(prefix).sqrt().sum()


def half_precision(prefix):
    """What is left of the law when its scores are kept in bfloat16."""
    return full(prefix).log().bfloat16().double().softmax(-1)


def point(prefix):
    law = torch.zeros(VOCAB, dtype=torch.float64)
    law[full(prefix).argmax()] = 1.0
    return law


@pytest.mark.parametrize(
    "drawn_from",
    [top_two, warmer, half_precision, point],
    ids=["top-k of it", "temperature of it", "bfloat16 of it", "the likeliest, as by a beam"],
)
def test_a_draft_law_that_is_not_the_one_drawn_from_is_seen(drawn_from):
    check_block(wrongly_stated(full, full))
    check_block(wrongly_stated(drawn_from, drawn_from))

    with pytest.raises(AssertionError):
        check_block(wrongly_stated(drawn_from, full))


def test_a_gate_that_hides_that_it_looked_is_seen():
    """It cuts the draft by its tokens, and calls it a cut by length."""

    def kept(draft):
        return draft.token_ids.index(CONTENT) if CONTENT in draft.token_ids else len(draft)

    def honest(noise):
        draft = near(noise)
        return draft.select(kept(draft)).one_hot()

    def hiding(noise):
        draft = near(noise)
        return draft.first(kept(draft))

    check_block(honest)
    with pytest.raises(AssertionError):
        check_block(hiding)


def test_a_gate_of_the_engine_cannot_hide_it():
    def gated(noise):
        mode = Hybrid(ScriptedDraftSource(oracle), [ContentTokens(WORDS)], 2)
        return mode.admit(near(noise), GateContext(0))

    check_block(gated)


def test_a_law_renormalised_for_another_reason_of_the_cut_is_refused():
    """Cut before the first b, but stated as if before the first end of sequence."""

    def draft(noise):
        drawn = near(noise)
        at = drawn.token_ids.index(CONTENT) if CONTENT in drawn.token_ids else len(drawn)
        return drawn.select(at).restricted(torch.tensor([True, True, False]))

    with pytest.raises(LawError):
        check_block(draft)


# -- the verifier ----------------------------------------------------------------------------------


class Trusting(RejectionVerifier):
    """Never verifies the first draft token."""

    def verify(self, scores, rows):
        (row,) = rows
        if not len(row.draft):
            return super().verify(scores, rows)
        first, *others = row.draft.token_ids
        law = row.draft.law
        law = Dense(law.draft_probs[1:]) if isinstance(law, Dense) else law
        rest = replace(row.draft, token_ids=tuple(others), law=law)
        (verdict,) = super().verify(scores[1:], [DraftedRow(rest, row.noise, row.position + 1)])
        return [Verdict((first, *verdict.token_ids), verdict.num_accepted + 1)]


class GatedAfterwards(RejectionVerifier):
    """Throws away the first accepted content token and draws there again."""

    def verify(self, scores, rows):
        ((row,), (verdict,)) = rows, super().verify(scores, rows)
        accepted = verdict.token_ids[: verdict.num_accepted]
        if CONTENT not in accepted:
            return [verdict]
        at = accepted.index(CONTENT)
        again = draw(row.noise.law(scores[at]), row.noise, row.position + at, Purpose.BONUS)
        return [Verdict((*accepted[:at], again), at)]


class SampleAgain(CoupledVerifier):
    """Compares the draft with the target's choice, but emits a fresh one where they differ."""

    def verify(self, scores, rows):
        ((row,), (verdict,)) = rows, super().verify(scores, rows)
        if verdict.num_accepted == len(row.draft):
            return [verdict]
        at = verdict.num_accepted
        again = draw(row.noise.law(scores[at]), row.noise, row.position + at, Purpose.BONUS)
        return [Verdict((*verdict.token_ids[:at], again), at)]


class NoBonusLaw(RejectionVerifier):
    """Takes the bonus token from the row of the last draft token."""

    def verify(self, scores, rows):
        last = len(rows[0].draft)
        late = torch.cat([scores[:last], scores[last - 1 : last]])
        return super().verify(late if last else scores, rows)


@pytest.mark.parametrize("fault", [Trusting, GatedAfterwards, SampleAgain, NoBonusLaw])
def test_a_verifier_with_a_fault_is_seen(fault):
    with pytest.raises(AssertionError):
        check_block(verifier=fault)
    with pytest.raises(AssertionError):
        check_answers(verifier=fault)


def target_itself(target_probs, draft_probs):
    return target_probs


def not_renormalised(target_probs, draft_probs):
    """What inverse-CDF sampling makes of a law whose mass is below 1: the rest goes to the last."""
    residual = (target_probs - draft_probs).clamp(min=0.0)
    residual[-1] += 1.0 - residual.sum()
    return residual


def of_the_wrong_sign(target_probs, draft_probs):
    residual = (draft_probs - target_probs).clamp(min=0.0)
    return residual / residual.sum()


@pytest.mark.parametrize("fault", [target_itself, not_renormalised, of_the_wrong_sign])
def test_a_wrong_residual_distribution_is_seen(fault, monkeypatch):
    monkeypatch.setattr(rejection, "residual_distribution", fault)

    with pytest.raises(AssertionError):
        check_block()


# -- processors at draft positions -----------------------------------------------------------------


def skipping(**neutral):
    """`process_rows`, but at draft positions without some of the parameters."""

    def faulty(logits, contexts):
        (context,) = contexts
        skipped = replace(context, params=replace(context.params, **neutral))
        return torch.cat([process_rows(logits, contexts)[:1], process_rows(logits, [skipped])[1:]])

    return faulty


def blind_to_the_draft(logits, contexts):
    blind = replace(contexts[0], num_positions=1, draft_ids=())
    return torch.cat([process_rows(row.unsqueeze(0), [blind]) for row in logits])


@pytest.mark.parametrize("verifier", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ("min_p", skipping(min_p=0.0)),
        ("bias", skipping(logit_bias={})),
        ("ban", skipping(logit_bias={})),
        ("top_k", skipping(top_k=0)),
        ("top_p", skipping(top_p=1.0)),
        ("temperature", skipping(temperature=1.0)),
        ("repetition", skipping(repetition_penalty=1.0)),
        ("penalties", skipping(frequency_penalty=0.0)),
        ("penalties", blind_to_the_draft),
    ],
    ids=[
        "min_p",
        "bias",
        "ban",
        "top_k",
        "top_p",
        "temperature",
        "repetition",
        "frequency",
        "penalties do not count drafted tokens",
    ],
)
def test_a_processor_that_skips_draft_positions_is_seen(params, fault, verifier, monkeypatch):
    monkeypatch.setattr("decoders.verification.process_rows", fault)

    with pytest.raises(AssertionError):
        check_answers(params, verifier)


# -- where an answer ends --------------------------------------------------------------------------


def late(watched):
    """`TokenSequence.extend`, but looking for the end only at the last token of a block."""
    extend = TokenSequence.extend

    def faulty(self, token_ids, logprobs):
        sound = getattr(self, watched)
        setattr(self, watched, BLIND[watched](self))
        extend(self, token_ids[:-1], logprobs[:-1])
        setattr(self, watched, sound)
        piece, _ = extend(self, token_ids[-1:], logprobs[-1:])
        return piece, len(token_ids)

    return faulty


class _NoStop:
    def __init__(self, text):
        self._text = text

    def push(self, token_id, logprob, **options):
        self._text._detokenizer.push(token_id)
        return "", False

    def logprobs(self, *, final):
        return ()


BLIND = {
    "end_ids": lambda sequence: frozenset(),
    "_text": lambda sequence: _NoStop(sequence._text),
}


@pytest.mark.parametrize(("watched", "stop"), [("end_ids", ()), ("_text", ("ab",))])
def test_an_end_inside_a_block_that_is_overlooked_is_seen(watched, stop, monkeypatch):
    def mode():
        return Speculative(
            ScriptedDraftSource(lambda t, n: [EOS, 0, 1][:n] if not stop else oracle(t, n)), 2
        )

    check_answers(mode=mode, stop=stop)
    monkeypatch.setattr(TokenSequence, "extend", late(watched))

    with pytest.raises(AssertionError):
        check_answers(mode=mode, stop=stop)


# -- randomness ------------------------------------------------------------------------------------

CELLS = 6
TARGET, DRAFT = (1 / 3, 1 / 3, 1 / 3), (1 / 6, 1 / 6, 4 / 6)
"""Every probability that the verifier meets with these is a multiple of 1/6, so `KeyedNoise` has
the exact law: accept with 1/2 or 1, residual (1/2, 1/2, 0)."""


class KeyedNoise:
    """Noise that is a function of its key: a key that is read twice gives the same value twice.

    Enumerates `CELLS` equally likely values for each key, so that a draw which is used for two
    things bends the law as much as it would with real noise.
    """

    def __init__(self, branches: Branches, renamed: dict[int, int], shift: int = 0) -> None:
        self._branches = branches
        self._renamed = renamed
        self._shift = shift
        self._values: dict[tuple[int, int], float] = {}

    def choose(self, scores, position, purpose=Purpose.CHOICE) -> Sequence[int]:
        laws = self.law(scores).cumsum(-1)
        return [int((law < self._value(purpose, position + i)).sum()) for i, law in enumerate(laws)]

    def accept(self, probability, position) -> bool:
        return self._value(Purpose.ACCEPT, position) < probability

    def law(self, scores):
        return scores.double().softmax(-1)

    def _value(self, purpose: int, position: int) -> float:
        if purpose in self._renamed:
            key = (self._renamed[purpose], position - self._shift)
        else:
            key = (int(purpose), position)
        if key not in self._values:
            self._values[key] = (self._branches.pick([1 / CELLS] * CELLS) + 0.5) / CELLS
        return self._values[key]


def keyed_law(renamed, shift=0):
    """The law of two tokens, where some purposes share their draws with others."""
    law, branches, more = {}, Branches(), True
    scores = torch.tensor([TARGET, TARGET], dtype=torch.float64).log()
    while more:
        noise = KeyedNoise(branches, renamed, shift)
        draft = sampled_draft(noise, lambda prefix: DRAFT, 1)
        (verdict,) = RejectionVerifier().verify(scores, [DraftedRow(draft, noise, 0)])
        output = verdict.token_ids
        rest = [(*output, token) for token in range(VOCAB)] if len(output) == 1 else [output]
        for tokens in rest:
            law[tokens] = law.get(tokens, 0.0) + branches.weight / len(rest)
        more = branches.rewind()
    return law


def check_keys(renamed, shift=0):
    expected = {(a, b): 1 / 9 for a in range(VOCAB) for b in range(VOCAB)}
    assert_equal_laws(keyed_law(renamed, shift), expected)


@pytest.mark.parametrize(
    ("renamed", "shift"),
    [
        ({Purpose.RESIDUAL: Purpose.CHOICE}, 0),
        ({Purpose.RESIDUAL: Purpose.ACCEPT}, 0),
        ({Purpose.ACCEPT: Purpose.CHOICE}, 0),
        ({Purpose.BONUS: Purpose.CHOICE}, 1),
        ({Purpose.BONUS: Purpose.ACCEPT}, 1),
    ],
    ids=[
        "recovery with the draft's noise",
        "recovery with the coin's noise",
        "coin with the draft's noise",
        "bonus with the draft's noise",
        "bonus with the coin's noise",
    ],
)
def test_a_draw_that_is_used_twice_is_seen(renamed, shift):
    check_keys({})

    with pytest.raises(AssertionError):
        check_keys(renamed, shift)


class Stream:
    """One generator for the row: each evaluated position draws from it, emitted or not."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def choose(self, scores, position, purpose=Purpose.CHOICE) -> list[int]:
        return torch.multinomial(self.law(scores), 1, generator=self._generator)[:, 0].tolist()

    def law(self, scores):
        return scores.double().softmax(-1)


def check_replays(noise):
    for seed in range(20):
        outputs = {
            tuple(answer(PROCESSORS["hot"], mode, noise(seed), max_tokens=8).output_ids)
            for mode in (Standard(), Speculative(ScriptedDraftSource(oracle), 3))
        }
        assert len(outputs) == 1, seed


def test_noise_that_rejected_tokens_use_up_is_seen():
    check_replays(GumbelNoise)

    with pytest.raises(AssertionError):
        check_replays(Stream)


# -- constraints -----------------------------------------------------------------------------------


def waltz(output):
    """An end only where two tokens stand beyond a multiple of three."""
    return {0, 1, EOS} if len(output) % 3 == 2 else {0, 1}


class FirstRowOnly(ScriptedConstraint):
    """Masks the next token, and not those after the draft's."""

    def allowed(self, draft_ids):
        rows = super().allowed(draft_ids)
        rows[1:] = True
        return rows

    def accept(self, token_ids):
        self._output = (*self._output, *token_ids)


class LateByOne(ScriptedConstraint):
    """Masks each position by the tokens before the one before it."""

    def allowed(self, draft_ids):
        rows = super().allowed(draft_ids)
        return rows[[max(i - 1, 0) for i in range(len(rows))]]

    def accept(self, token_ids):
        self._output = (*self._output, *token_ids)


class KeepsRejected(ScriptedConstraint):
    """Goes on past the draft when it is asked about it, and never comes back."""

    def allowed(self, draft_ids):
        rows = super().allowed(draft_ids)
        self._output = (*self._output, *draft_ids)
        return rows

    def accept(self, token_ids):
        self._output = (*self._output, *token_ids)


def check_constraint(constraint, draft=(0, 0, 0, 0)):
    law = emitted(
        {},
        lambda: Speculative(ScriptedDraftSource(lambda tokens, count: list(draft[:count])), 2),
        constraint=lambda: constraint(waltz, VOCAB),
    )
    assert_equal_laws(law, reference(SamplingParams(), rule=waltz))


@pytest.mark.parametrize("faulty", [FirstRowOnly, LateByOne, KeepsRejected])
def test_a_mask_that_is_wrong_along_a_draft_is_seen(faulty, monkeypatch):
    # Whole drafts reach the verifier, as they do where they were drawn.
    monkeypatch.setattr(ScriptedConstraint, "count_allowed", lambda self, ids: len(ids))
    draft = (0, 1, 1, 0)
    check_constraint(ScriptedConstraint, draft)

    with pytest.raises(AssertionError):
        check_constraint(faulty, draft)


def test_a_drawn_draft_cut_for_its_tokens_is_seen(monkeypatch):
    """Cut where the constraint ends it, and judged by the law of what was drawn."""

    def check():
        law = emitted(
            {},
            lambda: Speculative(SampledDraftSource(DRAFT_LAWS["near"]), 2),
            verifier=RejectionVerifier,
            max_tokens=3,
            constraint=lambda: ScriptedConstraint(waltz, VOCAB),
        )
        assert_equal_laws(law, reference(SamplingParams(), max_tokens=3, rule=waltz))

    check()
    monkeypatch.setattr(
        drafter,
        "_possible",
        lambda wish, draft: draft.first(wish.ticket.constraint.count_allowed(draft.token_ids)),
    )
    with pytest.raises(AssertionError):
        check()
