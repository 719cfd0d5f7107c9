"""A draft's law is what it says, or the draft is refused."""

import pytest
import torch

from decoders.draft import NO_DRAFT, Dense, Draft, LawError, OneHot, Selection
from decoders.engine import Engine
from decoders.gates import ContentTokens, FunctionWords, GateContext, StandardFirst
from decoders.modes import Hybrid, Speculative
from decoders.noise import GumbelNoise
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import CharacterTokenizer, SampledDraftSource, ScriptedDraftSource, TableModel
from decoders.verifiers.base import DraftedRow
from decoders.verifiers.conservative import ConservativeVerifier
from decoders.verifiers.rejection import RejectionVerifier
from decoders.verifiers.typical import TypicalVerifier

LAW = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 0.5, 0.5]])
SOURCE = ScriptedDraftSource(lambda tokens, count: [0] * count)


def dense(*token_ids, law=LAW):
    return Draft(tuple(token_ids), "x", law=Dense(law[: len(token_ids)]))


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.tensor([0.5, 0.5]), "float32 or float64"),
        (torch.tensor([[0.5, 0.5]], dtype=torch.bfloat16), "fewer bits"),
        (torch.tensor([[0.5, 0.3]]), "its mass is 0.8; renormalise"),
        (torch.tensor([[0.5, 0.5], [0.6, 0.6]]), "its mass is 1.2"),
        (torch.tensor([[1.5, -0.5]]), "not a law"),
        (torch.zeros(1, 0), "its mass is 0"),
        (torch.tensor([[float("nan"), 1.0]]), "not a law"),
    ],
)
def test_what_cannot_be_a_law_is_refused(probs, message):
    with pytest.raises(LawError, match=message):
        Dense(probs)


def test_the_softmax_of_a_wide_vocabulary_is_a_law():
    Dense(torch.linspace(-9, 9, 200_000).softmax(-1).unsqueeze(0))


def test_a_token_that_its_law_cannot_have_given_is_refused():
    with pytest.raises(LawError, match="token 0 has probability 0"):
        dense(0, 2, 0)
    with pytest.raises(LawError, match="token 5 has probability 0"):
        dense(5)
    with pytest.raises(LawError, match="2 tokens cannot have 3 rows"):
        Draft((0, 1), law=Dense(LAW))


def test_a_cut_by_length_keeps_the_law():
    cut = dense(0, 2, 1).first(2)

    assert cut.token_ids == (0, 2)
    assert torch.equal(LAW[:2], cut.law.draft_probs)
    assert len(dense(0).first(0)) == 0


def test_a_selection_is_no_draft_until_it_says_which_law_it_has():
    selection = dense(0, 2, 1).select(2)

    assert isinstance(selection, Selection)
    assert not hasattr(selection, "law")
    assert selection.one_hot() == Draft((0, 2), "x", law=OneHot())
    restricted = selection.restricted(torch.tensor([True, False, True]))
    assert restricted.token_ids == (0, 2)
    assert restricted.law.draft_probs.tolist() == [
        pytest.approx([5 / 7, 0, 2 / 7]),
        pytest.approx([1 / 9, 0, 8 / 9]),
    ]


def test_a_one_hot_draft_stays_what_it_is_through_a_selection():
    draft = Draft((0, 1), "x")

    assert draft.select(1).one_hot() == Draft((0,), "x")
    assert draft.select(1).restricted(torch.tensor([True, False])) == Draft((0,), "x")


@pytest.mark.parametrize("allowed", [[False, True, True], [False, False, False]])
def test_a_restriction_to_a_set_without_a_kept_token_is_refused(allowed):
    with pytest.raises(LawError):
        dense(0).select(1).restricted(torch.tensor(allowed))


@pytest.mark.parametrize(
    "verifier", [RejectionVerifier(), TypicalVerifier(0.5), ConservativeVerifier(0.5)]
)
def test_verifiers_refuse_a_selection_and_say_what_to_do(verifier):
    with pytest.raises(LawError, match=r"one_hot\(\)` or `restricted"):
        verifier.verify(torch.zeros(2, 3), [DraftedRow(dense(0).select(1), GumbelNoise(1), 9)])


def test_verifiers_refuse_a_law_over_another_vocabulary():
    with pytest.raises(LawError, match="3 columns for a vocabulary of 4"):
        RejectionVerifier().verify(torch.zeros(2, 4), [DraftedRow(dense(0), GumbelNoise(1), 0)])


def test_a_draft_is_fitted_to_a_larger_vocabulary():
    fitted = dense(0, 2).within(5)

    assert fitted.law.draft_probs.tolist()[1] == pytest.approx([0.1, 0.1, 0.8, 0, 0])


def test_a_draft_is_fitted_to_a_smaller_vocabulary_and_renormalised():
    fitted = dense(0, 1, 2).within(2)

    assert fitted.token_ids == (0, 1)
    assert fitted.law.draft_probs.tolist() == [
        pytest.approx([0.625, 0.375]),
        pytest.approx([0.5, 0.5]),
    ]


@pytest.mark.parametrize("token_ids", [(1, 9, 0), (1, -1, 0)])
def test_a_one_hot_draft_ends_before_a_token_outside_the_vocabulary(token_ids):
    assert Draft(token_ids, "x").within(5) == Draft((1,), "x")
    assert len(NO_DRAFT.within(0)) == 0


def test_a_gate_that_looks_at_the_position_alone_leaves_the_law():
    mode = Hybrid(SOURCE, [StandardFirst(2)])

    assert isinstance(mode.admit(dense(0, 2), GateContext(2)).law, Dense)
    assert len(mode.admit(dense(0, 2), GateContext(1))) == 0


def test_a_gate_that_looks_at_tokens_takes_the_law_away_even_where_all_stand():
    mode = Hybrid(SOURCE, [StandardFirst(0), ContentTokens(FunctionWords([" the", " of", " cat"]))])

    assert mode.admit(dense(0, 1), GateContext(3)) == Draft((0, 1), "x", law=OneHot())
    assert mode.admit(dense(0, 2), GateContext(3)) == Draft((0,), "x", law=OneHot())


def test_a_speculative_row_leaves_the_law():
    assert isinstance(Speculative(SOURCE).admit(dense(0, 2), GateContext(3)).law, Dense)


def test_a_source_is_told_the_position_and_given_the_noise_of_the_row():
    """With the same noise, a draft model that agrees with the target is never wrong."""

    def law(prefix):
        return (0.4, 0.3, 0.2, 0.1)

    source = SampledDraftSource(law)
    params = SamplingParams(max_tokens=13, seed=5)
    engine = Engine(TableModel(law, 4), CharacterTokenizer("abcd"))
    row = engine.generate(Request([0, 1], params, Speculative(source, 3)))

    assert row.stats.num_accepted_tokens == row.stats.num_draft_tokens == 9
    assert row.stats.num_steps == 4


def test_a_source_with_an_impossible_law_is_not_used_and_the_log_says_why(caplog):
    class Lying(ScriptedDraftSource):
        def propose(self, requests):
            return [Draft((0,), law=Dense(torch.tensor([[0.2, 0.2]]))) for _ in requests]

    engine = Engine(TableModel(lambda prefix: (0.5, 0.5), 2), CharacterTokenizer("ab"))
    request = Request([0], SamplingParams(max_tokens=4), Speculative(Lying(lambda t, n: []), 2))
    row = engine.generate(request)

    assert row.num_output_tokens == 4
    assert row.stats.num_draft_tokens == 0
    assert "renormalise" in caplog.text
