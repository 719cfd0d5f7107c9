"""The panel product: right for every shape, and the same bits for a token in any company."""

import pytest
import torch

from decoders.models import panel_code, panels
from decoders.models.linear import NUM_SIZES, PLAIN_ONLY, Kernel, Linear
from decoders.models.panels import panel_product

needs_code = pytest.mark.skipif(panel_code.product() is None, reason="no code for this machine")


@needs_code
@pytest.mark.parametrize("num_outputs", [1, 16, 17, 40, 64])
@pytest.mark.parametrize("num_inputs", [1, 7, 96])
def test_it_is_the_product(num_outputs, num_inputs):
    torch.manual_seed(0)
    weight = torch.randn(num_outputs, num_inputs)
    cut = panels.panels(weight)

    for num_tokens in range(20):
        x = torch.randn(num_tokens, num_inputs)
        y = panel_product(x, cut)
        torch.testing.assert_close(y, (x.double() @ weight.double().t()).float())
        assert y.is_contiguous()


@needs_code
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 20])
def test_weights_that_bfloat16_holds_take_half_the_memory_and_give_the_same_bits(
    monkeypatch, num_tokens
):
    torch.manual_seed(0)
    rounded, x = torch.randn(40, 33).bfloat16().float(), torch.randn(num_tokens, 33)
    half = panels.panels(rounded)
    with monkeypatch.context() as patch:
        patch.setattr(panels, "product", lambda half=False: None if half else panel_code.product())
        whole = panels.panels(rounded)

    assert (half.weights.dtype, whole.weights.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(panel_product(x, half), panel_product(x, whole))


@needs_code
def test_one_weight_that_bfloat16_does_not_hold_keeps_all_as_they_are():
    weight = torch.ones(16, 8)
    weight[3, 5] = 1.001

    assert panels.panels(weight).weights.dtype == torch.float32


@needs_code
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_has_the_same_bits_in_any_company(threads):
    torch.manual_seed(0)
    cut, x = panels.panels(torch.randn(80, 96)), torch.randn(20, 96)
    alone = [panel_product(row, cut) for row in x.split(1)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_tokens in range(1, 21):
            together = panel_product(x[:num_tokens], cut)
            assert torch.equal(together, torch.cat(alone[:num_tokens]))
    finally:
        torch.set_num_threads(before)


@needs_code
def test_what_is_not_contiguous_is_read_as_it_looks():
    torch.manual_seed(0)
    cut, wide = panels.panels(torch.randn(16, 8)), torch.randn(5, 20)

    assert torch.equal(panel_product(wide[:, 4:12], cut), panel_product(wide[:, 4:12].clone(), cut))


@needs_code
@pytest.mark.parametrize("x", [torch.ones(2, 5), torch.ones(2, 4, dtype=torch.bfloat16)])
def test_what_does_not_fit_is_refused_before_memory_is_read(x):
    with pytest.raises(ValueError, match="no panel product"):
        panel_product(x, panels.panels(torch.ones(16, 4)))


def test_other_dtypes_have_no_panels():
    assert panels.panels(torch.ones(16, 4, dtype=torch.bfloat16)) is None


def test_without_code_the_plain_product_serves(monkeypatch):
    monkeypatch.setattr(panels, "product", lambda: None)
    linear = Linear(torch.ones(16, 4))

    linear.use((Kernel.PANELS,) * NUM_SIZES)

    assert linear.kernels == PLAIN_ONLY
    assert linear(torch.ones(1, 4)).tolist() == [[4.0] * 16]
