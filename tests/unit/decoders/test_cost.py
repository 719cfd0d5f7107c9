"""The cost model in simulated time: synthetic profiles, scripted acceptance, no model and no clock."""

import pytest

from decoders.acceptance import Acceptance, DraftKind, History, survivals
from decoders.balance import Balance
from decoders.cost import CostModel, EverythingPays, Why
from decoders.offer import Offer
from decoders.profile import Profile

CHEAP = Profile({(1, 1): 0.010, (1, 32): 0.0105})
"""Memory-bound: the weights are read once, however many tokens there are."""
LINEAR = Profile({(1, 1): 0.01, (1, 32): 0.32})
"""Compute-bound: each token costs what the first did."""
CPU = Profile(
    {
        (1, 1): 0.053,
        (1, 4): 0.067,
        (1, 8): 0.084,
        (1, 16): 0.098,
        (8, 8): 0.093,
        (8, 32): 0.134,
        (8, 64): 0.189,
    },
    0.0013,
)
"""As measured on two cores."""
KNEE = Profile({(1, 1): 0.01, (1, 8): 0.01, (1, 9): 0.02, (1, 16): 0.02, (1, 64): 0.08})
"""Free up to eight tokens."""
PROFILES = {"cheap": CHEAP, "linear": LINEAR, "cpu": CPU, "knee": KNEE}

