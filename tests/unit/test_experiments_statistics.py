"""The experiments' statistics: known values, exact laws, false alarms and power."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from gateway.experiments.statistics import student
from gateway.experiments.statistics.agreement import agreement
from gateway.experiments.statistics.clusters import equivalence, interval
from gateway.experiments.statistics.mmd import hamming_kernel, mmd_test
from gateway.experiments.statistics.permutation import (
    Signs,
    labellings,
    observed_labels,
    permutation_test,
)
from gateway.experiments.statistics.separation import (
    NUM_FEATURES,
    held_out_predictions,
    separation_test,
)

# ---- agreement ------------------------------------------------------------------------------------


def test_agreement_counts_positions_up_to_the_end_of_the_longer_answer() -> None:
    found = agreement([((1, 2, 3), (1, 2, 3)), ((1, 2), (1, 2, 3, 4)), ((5,), (6,))])

    assert (found.exact.hits, found.exact.rows) == (1, 3)
    assert found.positions == 8
    assert found.tokens == pytest.approx(5 / 8)


def test_nothing_agrees_with_nothing() -> None:
    assert agreement([]).tokens == 1.0
    assert agreement([((), ())]).exact.share == 1.0


# ---- Student's t ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "degrees", "t"),
    # Tables of Student's t; 1 degree is Cauchy's law, of 2 there is a closed form.
    [
        (0.975, 1, 12.7062047364),
        (0.975, 2, 4.3026527297),
        (0.95, 5, 2.0150483733),
        (0.975, 10, 2.2281388520),
        (0.99, 29, 2.4620213602),
        (0.975, 1000, 1.9623390808),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, degrees: int, t: float) -> None:
    assert student.quantile(probability, degrees) == pytest.approx(t, rel=1e-8)
    assert student.cdf(t, degrees) == pytest.approx(probability, abs=1e-10)
    assert student.cdf(-t, degrees) == pytest.approx(1 - probability, abs=1e-10)


def test_the_distribution_ends_at_0_and_1() -> None:
    assert (student.cdf(-math.inf, 3), student.cdf(0.0, 3), student.cdf(math.inf, 3)) == (0, 0.5, 1)
    with pytest.raises(ValueError, match="degrees"):
        student.cdf(1.0, 0)
    with pytest.raises(ValueError, match="between"):
        student.quantile(1.0, 3)


# ---- clusters -------------------------------------------------------------------------------------


def test_an_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])

    assert found is not None
    assert found.mean == 2.5
    # s = sqrt(5/3), t(0.975; 3) = 3.18244630528
    assert found.high == pytest.approx(2.5 + 3.18244630528 * math.sqrt(5 / 3) / 2, rel=1e-8)
    assert (interval([]), interval([2.0]).low) == (None, None)  # type: ignore[union-attr]


def test_intervals_hold_what_they_should_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(600):
        found = interval(list(generator.normal(3.0, 2.0, size=6)))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 3.0 <= found.high

    assert 0.92 < held / 600 < 0.98  # 95 %, four standard errors wide


def test_equivalence_is_the_larger_of_two_one_sided_p_values() -> None:
    values = [0.1, -0.1, 0.2, 0.0]
    mean, error = 0.05, math.sqrt(sum((v - 0.05) ** 2 for v in values) / 3) / 2

    found = equivalence(values, 0.3)

    assert found.p == pytest.approx(1 - student.cdf((0.3 - mean) / error, 3))
    assert found.equivalent is (found.p <= 0.05)
    assert not equivalence(values, 0.06).equivalent


def test_a_difference_as_large_as_the_margin_is_seldom_called_equivalent() -> None:
    generator = np.random.default_rng(2)
    called = sum(
        equivalence(list(generator.normal(0.5, 0.4, size=12)), 0.5).equivalent for _ in range(400)
    )

    assert called / 400 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("values", [[], [0.0], [0.0] * 5, [0.05] * 5])
def test_what_never_varies_shows_nothing(values: list[float]) -> None:
    found = equivalence(values, 0.1)

    assert (found.p, found.equivalent) == (None, False)


def test_a_margin_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        equivalence([0.0, 0.0], 0.0)


# ---- permutations ---------------------------------------------------------------------------------


def test_all_labellings_are_there_once_where_they_are_few() -> None:
    found = labellings([2, 1])

    assert found.enumerated
    assert len({tuple(row) for row in found.signs}) == len(found.signs) == 6 * 2
    assert (found.signs[0] == observed_labels([2, 1])[0]).all()
    assert (found.signs[:, :4].sum(axis=1) == 0).all()


def test_thousands_of_labellings_are_drawn_some_at_a_time() -> None:
    seen: list[int] = []

    def first_item(signs: Signs) -> npt.NDArray[np.float64]:
        seen.append(len(signs))
        return signs[:, 0]

    found = permutation_test(first_item, [9], draws=2500)

    assert seen == [1, 1000, 1000, 500]
    assert found.p == pytest.approx(0.5, abs=0.05)
    assert found.least == 1 / 2501


def test_drawn_labellings_keep_the_sides_of_each_block_balanced() -> None:
    found = labellings([4, 5], draws=50, seed=3)

    assert (found.enumerated, len(found.signs)) == (False, 50)
    assert (found.signs[:, :8].sum(axis=1) == 0).all()
    assert (found.signs[:, 8:].sum(axis=1) == 0).all()


def test_under_the_null_the_p_value_has_exactly_its_law() -> None:
    """Over all labellings of the same items, p <= k/n holds for exactly k of n where no two tie."""
    items = np.array([0.1, 0.7, 1.9, 4.2, 9.3, 22.0])
    p_values = []
    for chosen in itertools.combinations(range(6), 3):
        order = [*chosen, *(i for i in range(6) if i not in chosen)]
        arranged = items[order]
        p_values.append(permutation_test(lambda signs, x=arranged: signs @ x, [3]).p)  # type: ignore[misc]

    assert sorted(p_values) == pytest.approx([k / 20 for k in range(1, 21)])


def test_the_p_value_of_drawn_labellings_is_never_zero() -> None:
    items = np.concatenate([np.full(8, 100.0), np.zeros(8)])

    found = permutation_test(lambda signs: signs @ items, [8], draws=99)

    assert (found.enumerated, found.p) == (False, pytest.approx(0.01))


# ---- two samples ----------------------------------------------------------------------------------

Blocks = list[tuple[list[list[int]], list[list[int]]]]


def samples(generator: np.random.Generator, *, shift: float = 0.0, prompts: int = 6) -> Blocks:
    """Answers of 12 tokens of 5; the second side leaves out token 0 with probability ``shift``."""
    blocks: Blocks = []
    for _ in range(prompts):
        law = generator.dirichlet(np.ones(5))
        one = generator.choice(5, p=law, size=(4, 12))
        other = generator.choice(5, p=law, size=(4, 12))
        other[(other == 0) & (generator.random(other.shape) < shift)] = 4
        blocks.append((one.tolist(), other.tolist()))
    return blocks


def test_the_kernel_is_the_share_of_equal_positions() -> None:
    gram = hamming_kernel([[1, 2, 3, 4], [1, 2], [1, 9, 3, 4]])

    assert gram[0].tolist() == [1.0, 0.5, 0.75]
    assert (gram == gram.T).all()
    assert hamming_kernel([[], []]).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_mmd_is_that_of_the_formula() -> None:
    one, other = [[1, 2], [1, 3]], [[4, 2], [4, 3]]

    # k(x, x') = 1, .5; k(y, y') = 1, .5; k(x, y) = .5, 0: (.75 + .75 - 2 · .25)
    assert mmd_test([(one, other)]).statistic == pytest.approx(1.0)
    assert mmd_test([(one, one)]).statistic == pytest.approx(0.0)
    with pytest.raises(ValueError, match="as many"):
        mmd_test([(one, other[:1])])


@pytest.mark.parametrize("test", [mmd_test, separation_test])
def test_equal_laws_raise_as_few_alarms_as_the_level_says(test: object) -> None:
    generator = np.random.default_rng(4)
    p_values = [test(samples(generator), draws=39).p for _ in range(60)]  # type: ignore[operator]

    assert sum(p <= 0.1 for p in p_values) <= 6 + 4 * math.sqrt(60 * 0.1 * 0.9)
    assert sum(p > 0.5 for p in p_values) >= 15


@pytest.mark.parametrize("test", [mmd_test, separation_test])
def test_a_token_that_never_appears_is_seen(test: object) -> None:
    generator = np.random.default_rng(5)

    found = test(samples(generator, shift=1.0, prompts=20), draws=199)  # type: ignore[operator]

    assert found.p <= 0.02


def test_the_classifier_of_one_prompt_is_held_out_too() -> None:
    same = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 5, 9]]
    found = separation_test([(same, same)])
    told = separation_test([([[1, 1, 1]] * 6, [[2, 2, 2]] * 6)])

    assert found.p > 0.3
    assert (told.statistic, told.p) == (1.0, pytest.approx(2 / 924))


def test_tokens_that_are_a_table_apart_are_told_apart() -> None:
    # The second side's tokens are the first's, all as far on as the table of features is long.
    block = [(3,), (5,), (3 + NUM_FEATURES,), (5 + NUM_FEATURES,)]

    assert np.abs(held_out_predictions([block, block])).max() > 1e-3
    found = separation_test([(block[:1] * 6, block[2:3] * 6)] * 3)
    assert found.statistic == 1.0
