"""The meter: what it counts of a step, what it leaves alone, and that it changes no token."""

import math

import pytest
import torch

from decoders.draft import NO_DRAFT, Dense, Draft
from decoders.engine import Engine
from decoders.evidence import ALTERNATIVES, Evidence
from decoders.hedges import hedge_ids
from decoders.meter import NOTHING, TAIL, LawMeter, NoMeter
from decoders.modes import Speculative
from decoders.noise import NO_TOKEN, Greedy, GumbelNoise
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import CharacterTokenizer, ScriptedDraftSource, TableModel
from decoders.verifiers.base import DraftedRow, Verdict
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier
from tests.laws import EOS, PROMPT, TEXT, VOCAB, oracle, target

LAW = (0.5, 0.2995, 0.2, 0.0005, 0.0)
HEDGE = 1


def measure(verdict, draft=NO_DRAFT, law=LAW, noise=None, verifier=None, dtype=torch.float32):
    scores = torch.tensor([law] * (len(draft) + 1), dtype=dtype).log()
    rows = [DraftedRow(draft, noise or GumbelNoise(1), 0)]
    meter = LawMeter([HEDGE])
    return meter.measure(verifier or RejectionVerifier(), scores, rows, [verdict])[0]


def evidence(token_id, **options):
    return Evidence.of(measure(Verdict((token_id,), 0), **options)[0].tolist())


def test_one_token_against_the_formulas():
    found = evidence(1, dtype=torch.float64)

    entropy = -sum(p * math.log(p) for p in LAW if p)
    square = sum(p * math.log(p) ** 2 for p in LAW if p)
    surprisal, tail, hedging = (found.moments[n] for n in ("surprisal", "tail", "hedging"))
    assert surprisal.observed == pytest.approx(-math.log(LAW[1]))
    assert surprisal.expected == pytest.approx(entropy)
    assert surprisal.variance == pytest.approx(square - entropy**2)
    assert (tail.observed, tail.expected) == (0.0, pytest.approx(0.0005))
    assert (hedging.observed, hedging.expected) == (1.0, pytest.approx(LAW[1]))
    for name, power in (("sharper_0.8", 1.25), ("flatter_2", 0.5)):
        bent = LAW[1] ** power / sum(p**power for p in LAW)
        assert found.log_factors[name] == pytest.approx(math.log(bent / LAW[1]))
    assert found.log_factors["tail_loss"] == pytest.approx(math.log(0.5 + 0.5 / 0.9995))


def test_a_token_of_the_tail_is_seen():
    assert LAW[3] <= TAIL
    found = evidence(3)

    assert found.moments["tail"].observed == 1.0
    assert found.log_factors["tail_loss"] == pytest.approx(math.log(0.5), abs=1e-4)


def test_an_impossible_token_is_counted_and_nothing_is_bet_on_it():
    found = evidence(4)

    assert (found.num_tokens, found.num_impossible) == (1, 1)
    assert set(found.log_factors.values()) == {0.0}
    assert found.moments["surprisal"].observed == 0.0


def test_a_token_with_next_to_no_probability_is_not_impossible():
    found = evidence(1, law=(1.0, 1e-300, 0.0, 0.0, 0.0), dtype=torch.float64)

    assert found.num_impossible == 0
    assert found.moments["surprisal"].observed == pytest.approx(300 * math.log(10))
    assert all(map(math.isfinite, found.log_factors.values()))


def test_a_greedy_row_is_held_against_the_likeliest_token_alone():
    right, wrong = evidence(0, noise=Greedy()), evidence(1, noise=Greedy())

    assert (right.num_tokens, right.num_impossible) == (1, 0)
    assert (wrong.num_tokens, wrong.num_impossible) == (1, 1)
    assert set(right.log_factors.values()) == {0.0}
    assert all(sums.variance == sums.observed == 0.0 for sums in right.moments.values())


def test_a_known_draft_token_against_the_formulas():
    draft = Draft((0, 1), from_context=True)
    first, second = measure(Verdict((0, 2), 1), draft, dtype=torch.float64)
    first, second = Evidence.of(first.tolist()), Evidence.of(second.tolist())

    assert first.log_factors["leak_0.1"] == pytest.approx(math.log(0.9 + 0.1 / LAW[0]))
    assert second.log_factors["leak_0.1"] == pytest.approx(math.log(0.9))
    accepted = [e.moments["accepted"] for e in (first, second)]
    assert [s.observed for s in accepted] == [1.0, 0.0]
    assert [s.expected for s in accepted] == pytest.approx(LAW[:2])
    assert first.log_factors["accepts_more"] == pytest.approx(math.log(1 + (1 - LAW[0]) / 2))
    assert second.log_factors["accepts_more"] == pytest.approx(math.log(1 - LAW[1] / 2))
    assert second.log_factors["accepts_less"] == pytest.approx(math.log(1 + LAW[1] / 2))
    blind = second.moments["draft_blind"]
    assert (blind.observed, blind.expected) == (1.0, pytest.approx(1 - LAW[1]))