PATTERNS = {
    "wrong": lambda step: 0,
    "right": lambda step: 8,
    "alternating": lambda step: 8 * (step % 2),
    "one of two": lambda step: step % 2,
    "one of three": lambda step: int(step % 3 == 0),
    "decaying": lambda step: 8 if step < 300 else 0,
    "in long phases": lambda step: 8 * (step // 300 % 2),
    "in short phases": lambda step: 8 * (step // 20 % 2),
    "just enough to end a cooldown": lambda step: int(step % 4 == 3),
}


class Simulation:
    """Rows whose drafts are accepted as a pattern says; adds up the time of every step."""

    def __init__(self, cost, profile, *, num_rows=1, match_length=4, row_length=10**9):
        self.cost, self.profile = cost, profile
        self.num_rows, self.match_length, self.row_length = num_rows, match_length, row_length
        self.seconds = self.standard_seconds = 0.0
        self.drafts = []
        self.why = []
        self._step = 0
        self._histories = []

    def run(self, pattern, num_steps, proposed=8):
        for _ in range(num_steps):
            if self._step % self.row_length == 0:
                self._histories = [History() for _ in range(self.num_rows)]
            self._run_step(pattern(self._step), proposed)
            self._step += 1
        return self

    def _run_step(self, right, proposed):
        kind = DraftKind("suffix", self.match_length, "code")
        offers = [
            Offer(num_draft_tokens=proposed, kind=kind, samples=True, history=history)
            for history in self._histories
        ]
        rulings = self.cost.admit(offers)
        counts = [ruling.num_draft_tokens for ruling in rulings]
        tokens = 0
        for history, count in zip(self._histories, counts, strict=True):
            accepted = min(count, right)
            tokens += accepted + 1
            if count:
                self.cost.observe(kind, history, count, accepted)
        self.seconds += self._time(sum(counts))
        self.standard_seconds += tokens * self._time(0) / self.num_rows
        self.drafts += counts
        self.why += [ruling.why for ruling in rulings]

    def _time(self, num_draft_tokens):
        tokens = self.num_rows + num_draft_tokens
        return (
            self.profile.forward_seconds(self.num_rows, tokens)
            + tokens * self.profile.sampling_seconds
        )

    @property
    def speed(self):
        """Against standard decoding of the same tokens."""
        return self.standard_seconds / self.seconds


@pytest.mark.parametrize("row_length", [20, 10**9])
@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("profile", PROFILES)
def test_it_is_never_slower_than_standard_by_more_than_two_percent(
    profile, pattern, num_rows, row_length
):
    chosen = PROFILES[profile]
    simulation = Simulation(CostModel(chosen), chosen, num_rows=num_rows, row_length=row_length)

    # The credit of two tokens that a new domain starts with is the only loss beyond the share.
    assert simulation.run(PATTERNS[pattern], 1000).speed >= 0.98 - 2 / 1000


def test_a_domain_has_lost_no_more_than_its_credit_when_it_is_new():
    for steps in (10, 30, 100):
        simulation = Simulation(CostModel(LINEAR), LINEAR).run(PATTERNS["wrong"], steps)

        assert simulation.seconds - simulation.standard_seconds <= (2 + 0.02 * steps) * 0.01 + 1e-9


def test_nothing_is_drafted_where_every_token_costs_what_the_first_did():
    simulation = Simulation(CostModel(LINEAR), LINEAR).run(PATTERNS["right"], 1000)

    assert sum(simulation.drafts) <= 0.02 * 1000
    assert set(simulation.why) == {Why.COST, Why.EXPLORE}


def test_everything_is_drafted_where_it_is_right_and_costs_nothing():
    simulation = Simulation(CostModel(CHEAP), CHEAP).run(PATTERNS["right"], 200)

    assert simulation.drafts[-100:] == [8] * 100
    assert simulation.speed > 8


def test_drafts_grow_with_the_match():
    lengths = [
        CostModel(CPU).admit([Offer(num_draft_tokens=16, kind=DraftKind("suffix", match))])[0]
        for match in (1, 4, 8, 16, 64)
    ]
    counts = [ruling.num_draft_tokens for ruling in lengths]

    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_drafts_shrink_as_the_batch_grows():
    def per_row(num_rows):
        kind = DraftKind("suffix", 8)
        offers = [Offer(num_draft_tokens=8, kind=kind) for _ in range(num_rows)]
        rulings = CostModel(KNEE, frozen=True).admit(offers)
        return sum(ruling.num_draft_tokens for ruling in rulings) / num_rows

    assert per_row(1) > per_row(2) > per_row(4) > 0
    assert per_row(32) == 0


def test_prompts_being_read_count_as_load():
    offer = Offer(num_draft_tokens=7, kind=DraftKind("suffix", 2))
    prompt = Offer(num_tokens=56, decodes=False)

    (alone,) = CostModel(KNEE).admit([offer])
    beside, _ = CostModel(KNEE).admit([offer, prompt])

    assert alone.num_draft_tokens == 7
    assert beside.num_draft_tokens < 5
    assert beside.why is Why.COST


def test_a_step_of_prompts_only_is_no_trouble():
    (ruling,) = CostModel(CPU).admit([Offer(num_tokens=256, decodes=False)])

    assert ruling.num_draft_tokens == 0
    assert CostModel(CPU).admit([]) == []


def test_the_better_draft_of_two_rows_gets_the_room():
    short, long = (Offer(num_draft_tokens=8, kind=DraftKind("suffix", match)) for match in (2, 32))

    rulings = CostModel(KNEE).admit([short, long])

    assert rulings[1].num_draft_tokens > rulings[0].num_draft_tokens


def test_a_long_context_is_paid_by_every_step_and_makes_a_draft_token_cheaper():
    profile = Profile(CPU.seconds, context_seconds=1e-5)
    kind = DraftKind("suffix", 2)
    short, long = (
        CostModel(profile).admit([Offer(num_draft_tokens=16, kind=kind, num_cached=count)])[0]
        for count in (0, 20_000)
    )

    assert short.num_draft_tokens < long.num_draft_tokens


def test_a_draft_token_that_attends_to_a_long_context_is_dearer():
    profile = Profile(CPU.seconds, drafted_context_seconds=1e-5)
    kind = DraftKind("suffix", 2)
    short, long = (
        CostModel(profile).admit([Offer(num_draft_tokens=16, kind=kind, num_cached=count)])[0]
        for count in (0, 1_000)
    )

    assert short.num_draft_tokens > long.num_draft_tokens


def test_noise_makes_a_token_dearer():
    profile = Profile({(1, 1): 0.01, (1, 32): 0.02}, 0.008)
    kind = DraftKind("suffix", 8)
    greedy, sampled = (
        CostModel(profile).admit([Offer(num_draft_tokens=16, kind=kind, samples=samples)])[0]
        for samples in (False, True)
    )

    assert sampled.num_draft_tokens < greedy.num_draft_tokens


@pytest.mark.parametrize("profile", ["cheap", "cpu", "knee"])
@pytest.mark.parametrize("row_length", [50, 10**9])
def test_a_source_that_was_given_up_comes_back_when_it_is_right_again(profile, row_length):
    chosen = PROFILES[profile]
    simulation = Simulation(CostModel(chosen), chosen, row_length=row_length)
    simulation.run(PATTERNS["wrong"], 1000)
    given_up = simulation.drafts[-200:]
    simulation.run(PATTERNS["right"], 600)

    assert sum(given_up) < 200 * 0.05 * 8
    assert min(simulation.drafts[-100:]) >= 7  # where the eighth does not pay, seven


def test_a_rejected_draft_costs_its_row_what_it_cost_the_step():
    cost, history = CostModel(CHEAP), History()
    offer = Offer(num_draft_tokens=2, kind=DraftKind("suffix", 4), history=history)
    (ruling,) = cost.admit([offer])
    due = Balance(CHEAP, [offer]).due(offer, ruling.num_draft_tokens)

    assert ruling.num_draft_tokens == 2
    assert history.lost == pytest.approx(due)
    cost.observe(offer.kind, history, 2, 0)
    assert history.lost == pytest.approx(due)
    cost.observe(offer.kind, history, 2, 1)
    assert history.lost == 0.0


def test_drafts_that_have_cost_two_tokens_begin_a_cooldown_that_doubles():
    cost, history, kind = CostModel(CHEAP), History(), DraftKind("suffix", 4)
    history.lost = 1.9
    cost.observe(kind, history, 2, 0)
    assert history.cooldown == 0

    history.lost = 2.0
    cooldowns = []
    for _ in range(7):
        cost.observe(kind, history, 2, 0)
        cooldowns.append(history.cooldown)

    assert cooldowns == [8, 16, 32, 64, 128, 256, 256]


def test_an_accepted_token_makes_the_next_cooldown_a_first_one():
    cost, history, kind = CostModel(CHEAP), History(lost=2.0), DraftKind("suffix", 4)
    for _ in range(2):
        cost.observe(kind, history, 2, 0)
    assert history.cooldown == 16

    cost.observe(kind, history, 2, 1)
    history.lost = 2.0
    cost.observe(kind, history, 2, 0)

    assert history.cooldown == 8


def test_a_match_longer_than_all_that_failed_ends_a_cooldown():
    cost, history = CostModel(CHEAP), History(lost=2.0)
    cost.observe(DraftKind("suffix", 12), history, 2, 0)

    def rule(match):
        return cost.admit(
            [Offer(num_draft_tokens=4, kind=DraftKind("suffix", match), history=history)]
        )

    assert rule(12)[0].why is Why.COOLDOWN
    assert rule(13)[0].num_draft_tokens > 0
    assert history.cooldown == 0


def test_one_row_is_no_verdict_on_its_neighbours():
    cost, bad, good = CostModel(CPU), History(), History()
    kind = DraftKind("suffix", 4)
    for _ in range(40):
        cost.observe(kind, bad, 4, 0)
        cost.observe(kind, good, 4, 4)
    bad.cooldown = 0

    rulings = cost.admit(
        [Offer(num_draft_tokens=4, kind=kind, history=history) for history in (bad, good)]
    )

    assert rulings[0].num_draft_tokens == 0
    assert rulings[1].num_draft_tokens == 4


def test_one_domain_is_no_verdict_on_another():
    cost = CostModel(CPU)
    for _ in range(60):
        cost.observe(DraftKind("suffix", 4, "creative_writing"), History(), 4, 0)
        cost.observe(DraftKind("suffix", 4, "code"), History(), 4, 4)

    creative, code = (
        cost.admit([Offer(num_draft_tokens=4, kind=DraftKind("suffix", 4, domain))])[0]
        for domain in ("creative_writing", "code")
    )

    assert creative.num_draft_tokens == 0
    assert code.num_draft_tokens == 4


def test_exploration_goes_by_count_and_never_by_chance():
    runs = [Simulation(CostModel(LINEAR), LINEAR).run(PATTERNS["right"], 500) for _ in range(2)]

    explored = [i for i, why in enumerate(runs[0].why) if why is Why.EXPLORE]
    assert runs[0].drafts == runs[1].drafts
    assert 0.01 <= len(explored) / 500 <= 0.02
    assert all(runs[0].drafts[i] == 1 for i in explored)


def test_a_frozen_model_rules_the_same_whatever_it_has_seen():
    frozen = CostModel(CPU, frozen=True)
    fresh = Simulation(frozen, CPU).run(PATTERNS["wrong"], 300)

    assert len(set(fresh.drafts)) == 1
    assert fresh.drafts[0] > 0
    assert Simulation(frozen, CPU).run(PATTERNS["right"], 10).drafts == fresh.drafts[:10]


def test_without_a_model_every_draft_is_admitted_whole():
    rulings = EverythingPays().admit([Offer(num_draft_tokens=3), Offer()])

    assert [ruling.num_draft_tokens for ruling in rulings] == [3, 0]


def test_counts_forget():
    acceptance, kind = Acceptance(), DraftKind("suffix", 4)
    for _ in range(1000):
        acceptance.add(kind, 1, 1)
    for _ in range(200):
        acceptance.add(kind, 1, 0)

    assert acceptance.rates(kind, 1)[0] == pytest.approx(0.5, abs=0.05)


def test_a_position_without_counts_leans_on_the_one_before_it():
    acceptance, kind = Acceptance(), DraftKind("suffix", 4)
    for _ in range(100):
        acceptance.add(kind, 1, 1)

    first, second, third = acceptance.rates(kind, 3)

    assert first > 0.9
    assert first == second == third


def test_positions_behind_a_rejection_are_not_counted():
    acceptance, kind = Acceptance(), DraftKind("suffix", 4)
    untouched = acceptance.rates(kind, 8)[7]
    for _ in range(50):
        acceptance.add(kind, 8, 1)

    first, second, *_ = acceptance.rates(kind, 8)

    assert first > 0.9
    assert second < 0.1
    assert untouched > 0


def test_survival_falls_along_a_draft():
    chances = survivals([0.9, 0.9, 1.0], ratio=5.0)

    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < chances[0] < 1


@pytest.mark.parametrize(
    ("match", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (9, 5), (17, 6), (4096, 6)],
)
def test_match_lengths_fall_into_doubling_ranges(match, bucket):
    assert DraftKind("suffix", match).bucket == bucket
