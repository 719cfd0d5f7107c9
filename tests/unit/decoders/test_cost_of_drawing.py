"""Drafts that cost time to draw, in simulated time: ruled on before they are drawn."""

import pytest

from decoders.acceptance import DraftKind, History
from decoders.balance import Balance
from decoders.cost import CostModel, Why
from decoders.offer import Offer
from decoders.price import FREE, Passes, Price
from decoders.profile import Profile

TARGET = Profile(
    {(1, 1): 0.030, (1, 9): 0.048, (1, 17): 0.062, (8, 8): 0.058, (8, 72): 0.150}, 0.001
)
"""About what two cores take."""
GPU = Profile({(1, 1): 0.010, (1, 32): 0.0105})
KIND = DraftKind("model", domain="code")
CHUNK = 256


def drafting(share, profile=TARGET):
    """A draft model that takes ``share`` of the target's time for everything."""
    return Profile(
        {point: share * seconds for point, seconds in profile.seconds.items()},
        profile.sampling_seconds,
    )


PATTERNS = {
    "wrong": lambda step: 0,
    "right": lambda step: 8,
    "one of two": lambda step: step % 2,
    "in short phases": lambda step: 8 * (step // 20 % 2),
    "just enough to end a cooldown": lambda step: int(step % 4 == 3),
}


class Simulation:
    """Rows with a draft model; adds up every pass of both models, reading included."""

    def __init__(self, cost, profile, draft_profile, *, num_rows, prompt, answer):
        self.cost, self.profile, self.draft_profile = cost, profile, draft_profile
        self.num_rows, self.prompt, self.answer = num_rows, prompt, answer
        self.seconds = self.standard_seconds = 0.0
        self.drafts, self.why = [], []
        self._rows = []

    def run(self, pattern, num_steps, limit=4):
        for step in range(num_steps):
            self._rows = [row for row in self._rows if row["left"] > 0]
            while len(self._rows) < self.num_rows:
                self._rows.append(
                    {"behind": self.prompt, "left": self.answer, "history": History()}
                )
            self._step(pattern(step), limit)
        return self

    def _step(self, right, limit):
        offers = [
            Offer(
                num_draft_tokens=limit,
                kind=KIND,
                samples=True,
                history=row["history"],
                price=Price(self.draft_profile, row["behind"], CHUNK),
                num_remaining=row["left"],
            )
            for row in self._rows
        ]
        rulings = self.cost.admit(offers)
        self.why += [ruling.why for ruling in rulings]
        drawn = [ruling.num_draft_tokens for ruling in rulings]
        left = CHUNK
        for i in sorted(range(len(drawn)), key=lambda i: self._rows[i]["behind"]):
            row = self._rows[i]
            if drawn[i]:
                num_read = min(row["behind"], max(left, int(row["behind"] == 1)))
                self.seconds += offers[i].price.reading_seconds(num_read)
                row["behind"] -= num_read
                left = max(left - num_read, 0)
                drawn[i] = 0 if row["behind"] else drawn[i]
        for number in range(max(drawn)):
            rows = sum(count > number for count in drawn)
            self.seconds += self.draft_profile.forward_seconds(rows, rows)
            self.seconds += rows * self.draft_profile.sampling_seconds
        tokens = 0
        for row, count in zip(self._rows, drawn, strict=True):
            accepted = min(count, right)
            tokens += accepted + 1
            row["behind"] += accepted + 1 - max(min(accepted, count - 1), 0)
            row["left"] -= accepted + 1
            if count:
                self.cost.observe(KIND, row["history"], count, accepted)
        self.drafts += drawn
        self.seconds += self._pass(sum(drawn))
        self.standard_seconds += tokens * self._pass(0) / self.num_rows

    def _pass(self, num_draft_tokens):
        tokens = self.num_rows + num_draft_tokens
        return (
            self.profile.forward_seconds(self.num_rows, tokens)
            + tokens * self.profile.sampling_seconds
        )

    @property
    def speed(self):
        return self.standard_seconds / self.seconds


def simulate(share, *, profile=TARGET, num_rows=1, prompt=40, answer=10**9, frozen=False):
    draft_profile = drafting(share, profile)
    cost = CostModel(profile, frozen=frozen)
    return Simulation(cost, profile, draft_profile, num_rows=num_rows, prompt=prompt, answer=answer)


@pytest.mark.parametrize("prompt", [1, 1500])
@pytest.mark.parametrize("answer", [12, 10**9])
@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("share", [0.05, 0.4])
def test_it_is_never_slower_than_standard_by_more_than_two_percent(
    share, pattern, num_rows, answer, prompt
):
    simulation = simulate(share, num_rows=num_rows, prompt=prompt, answer=answer)

    assert simulation.run(PATTERNS[pattern], 500).speed >= 0.98 - 2 / 500


def test_a_quick_draft_model_that_is_right_is_used_whole():
    simulation = simulate(0.05, profile=GPU).run(PATTERNS["right"], 300)

    assert simulation.drafts[-100:] == [4] * 100
    assert simulation.speed > 3


def test_a_draft_model_as_slow_as_the_target_is_only_tried():
    simulation = simulate(1.0).run(PATTERNS["right"], 1000)

    assert set(simulation.drafts) <= {0, 1}
    assert sum(simulation.drafts) <= 0.02 * 1000
    assert set(simulation.why) <= {Why.COST, Why.EXPLORE, Why.BUDGET}


def test_the_dearer_the_draft_model_the_fewer_tokens_it_draws():
    counts = [
        simulate(share, profile=GPU, frozen=True).run(PATTERNS["right"], 1, limit=8).drafts[0]
        for share in (0.01, 0.1, 0.2, 0.6)
    ]

    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > counts[-1] == 0


def test_a_source_that_was_given_up_comes_back_when_it_is_right_again():
    simulation = simulate(0.15).run(PATTERNS["wrong"], 1000)
    given_up = simulation.drafts[-200:]
    simulation.run(PATTERNS["right"], 900)

    assert sum(given_up) < 0.05 * 4 * 200
    assert min(simulation.drafts[-100:]) >= 3


def test_a_long_prompt_is_not_read_for_a_short_answer():
    price = Price(drafting(0.2), num_behind=300, chunk_tokens=256)

    def ruled(num_remaining, credit):
        cost = CostModel(TARGET)
        for _ in range(credit):
            cost.observe(KIND, History(), 1, 1)
        offer = Offer(num_draft_tokens=4, kind=KIND, price=price, num_remaining=num_remaining)
        return cost.admit([offer])[0]

    assert ruled(2, credit=16).why is Why.COST
    assert ruled(1000, credit=0).why is Why.BUDGET
    assert ruled(1000, credit=0).num_draft_tokens == 0
    assert ruled(1000, credit=16).num_draft_tokens > 0


def test_reading_a_prompt_is_paid_for_once():
    cost = CostModel(TARGET)
    draft_profile = drafting(0.1)
    reading = Price(draft_profile, 600, 256).reading_seconds(600) / 0.030
    behind, before = 600, None
    assert reading < 16
    for _ in range(40):
        cost.observe(KIND, History(), 1, 1)
    before = cost._credit["model", "code"]
    while behind > 256:
        price = Price(draft_profile, behind, 256)
        (ruling,) = cost.admit(
            [Offer(num_draft_tokens=2, kind=KIND, price=price, num_remaining=500)]
        )
        assert ruling.num_draft_tokens
        behind -= 256

    assert before - cost._credit["model", "code"] < reading


def test_rows_that_read_together_are_charged_for_what_is_read():
    """Four long prompts share a step's reading: 256 tokens of one of them."""
    cost = CostModel(TARGET)
    price = Price(drafting(0.01), 700, CHUNK)
    offers = [Offer(num_draft_tokens=2, kind=KIND, price=price)] * 4
    for _ in range(40):
        cost.observe(KIND, History(), 1, 1)
    before = cost._credit["model", "code"]
    rulings = cost.admit(offers)

    assert all(ruling.num_draft_tokens for ruling in rulings)
    read = Balance(TARGET, offers)._tokens(price.reading_seconds(CHUNK))
    assert before - cost._credit["model", "code"] == pytest.approx(read)


def test_a_row_that_waits_for_its_turn_to_read_owes_nothing():
    prices = [Price(drafting(0.1), lack, CHUNK) for lack in (1, 300, 400)]
    offers = [Offer(num_draft_tokens=2, kind=KIND, price=price) for price in prices]
    step = Balance(TARGET, offers)

    assert step.due(offers[0], 2) == 2 * step.price(offers[0])
    assert step.due(offers[1], 2) == step._tokens(prices[1].reading_seconds(CHUNK - 1))
    assert step.due(offers[2], 2) == 0


def test_a_free_draft_is_taken_before_one_that_must_be_drawn():
    """The same chances: what is there already has the step's room."""
    knee = Profile({(1, 1): 0.01, (1, 3): 0.01, (1, 4): 0.05, (1, 64): 0.9})
    free = Offer(num_draft_tokens=2, kind=DraftKind("suffix"))
    priced = Offer(num_draft_tokens=2, kind=KIND, price=Price(Profile({(1, 1): 0.001})))

    rulings = CostModel(knee).admit([priced, free])

    assert [ruling.num_draft_tokens for ruling in rulings] == [0, 1]


def test_rows_share_the_passes_of_their_draft_model():
    price = Price(Profile({(1, 1): 1.0, (4, 4): 1.3}))
    passes = Passes()
    added = [passes.join(price, 0, samples=False) for _ in range(4)]

    assert added[0] == 1.0
    assert sum(added) == pytest.approx(1.3)
    assert passes.token_seconds(price, samples=False) == pytest.approx(1.3 / 4)
    assert Passes().token_seconds(price, samples=False) == 1.0


def test_a_draft_model_without_a_profile_is_taken_for_free():
    price = Price(FREE, num_behind=100, chunk_tokens=100)

    assert price.reading_seconds(100) == 0
    offer = Offer(num_draft_tokens=3, kind=KIND, price=price)
    assert CostModel(GPU).admit([offer])[0].num_draft_tokens == 3


def test_a_frozen_model_rules_on_drawing_the_same_whatever_it_has_seen():
    simulation = simulate(0.1, frozen=True, profile=GPU).run(PATTERNS["wrong"], 100)

    assert len(set(simulation.drafts)) == 1
    assert simulation.drafts[0] > 0