def test_a_drawn_draft_is_held_against_by_its_law():
    law = (0.1, 0.4, 0.0, 0.5, 0.0)
    draft = Draft((3,), law=Dense(torch.tensor([law], dtype=torch.float64)))
    (found,) = measure(Verdict((2,), 0), draft, dtype=torch.float64)
    found = Evidence.of(found.tolist())

    assert found.log_factors["leak_0.3"] == pytest.approx(math.log(0.7))
    overlap = sum(map(min, LAW, law))
    assert found.moments["accepted"].expected == pytest.approx(overlap)
    assert found.moments["accepted"].variance == pytest.approx(overlap * (1 - overlap))
    assert found.log_factors["accepts_less"] == pytest.approx(math.log(1 + overlap / 2))
    assert found.moments["draft_blind"].observed == 1.0
    assert found.moments["draft_blind"].expected == pytest.approx(LAW[2])


def test_how_often_a_coupled_draft_stands_is_not_known():
    draft = Draft((3,), law=Dense(torch.tensor([LAW], dtype=torch.float64)))
    columns = measure(Verdict((3, 0), 1), draft, verifier=CoupledVerifier())

    found = Evidence.of(columns.sum(0).tolist())
    assert found.moments["accepted"].observed == found.moments["accepted"].expected == 0.0


def test_rows_of_all_kinds_are_measured_as_they_are_alone():
    scores = torch.tensor([LAW] * 6).log()
    rows = [
        DraftedRow(Draft((0,), from_context=True), GumbelNoise(1), 0),
        DraftedRow(Draft(), Greedy(), 3),
        DraftedRow(Draft(), GumbelNoise(2), 0),
        DraftedRow(Draft((1,)), GumbelNoise(3), 0),
    ]
    verdicts = [Verdict((0, 2), 1), Verdict((0,), 0), Verdict((NO_TOKEN,), 0), Verdict((2,), 0)]
    verifier, meter = RejectionVerifier(), LawMeter([HEDGE])
    together = meter.measure(verifier, scores, rows, verdicts)

    assert [len(part) for part in together] == [2, 1, 0, 1]
    first = 0
    for row, verdict, part in zip(rows, verdicts, together, strict=True):
        own = scores[first : first + row.num_positions]
        first += row.num_positions
        torch.testing.assert_close(part, meter.measure(verifier, own, [row], [verdict])[0])


def test_what_cannot_be_measured_is_logged_and_costs_no_answer(caplog):
    draft = Draft((0,), law=Dense(torch.tensor([[0.5, 0.5]])))

    assert measure(Verdict((0, 0), 1), draft) is NOTHING
    assert "could not be measured" in caplog.text


def test_the_words_of_the_table_are_hedges_where_they_are_whole():
    pieces = [" perhaps", "Perhaps", "perhaps", " May", "may", " maybe", " perhapsx", " ", ""]

    assert hedge_ids(pieces) == (0, 1, 3, 5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verifier", [CoupledVerifier, RejectionVerifier])
def test_the_meter_changes_no_token(verifier, temperature):
    def answers(meter):
        engine = Engine(
            TableModel(target, VOCAB, max_length=64, num_slots=4),
            CharacterTokenizer(TEXT, eos_ids=[EOS]),
            meter=meter,
        )
        requests = [
            Request(
                PROMPT,
                SamplingParams(temperature=temperature, seed=seed, max_tokens=20, ignore_eos=True),
                Speculative(ScriptedDraftSource(oracle), 3),
                verifier(),
            )
            for seed in range(8)
        ]
        tickets = engine.submit(requests)
        while not all(ticket.done.is_set() for ticket in tickets):
            engine.step()
        return tickets

    with_meter, without = answers(LawMeter()), answers(NoMeter())
    assert [t.sequence.output_ids for t in with_meter] == [t.sequence.output_ids for t in without]
    assert all(t.stats.evidence is None for t in without)
    for ticket in with_meter:
        found = ticket.stats.evidence
        assert found.num_tokens == ticket.stats.num_output_tokens
        assert found.num_impossible == 0
        assert set(found.log_factors) == set(ALTERNATIVES)
        drafted = 0 if temperature == 0 else ticket.stats.num_accepted_tokens
        assert found.moments["accepted"].observed == drafted
