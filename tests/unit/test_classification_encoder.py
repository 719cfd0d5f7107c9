from __future__ import annotations

import numpy as np
import pytest

from gateway.classification import encoder
from gateway.classification.encoder import BLOCK, LONG, SHORT, Encoder
from gateway.classification.pieces import Pieces
from gateway.classification.stages import layout
from gateway.classification.weights import piece_names
from tests.encoders import tiny_encoder, tiny_head


@pytest.fixture(scope="module")
def model() -> Encoder:
    arrays = tiny_encoder()
    pieces = Pieces(piece_names(arrays["pieces"]), arrays["piece_scores"].astype(float).tolist())
    return Encoder(pieces, arrays | tiny_head())


def test_a_text_has_a_block_for_every_twenty_pieces_and_one_at_least(model: Encoder) -> None:
    counts = [model.blocks("a" * length).count.tolist() for length in (0, 1, 19, 41)]

    assert counts == [[1.0], [1.0], [19.0], [20.0, 20.0, 1.0]]


def test_a_window_of_blocks_is_scored_as_the_same_text_alone(model: Encoder) -> None:
    text = ("abcdefgh " * 60).strip()
    blocks = model.blocks(text)

    whole = model.scores(blocks, np.array([0]), np.array([len(blocks)]))
    both = model.scores(blocks, np.array([0, 1]), np.array([len(blocks), 3]))

    assert np.allclose(whole[0], both[0], atol=1e-5)


def test_texts_in_a_row_do_not_touch_each_other(model: Encoder) -> None:
    first, second = model.blocks("hello there"), model.blocks("good bye")
    joined = encoder.join([first, second])

    alone = model.scores(second, np.array([0]), np.array([1]))
    behind = model.scores(joined, np.array([1]), np.array([2]))

    assert np.allclose(alone, behind, atol=1e-6)


def test_a_convolution_sees_its_neighbours_and_zeros_beyond_the_ends() -> None:
    inputs = np.arange(1, 5, dtype=np.float32)[:, None]
    weights = np.array([[100.0], [10.0], [1.0]], dtype=np.float32)

    found = encoder.convolved(inputs, weights, np.zeros(1, dtype=np.float32), 3, 1)

    assert found[:, 0].tolist() == [12.0, 123.0, 234.0, 340.0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 12, 100])
@pytest.mark.parametrize("length", [SHORT, LONG])
def test_windows_cover_every_block_half_overlapping(count: int, length: int) -> None:
    runs = encoder.windows(5, 5 + count, length)

    assert {block for first, last in runs for block in range(first, last)} == set(
        range(5, 5 + count)
    )
    assert all(last - first == min(length, count) for first, last in runs)


def test_the_layout_groups_windows_of_all_texts_and_of_each() -> None:
    longs, shorts, asked = layout([1, 9, 2], asks=1)

    assert longs == [[(0, 8), (4, 12)], [(0, 1)], [(1, 9), (2, 10)], [(10, 12)]]
    assert longs[asked] == [(1, 9), (2, 10)]
    assert [group[0] for group in shorts] == [(0, 1), (1, 3), (10, 12)]
    assert layout([3], asks=0) == ([[(0, 3)]], [[(0, 2), (1, 3)]], 0)


def test_a_segment_is_long_enough_to_hold_whole_blocks() -> None:
    assert encoder.SEGMENT % BLOCK == 0
