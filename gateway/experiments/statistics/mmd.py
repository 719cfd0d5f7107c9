"""Whether two samples of answers follow one law, by the maximum mean discrepancy of a string kernel.

    MMD² = mean k(x, x') + mean k(y, y') - 2 mean k(x, y)

over the answers x of one side and y of the other (Gretton, Borgwardt, Rasch, Schölkopf and Smola, A
kernel two-sample test, JMLR 13, 2012; here each mean is over all pairs, an answer with itself too). k
is the share of positions with the same token, so that it sees where in an answer the two laws part,
and answers to different prompts have nothing in common (Gao, Liang and Guestrin, Model equality
testing, arXiv 2410.20247).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.experiments.statistics.permutation import DRAWS, Signs, TwoSample, permutation_test

Answers = Sequence[Sequence[int]]
_END = -1


def mmd_test(
    blocks: Sequence[tuple[Answers, Answers]], *, draws: int = DRAWS, seed: int = 0
) -> TwoSample:
    """The mean MMD² over ``blocks``, one for each prompt: its answers of either side, as many of each.

    The p-value is that of a permutation test within the blocks. Raises ValueError for blocks of
    unequal sides.
    """
    grams = [hamming_kernel([*one, *other]) for one, other in blocks]
    sizes = [len(one) for one, _ in blocks]
    if any(len(one) != len(other) for one, other in blocks):
        raise ValueError("each prompt needs as many answers of one side as of the other")

    def statistic(signs: Signs) -> npt.NDArray[np.float64]:
        total = np.zeros(len(signs))
        at = 0
        for size, gram in zip(sizes, grams, strict=True):
            part = signs[:, at : at + 2 * size]
            total += ((part @ gram) * part).sum(axis=1) / size**2
            at += 2 * size
        return total / max(len(sizes), 1)

    return permutation_test(statistic, sizes, draws=draws, seed=seed)


def hamming_kernel(answers: Answers) -> npt.NDArray[np.float64]:
    """[n, n]: the share of positions, up to the longest answer's end, at which two answers are alike.

    Behind its end an answer is like any other that has ended.
    """
    longest = max((len(answer) for answer in answers), default=0)
    if longest == 0:
        return np.ones((len(answers), len(answers)))
    padded = np.full((len(answers), longest), _END, dtype=np.int64)
    for row, answer in zip(padded, answers, strict=True):
        row[: len(answer)] = answer
    # By position: all pairs at all positions at once would not fit for long answers.
    same = np.zeros((len(answers), len(answers)), dtype=np.int64)
    for column in padded.T:
        same += column[:, None] == column[None, :]
    gram: npt.NDArray[np.float64] = same / longest
    return gram
