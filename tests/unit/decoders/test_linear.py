"""The kernels of a linear layer: all give the same product, and the fastest is used."""

import pytest
import torch

from decoders.models import kernels
from decoders.models.kernels import KERNELS, KernelTable, choice_matters, measure_kernels
from decoders.models.linear import NUM_SIZES, PLAIN_ONLY, Kernel, Linear, size_of
from decoders.models.norm import RMSNorm


@pytest.mark.parametrize("kernel", Kernel)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 70])
@torch.inference_mode()
def test_every_kernel_gives_the_same_product(kernel, biased, num_tokens):
    torch.manual_seed(0)
    weight, x = torch.randn(48, 32), torch.randn(num_tokens, 32)
    bias = torch.randn(48) if biased else None
    residual = torch.randn(num_tokens, 48)
    linear = Linear(weight, bias)
    linear.use((kernel,) * NUM_SIZES)
    expected = torch.nn.functional.linear(x, weight, bias)
    before = residual.clone()

    torch.testing.assert_close(linear(x), expected)
    torch.testing.assert_close(linear.add_to(residual, x), residual + expected)
    assert linear(x).is_contiguous()
    assert torch.equal(residual, before)


def test_a_kernel_is_chosen_for_a_range_of_tokens():
    sizes = [size_of(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 5000)]

    assert sizes == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 7]


def test_weights_that_no_kernel_reads_are_not_kept():
    packed_only, both = Linear(torch.randn(48, 32)), Linear(torch.randn(48, 32))
    packed_only.use((Kernel.PACKED, *(Kernel.PANELS,) * (NUM_SIZES - 1)))
    both.use((Kernel.PLAIN, *(Kernel.PACKED,) * (NUM_SIZES - 1)))

    assert not packed_only.weight.numel() or Kernel.PLAIN in packed_only.kernels
    assert both.weight.shape == (48, 32)


def test_without_packed_weights_the_plain_product_serves(monkeypatch):
    monkeypatch.setattr("decoders.models.linear._packed", lambda weight: None)
    linear = Linear(torch.ones(4, 2))

    linear.use((Kernel.PACKED,) * NUM_SIZES)

    assert linear.kernels == PLAIN_ONLY
    assert linear(torch.ones(1, 2)).tolist() == [[2.0] * 4]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({Kernel.PLAIN: 1.0, Kernel.TURNED: 0.5, Kernel.PACKED: 0.6}, Kernel.TURNED),
        ({Kernel.PLAIN: 1.0, Kernel.TURNED: 0.97, Kernel.PACKED: 0.95}, Kernel.PLAIN),
        ({Kernel.PLAIN: 9.0, Kernel.TURNED: 9.0, Kernel.PACKED: 1.0}, Kernel.PACKED),
        ({Kernel.PLAIN: 1.0, Kernel.TURNED: 0.97, Kernel.PANELS: 0.9}, Kernel.PANELS),
        ({Kernel.PLAIN: 1.0, Kernel.TURNED: 0.9, Kernel.PANELS: 0.89}, Kernel.PANELS),
    ],
)
def test_another_kernel_must_win_by_a_margin(monkeypatch, seconds, expected):
    running: list[Kernel] = []
    spent = {"at": 0.0}

    def product(kernel, x, weight):
        running.append(kernel)
        spent["at"] += seconds[kernel] / 1000

    monkeypatch.setattr(kernels, "product", product)
    monkeypatch.setattr(kernels, "lay_out", lambda k, weight: weight if k in seconds else None)
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: spent["at"])

    table = measure_kernels([Linear(torch.ones(8, 4)) for _ in range(3)])

    assert table.by_shape == {(8, 4): (expected,) * NUM_SIZES}
    assert table.spread == pytest.approx(0.0)
    assert set(running) == set(seconds)


def test_a_hopeless_kernel_is_timed_once(monkeypatch):
    seconds = {Kernel.PLAIN: 9.0, Kernel.TURNED: 1.0, Kernel.PANELS: 1.0}
    running: list[Kernel] = []
    monkeypatch.setattr(kernels, "product", lambda kernel, x, weight: running.append(kernel))
    monkeypatch.setattr(kernels, "lay_out", lambda k, weight: weight if k in seconds else None)
    monkeypatch.setattr(
        kernels.time, "perf_counter", lambda: sum(seconds[kernel] for kernel in running) / 1000
    )

    measure_kernels([Linear(torch.ones(8, 4))])

    assert running.count(Kernel.PLAIN) == NUM_SIZES
    assert running.count(Kernel.PANELS) > NUM_SIZES


def test_small_models_keep_the_plain_product():
    assert not choice_matters([Linear(torch.ones(8, 4))])
    assert choice_matters([Linear(torch.zeros(4096, 1024)) for _ in range(2)])


def test_a_table_is_kept_as_it_is():
    table = KernelTable({(8, 4): (Kernel.PACKED, *PLAIN_ONLY[1:])})

    assert KERNELS.read(KERNELS.write(table)) == table


@pytest.mark.parametrize("document", [[], {"8x4": ["plain"]}, {"8": ["odd"] * NUM_SIZES}])
def test_a_wrong_table_is_no_table(document):
    with pytest.raises((ValueError, TypeError)):
        KERNELS.read(document)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_the_norm_is_torchs_own(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 64, dtype=dtype), torch.randn(64, dtype=dtype)
    x[0, 0] = 0.0

    expected = torch.nn.functional.rms_norm(x, (64,), weight, 1e-5)

    torch.testing.assert_close(RMSNorm(weight, 1e-5)(x), expected)
