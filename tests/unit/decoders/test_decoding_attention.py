"""Attention of decoding tokens: equal to torch's, and the same bits for a token in any company."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows

from decoders.models.base import Row
from decoders.models.decoding import DecodingTokens, decoding_code

HEADS, KV_HEADS, SLOTS, LENGTH = 6, 2, 4, 300
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    decoding_code(16, torch.float32, CPU) is None, reason="no code for this machine"
)


def cache(head_dim):
    torch.manual_seed(0)
    return [torch.randn(SLOTS, LENGTH, KV_HEADS, head_dim) for _ in range(2)]


def decode(rows, queries, keys, values, scaling=None):
    code = decoding_code(queries.shape[-1], torch.float32, CPU)
    return DecodingTokens(rows, code, HEADS // KV_HEADS).attend(queries, keys, values, scaling)


def expected(slot, length, queries, keys, values, scaling=None):
    """In float64: ``queries`` [heads, head_dim] of one token that sees ``length`` positions."""
    seen = (part[slot, :length].double().transpose(0, 1) for part in (keys, values))
    k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=0) for part in seen)
    q = queries.double().unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, v, scale=scaling)[:, 0].float()


@pytest.mark.parametrize("head_dim", [8, 16, 64, 80, 128])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_it_is_attention(head_dim, scaling):
    keys, values = cache(head_dim)
    rows = [Row(2, 0, (1,), 1), Row(0, 6, (1, 2, 3), 3), Row(3, 298, (1, 2), 2)]
    queries = 2 * torch.randn(6, HEADS, head_dim)

    out = decode(rows, queries, keys, values, scaling)

    places = [(2, 1), (0, 7), (0, 8), (0, 9), (3, 299), (3, 300)]
    for i, (slot, length) in enumerate(places):
        wanted = expected(slot, length, queries[i], keys, values, scaling)
        torch.testing.assert_close(out[i], wanted, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("start", [0, 62, 63, 64, 126, 127, 128, 290])
def test_positions_are_taken_in_blocks_that_no_length_falls_out_of(start):
    keys, values = cache(16)
    queries = torch.randn(3, HEADS, 16)

    out = decode([Row(1, start, (1,) * 3, 3)], queries, keys, values)

    for i in range(3):
        wanted = expected(1, start + i + 1, queries[i], keys, values)
        torch.testing.assert_close(out[i], wanted, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_has_the_same_bits_in_any_company(threads):
    keys, values = cache(16)
    queries = torch.randn(7, HEADS, 16)
    alone = [decode([Row(1, 90 + i, (1,), 1)], queries[i : i + 1], keys, values) for i in range(5)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = [Row(1, 90, (1,) * 5, 5), Row(3, 200, (1, 2), 2)]
        together = decode(rows, queries, keys, values)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(together[:5], torch.cat(alone))


def test_nothing_behind_a_token_is_read():
    keys, values = cache(16)
    queries = torch.randn(1, HEADS, 16)
    before = decode([Row(1, 20, (1,), 1)], queries, keys, values)
    for part in (keys, values):
        part[1, 21:] = math.nan

    assert torch.equal(decode([Row(1, 20, (1,), 1)], queries, keys, values), before)


@pytest.mark.parametrize("part", [0, 1])
def test_what_is_not_a_number_stays_none(part):
    stored = cache(16)
    stored[part][1, 5, 0] = math.nan

    out = decode([Row(1, 20, (1,), 1)], torch.randn(1, HEADS, 16), *stored)

    assert out[0, : HEADS // KV_HEADS].isnan().all()
    assert not out[0, HEADS // KV_HEADS :].isnan().any()


def test_scores_that_lie_far_apart_do_not_overflow():
    keys, values = cache(16)
    queries = 1e4 * torch.randn(1, HEADS, 16)

    out = decode([Row(0, 50, (1,), 1)], queries, keys, values)

    torch.testing.assert_close(out[0], expected(0, 51, queries[0], keys, values))


def test_only_float32_on_cpu_with_heads_of_whole_vectors_has_code():
    assert decoding_code(12, torch.float32, CPU) is None
    assert decoding_code(16, torch.bfloat16, CPU) is None
    assert decoding_code(16, torch.float32, torch.device("meta")) is None
