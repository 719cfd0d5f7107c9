"""Dtype and threads by measuring: the fastest wins by a margin, the safe one in doubt."""

import pytest
import torch

from decoders import tuning
from decoders.loader import load
from decoders.tuning import CHOICE, Choice, choose, load_fastest, thread_counts, tune_threads


class Machine:
    """Time that passes only while a candidate decodes."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def candidate(self, name, one, many, noise=()):
        """Takes ``one`` or ``many`` seconds, times a factor of ``noise`` by turns."""
        noise = noise or (1.0,)

        def step(rows):
            self.now += (one if rows == 1 else many) * noise[len(self.calls) % len(noise)]
            self.calls.append((name, rows))

        return step


def choice_of(machine, **candidates):
    steps = {name: machine.candidate(name, *times) for name, times in candidates.items()}
    return choose("dtype", steps, 8, clock=machine.clock)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((0.05, 0.05), "other"),
        ((0.2, 0.2), "safe"),
        ((0.098, 0.098), "safe"),
        ((0.12, 0.04), "other"),
        ((0.05, 0.25), "safe"),
    ],
)
def test_the_fastest_of_one_row_and_of_all_rows_wins_by_a_margin(other, expected):
    choice = choice_of(Machine(), safe=(0.1, 0.1), other=other)

    assert choice.value == expected
    assert choice.seconds == {"safe": pytest.approx((0.1, 0.1)), "other": pytest.approx(other)}


def test_rounds_are_interleaved_and_the_first_is_not_counted():
    machine = Machine()
    choice_of(machine, safe=(0.1, 0.1), other=(0.1, 0.1))

    assert machine.calls[:5] == [("safe", 1), ("safe", 8), ("other", 1), ("other", 8), ("safe", 1)]


def test_a_slow_model_is_timed_for_one_round():
    machine = Machine()
    choice_of(machine, safe=(10.0, 10.0), other=(1.0, 1.0))

    assert len(machine.calls) == 8


def test_on_a_busy_machine_the_safe_one_is_taken():
    machine = Machine()
    noise = (1.0, 3.0, 2.0, 4.0, 2.5)

    choice = choice_of(machine, safe=(0.1, 0.1, noise), other=(0.01, 0.01, noise))

    assert choice.value == "safe"
    assert CHOICE.spread(choice) > 0.25


def test_a_choice_says_why_in_words_and_is_kept_as_it_is():
    choice = Choice("dtype", "bfloat16", {"float32": (0.029, 0.058), "bfloat16": (0.026, 0.033)})

    assert str(choice) == "dtype bfloat16 (float32 29.0 and 58.0 ms, bfloat16 26.0 and 33.0 ms)"
    assert CHOICE.read(CHOICE.write(choice)) == choice


@pytest.mark.parametrize(
    "document",
    [[], {}, {"kind": "dtype", "value": "x", "seconds": {}}, {"value": "x", "seconds": {"x": [1]}}],
)
def test_a_wrong_choice_is_no_choice(document):
    with pytest.raises((ValueError, TypeError, KeyError)):
        CHOICE.read(document)


@pytest.mark.parametrize(
    ("default", "cpus", "expected"),
    [
        (1, 1, [1]),
        (2, 2, [2]),
        (4, 4, [4, 1, 2]),
        (32, 64, [32, 1, 16, 64]),
        (3, 8, [3, 1, 2, 4, 8]),
    ],
)
def test_the_numbers_of_threads_to_try(default, cpus, expected):
    assert thread_counts(default, cpus) == expected


def test_the_chosen_number_of_threads_is_set_and_kept(tiny_model, tmp_path, monkeypatch):
    before = torch.get_num_threads()
    loaded = load(str(tiny_model), device="cpu", dtype="float32", num_slots=2, max_length=64)
    monkeypatch.setattr(tuning, "num_cpus", lambda: 4)
    monkeypatch.setattr(
        tuning, "choose", lambda kind, steps, rows: Choice(kind, "1", dict.fromkeys(steps, (1, 1)))
    )
    try:
        first = tune_threads(loaded, cache_dir=tmp_path)
        assert torch.get_num_threads() == 1

        torch.set_num_threads(before)
        monkeypatch.setattr(tuning, "choose", pytest.fail)
        assert tune_threads(loaded, cache_dir=tmp_path) == first
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", ["float32", "bfloat16-weights", "bfloat16"])
def test_the_fastest_dtype_is_loaded_and_the_other_never_again(
    tiny_model, tmp_path, monkeypatch, value
):
    def fake(kind, steps, rows):
        for step in steps.values():
            step(rows)
        return Choice(kind, value, dict.fromkeys(steps, (1, 1)))

    monkeypatch.setattr(tuning, "choose", fake)
    options = {"device": "cpu", "num_slots": 2, "max_length": 64, "cache_dir": tmp_path}

    loaded, choice = load_fastest(str(tiny_model), **options)

    assert (loaded.dtype, choice.value) == (value, value)
    monkeypatch.setattr(tuning, "choose", pytest.fail)
    again, _ = load_fastest(str(tiny_model), **options)
    assert again.fingerprint == loaded.fingerprint
