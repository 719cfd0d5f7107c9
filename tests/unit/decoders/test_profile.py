"""The start-up profile: what is timed, how it is read between points, and how it is kept."""

import json
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.calibration import load_profile, measure_model
from decoders.loader import load
from decoders.measurements import MeasurementStore, machine, spread
from decoders.profile import PROFILE as FORM
from decoders.profile import Profile, measure
from decoders.testing import TableModel

KEY = {"machine": "m", "model": "a"}
PROFILE = Profile({(1, 1): 1.0, (1, 4): 2.0, (4, 4): 3.0}, 0.25, 0.125)


class Clock:
    """Time that passes only while something is timed."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_between_points_it_is_linear_and_beyond_the_last_it_goes_on():
    profile = Profile({(1, 1): 1.0, (1, 3): 2.0, (1, 5): 6.0})

    assert [profile.forward_seconds(1, n) for n in (1, 2, 3, 4, 5, 7)] == [1, 1.5, 2, 4, 6, 10]


def test_between_row_counts_it_is_linear_and_beyond_the_largest_it_stays():
    profile = Profile({(1, 8): 1.0, (3, 8): 3.0})

    assert [profile.forward_seconds(rows, 8) for rows in (1, 2, 3, 9)] == [1, 2, 3, 3]


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 6), st.integers(6, 40)), st.floats(0, 100), min_size=1, max_size=12
    ),
    st.integers(1, 8),
)
def test_more_tokens_never_cost_less_however_noisy_the_measurement(seconds, rows):
    profile = Profile(seconds)
    times = [profile.forward_seconds(rows, tokens) for tokens in range(1, 60)]

    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(times))


def test_a_measurement_that_was_disturbed_is_cut_by_those_with_more_tokens():
    profile = Profile({(1, 1): 1.0, (1, 2): 50.0, (1, 4): 2.0})

    assert profile.forward_seconds(1, 2) == 2.0


@pytest.mark.parametrize(
    ("seconds", "sampling"),
    [
        ({}, 0.0),
        ({(1, 1): -1.0}, 0.0),
        ({(1, 1): float("nan")}, 0.0),
        ({(1, 1): 1.0}, float("inf")),
        ({(4, 2): 1.0}, 0.0),
        ({(0, 0): 1.0}, 0.0),
    ],
)
def test_what_no_pass_can_have_cost_is_refused(seconds, sampling):
    with pytest.raises(ValueError, match=r"profile|pass"):
        Profile(seconds, sampling)


def test_each_point_is_the_median_of_interleaved_rounds():
    clock = Clock()
    calls = []

    def forward(rows, tokens):
        calls.append((rows, tokens))
        slow = 50.0 if calls.count((rows, tokens)) == 2 else 0.0
        clock.now += rows + 0.1 * tokens + slow

    def choose(count):
        clock.now += 0.01 * count

    profile = measure(
        forward, max_rows=4, choose=choose, budget_seconds=1e9, clock=clock, max_tokens_per_row=32
    )

    assert profile.forward_seconds(1, 8) == pytest.approx(1.8)
    assert profile.forward_seconds(4, 16) == pytest.approx(5.6)
    assert profile.sampling_seconds == pytest.approx(0.01)
    assert calls[1:5] != [calls[1]] * 4


def test_what_a_longer_context_adds_is_timed_beside_the_same_pass_without_it():
    clock = Clock()

    def forward(rows, tokens):
        clock.now += 1.0

    def attend(width):
        clock.now += 3.0 + 0.5 * (width - 1)

    profile = measure(
        forward, max_rows=1, attend=attend, num_attended=1000, budget_seconds=1e9, clock=clock
    )
    nothing = measure(
        forward,
        max_rows=1,
        attend=lambda width: None,
        num_attended=9,
        budget_seconds=1e9,
        clock=clock,
    )

    assert profile.context_seconds == pytest.approx(0.002)
    assert profile.drafted_context_seconds == pytest.approx(0.0005)
    assert nothing.context_seconds == nothing.drafted_context_seconds == 0.0


def test_a_slow_model_is_measured_at_two_points_and_no_more():
    clock = Clock()
    calls = []

    def forward(rows, tokens):
        calls.append((rows, tokens))
        clock.now += 10.0 * tokens

    profile = measure(forward, max_rows=8, budget_seconds=2.0, clock=clock)

    assert calls == [(1, 1), (1, 1), (1, 4)]
    assert profile.forward_seconds(1, 10) == pytest.approx(100.0)


def test_a_profile_is_measured_once_and_then_read(tmp_path):
    store = MeasurementStore(tmp_path / "profiles")

    assert store.load_or_measure(FORM, KEY, lambda: PROFILE) == PROFILE
    assert store.load_or_measure(FORM, KEY, pytest.fail) == PROFILE


def test_another_key_is_measured_again(tmp_path):
    store = MeasurementStore(tmp_path)
    other = Profile({(1, 1): 9.0})
    store.load_or_measure(FORM, KEY, lambda: PROFILE)

    assert store.load_or_measure(FORM, KEY | {"model": "b"}, lambda: other) == other
    assert store.load_or_measure(FORM, KEY, pytest.fail) == PROFILE


def file(value=None, *, version=4, key=KEY):
    """What a file holds, whole but for what is given."""
    whole = {
        "seconds": [[1, 1, 1]],
        "sampling_seconds": 0,
        "context_seconds": 0,
        "drafted_context_seconds": 0,
    }
    kept = {"kind": "profile", **key} if key else key
    return json.dumps({"version": version, "key": kept, "value": whole if value is None else value})


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 1}',
        file(version=0),
        file(key={}),
        file(
            {
                "seconds": [],
                "sampling_seconds": 0,
                "context_seconds": 0,
                "drafted_context_seconds": 0,
            }
        ),
        file(
            {
                "seconds": [[1, 1]],
                "sampling_seconds": 0,
                "context_seconds": 0,
                "drafted_context_seconds": 0,
            }
        ),
        file(
            {
                "seconds": 7,
                "sampling_seconds": 0,
                "context_seconds": 0,
                "drafted_context_seconds": 0,
            }
        ),
        file(
            {
                "seconds": [[1, 1, -1]],
                "sampling_seconds": 0,
                "context_seconds": 0,
                "drafted_context_seconds": 0,
            }
        ),
        file(
            {
                "seconds": [[1, 1, 1]],
                "sampling_seconds": None,
                "context_seconds": 0,
                "drafted_context_seconds": 0,
            }
        ),
        file([[1, 1, 1]]),
    ],
)
def test_a_broken_file_is_measured_again_and_replaced(tmp_path, broken):
    store = MeasurementStore(tmp_path)
    store.load_or_measure(FORM, KEY, lambda: Profile({(1, 1): 9.0}))
    (path,) = tmp_path.iterdir()
    path.write_bytes(broken if isinstance(broken, bytes) else broken.encode())

    assert store.load_or_measure(FORM, KEY, lambda: PROFILE) == PROFILE
    assert store.load_or_measure(FORM, KEY, pytest.fail) == PROFILE


def test_the_whole_file_of_these_tests_is_one_that_is_read(tmp_path):
    store = MeasurementStore(tmp_path)
    store.load_or_measure(FORM, KEY, lambda: PROFILE)
    (path,) = tmp_path.iterdir()
    path.write_text(file())

    assert store.load_or_measure(FORM, KEY, pytest.fail) == Profile({(1, 1): 1.0})


def test_what_a_busy_machine_measured_is_used_but_not_kept(tmp_path, caplog):
    store = MeasurementStore(tmp_path)
    disturbed = Profile({(1, 1): 9.0}, spread=0.5)

    assert store.load_or_measure(FORM, KEY, lambda: disturbed) is disturbed
    assert "busy machine" in caplog.text
    assert store.load_or_measure(FORM, KEY, lambda: PROFILE) == PROFILE
    assert store.load_or_measure(FORM, KEY, pytest.fail) == PROFILE


def test_a_measurement_is_disturbed_by_what_its_usual_round_has_above_its_best():
    steady, slow = [1.0, 1.0, 9.0], [1.0, 2.0, 2.0]

    assert spread([steady, steady, slow]) == 0.0
    assert spread([steady, slow, slow]) == 1.0
    assert spread([[3.0], []]) == 0.0


def test_a_machine_that_is_busy_in_every_other_round_is_noticed():
    clock = Clock()
    calls = []

    def forward(rows, tokens):
        calls.append((rows, tokens))
        clock.now += 1.0 if calls.count((rows, tokens)) % 3 == 0 else 2.0

    profile = measure(forward, max_rows=4, budget_seconds=1e9, clock=clock)

    assert profile.spread == 1.0


def test_a_folder_that_cannot_be_written_costs_only_the_time(tmp_path):
    (tmp_path / "file").touch()
    store = MeasurementStore(tmp_path / "file" / "profiles")

    assert store.load_or_measure(FORM, KEY, lambda: PROFILE) == PROFILE


def test_engines_that_start_at_once_leave_a_whole_file(tmp_path):
    store = MeasurementStore(tmp_path)
    barrier = threading.Barrier(8)

    def take():
        barrier.wait()
        return PROFILE

    threads = [
        threading.Thread(target=store.load_or_measure, args=(FORM, KEY, take)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert store.load_or_measure(FORM, KEY, pytest.fail) == PROFILE


def test_a_model_with_room_is_timed_with_a_longer_context():
    model = TableModel(lambda prefix: [0.5, 0.5], 2, num_slots=1, max_length=2048)

    profile = measure_model(model)

    assert 0.0 <= profile.context_seconds < 1e-3
    assert 0.0 <= profile.drafted_context_seconds < 1e-3


def test_a_model_with_little_room_can_be_measured():
    profile = measure_model(TableModel(lambda prefix: [0.5, 0.5], 2, num_slots=2, max_length=5))

    assert (1, 4) in profile.seconds
    assert (1, 8) not in profile.seconds


def test_a_loaded_models_profile_is_kept_beside_the_models(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("decoders.measurements.MAX_SPREAD", float("inf"))
    loaded = load(str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=128)

    first = load_profile(loaded, cache_dir=tmp_path)

    assert load_profile(loaded, cache_dir=tmp_path) == first
    assert {rows for rows, _ in first.seconds} == {1, 2, 3}
    (path,) = (tmp_path / "profiles").iterdir()
    assert json.loads(path.read_text())["key"]["machine"] == machine()
