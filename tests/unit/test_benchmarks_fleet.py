"""The fleet's simulation against what queueing theory says, and its reports."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import curves, fleet
from benchmarks.curves import Curve, CurveError
from benchmarks.queueing import Arm, Course, Kind, Traffic, simulate

SLOW = Curve("made up", {1: 10.0})
NONE = Arm(SLOW, 0)


def flat(replicas: int = 1, slots: int = 1, queue: int = 10_000) -> Arm:
    """Ten tokens a second, however many share them."""
    return Arm(SLOW, replicas, slots, queue)


def poisson(rate: float, requests: int, tokens: float, *, fixed: bool, seed: int = 1) -> Traffic:
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, requests))
    # At least one token each; the mean is kept.
    lengths = np.full(requests, tokens) if fixed else 1 + random.exponential(tokens - 1, requests)
    return Traffic(arrivals, lengths, np.full(requests, Kind.STANDARD, dtype=np.int8))


def mean_total(course: Course) -> float:
    return float(np.mean(course.total[len(course.total) // 20 :]))


def test_one_server_without_batching_waits_as_a_queue_with_fixed_service_does() -> None:
    load, service = 0.5, 1.0
    course = simulate(flat(), NONE, poisson(load, 10_000, 10.0, fixed=True))

    assert mean_total(course) - service == pytest.approx(
        load * service / (2 * (1 - load)), rel=0.08
    )
    assert course.utilisation["standard"] == pytest.approx(load, rel=0.02)


def test_answers_that_share_a_server_take_as_long_as_processor_sharing_says() -> None:
    """Whatever the lengths are: the mean depends on the load alone."""
    for fixed in (True, False):
        course = simulate(flat(slots=1_000), NONE, poisson(0.4, 6_000, 10.0, fixed=fixed))

        assert mean_total(course) == pytest.approx(1.0 / (1 - 0.4), rel=0.08)


def test_slots_that_do_not_slow_each_other_wait_as_erlang_says() -> None:
    servers, load, tokens = 2, 1.2, 1000.0  # so long that one token at the least changes nothing
    arm = Arm(Curve("made up", {n: 1000.0 * n for n in range(1, servers + 1)}), 1, servers, 10_000)
    course = simulate(arm, NONE, poisson(load, 10_000, tokens, fixed=False))

    terms = [load**n / math.factorial(n) for n in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = last / (sum(terms) + last)
    assert mean_total(course) - 1.0 == pytest.approx(waits / (servers - load), rel=0.15)


def mixed(requests: int = 2_000, rate: float = 8.0) -> Traffic:
    return fleet.traffic(fleet.Load(rate, requests / rate), np.random.default_rng(3))


def test_what_is_in_the_system_is_arrivals_times_time() -> None:
    traffic = mixed()
    arm = Arm(curves.Curve("made up", {1: 30.0, 8: 120.0}, 0.1), 4)
    course = simulate(arm, arm, traffic)

    assert not np.isnan(course.total).any()
    rate = len(traffic.arrivals) / traffic.seconds
    assert course.in_system == pytest.approx(rate * np.mean(course.total), rel=0.03)


@pytest.mark.parametrize("speculative", [0, 1, 4])
def test_nothing_is_lost_and_a_ban_holds_when_everything_is_full(speculative: int) -> None:
    traffic = mixed(rate=4.0)
    course = simulate(flat(2, 4, 2), flat(speculative, 4, 2), traffic)

    answered, refused = ~np.isnan(course.total), np.isnan(course.total)
    assert answered.any()
    assert refused.any()
    assert ((course.ended_on >= 0) == answered).all()
    assert (course.began_on[answered] >= 0).all()
    assert (course.first[answered] <= course.total[answered]).all()
    bound = (traffic.kinds == Kind.BANNED) | (traffic.kinds == Kind.STANDARD)
    assert set(course.began_on[bound]) <= {-1, 0}
    assert set(course.ended_on[bound]) <= {-1, 0}
    hybrid = traffic.kinds == Kind.HYBRID
    assert set(course.began_on[hybrid]) <= {-1, 0}
    wanted = traffic.kinds == Kind.SPECULATIVE
    assert (course.ended_on[wanted & answered] == 0).any()  # it fell over
    if speculative:
        assert (course.ended_on[hybrid & answered] == 1).any()
        assert (course.ended_on[wanted & answered] == 1).any()
    else:
        assert set(course.ended_on) == {-1, 0}


def test_an_answer_alone_takes_the_time_of_its_prompt_and_its_tokens() -> None:
    traffic = Traffic(np.array([0.0]), np.array([21.0]), np.array([Kind.HYBRID], dtype=np.int8), 5)
    standard = Arm(Curve("made up", {1: 10.0}, prompt_seconds=0.5), 3)
    speculative = Arm(Curve("made up", {1: 20.0}, prompt_seconds=0.25), 3)
    course = simulate(standard, speculative, traffic)

    assert course.first[0] == pytest.approx(0.5 + 1 / 10)
    assert course.total[0] == pytest.approx(0.5 + 5 / 10 + 0.25 + 16 / 20)


def test_requests_go_where_least_is_to_do() -> None:
    traffic = Traffic(np.arange(4) * 0.01, np.full(4, 10.0), np.zeros(4, dtype=np.int8))
    course = simulate(flat(4), NONE, traffic)

    assert course.total == pytest.approx(np.ones(4))


# ---- traffic --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", fleet.SHAPES)
def test_every_shape_has_the_rate_the_mix_and_the_length_that_were_asked_for(shape: str) -> None:
    load = fleet.Load(50.0, 400.0, shape, tokens=30.0, mix=(0.5, 0.1, 0.3, 0.1))
    traffic = fleet.traffic(load, np.random.default_rng(1))

    assert len(traffic.arrivals) == pytest.approx(20_000, rel=0.03)
    assert (np.diff(traffic.arrivals) >= 0).all()
    assert traffic.seconds <= 400.0
    assert np.mean(traffic.tokens) == pytest.approx(30.0, rel=0.03)
    shares = np.bincount(traffic.kinds, minlength=4) / len(traffic.kinds)
    assert shares == pytest.approx(load.mix, abs=0.02)


def test_bursts_and_days_are_uneven_and_poisson_is_not() -> None:
    def unevenness(shape: str) -> float:
        arrivals = fleet.traffic(fleet.Load(50.0, 400.0, shape), np.random.default_rng(1)).arrivals
        counts = np.histogram(arrivals, bins=100, range=(0.0, 400.0))[0]
        return float(np.var(counts) / np.mean(counts))

    assert unevenness("poisson") == pytest.approx(1.0, abs=0.4)
    assert unevenness("bursts") > 10
    assert unevenness("diurnal") > 10


def test_one_seed_is_one_result() -> None:
    load = fleet.Load(20.0, 30.0, "bursts")
    one, again, other = (fleet.traffic(load, np.random.default_rng(seed)) for seed in (1, 1, 2))

    assert (one.arrivals == again.arrivals).all()
    assert len(one.arrivals) != len(other.arrivals) or (one.arrivals != other.arrivals).any()


# ---- curves ---------------------------------------------------------------------------------------


def test_a_curve_is_straight_between_its_figures_and_flat_beyond() -> None:
    curve = Curve("made up", {1: 10.0, 3: 20.0})

    assert curve.rates(5) == [0.0, 10.0, 15.0, 20.0, 20.0, 20.0]
    assert curve.rates(2) == [0.0, 10.0, 15.0]
    assert curve.measured_up_to == 3


def test_the_measured_curves_give_back_the_time_that_was_measured() -> None:
    rows = json.loads(fleet.MEASURED.read_text(encoding="utf-8"))["throughput"]
    ours = curves.measured(fleet.MEASURED)
    for row in rows:
        for arm, name in curves.OURS.items():
            if row["rows"] == name:
                curve = ours[arm]
                work = row["tokens"] + row["requests"] * curve.prompt_work
                seconds = work / curve.tokens_per_second[row["concurrency"]]
                assert seconds == pytest.approx(row["seconds"], rel=0.01)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "docs/scaling.md"),
        ('{"arms": {}}', "no others"),
        ('{"arms": {"standard": {"provenance": "", "tokens_per_second": {"1": 5}}}}', "length"),
        ('{"arms": {"standard": {"provenance": "x", "tokens_per_second": {"2": 5}}}}', "for 1"),
        ('{"arms": {"standard": {"provenance": "x", "tokens_per_second": {"1": 0}}}}', "above 0"),
        ('{"arms": {"standard": {"provenance": "x", "rate": 3}}}', "rate"),
    ],
)
def test_a_file_of_curves_that_is_wrong_says_how(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "curves.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CurveError, match=complaint):
        curves.read(path)


# ---- reports --------------------------------------------------------------------------------------


def test_the_tables_that_are_kept_are_what_the_kept_figures_give() -> None:
    results = json.loads(fleet.RESULTS.read_text(encoding="utf-8"))
    kept = fleet.RESULTS.with_suffix(".md").read_text(encoding="utf-8")

    assert kept == "\n".join(fleet.tables(results)) + "\n"


def test_a_small_run_writes_figures_that_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet.json"
    arguments = "--replicas 4 --loads 0.5 --seconds 60 --many-rate 20 --many-seconds 5 --json"
    status = fleet.main([*arguments.split(), "--out", str(out)])

    assert status == 0
    results = json.loads(capsys.readouterr().out)
    assert results == json.loads(out.read_text(encoding="utf-8"))
    rows = [*results["splits"], *results["shapes"], *results["many"]]
    assert {row["speculative"] for row in results["splits"]} == {0, 1, 2, 3}
    for row in rows:
        assert row["standard"] + row["speculative"] >= 4
        assert row["first"]["p50"] <= row["first"]["p99"] <= row["total"]["p99"]
        assert 0 <= row["refused"] <= 1


def test_a_trace_in_which_nothing_counts_has_no_figures_and_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--replicas 2 --loads 0.001 --seconds 0.01 --many-rate 1 --many-seconds 0.01 --seed 3"
    )

    assert fleet.main([*arguments.split(), "--out", str(tmp_path / "out" / "fleet.json")]) == 0
    assert "| – / – / – |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--mix 1,1", "four shares"),
        ("--mix 0.9,0.9,0,0", "add up to 1"),
        ("--curves nowhere.json", "nowhere.json"),
        ("--replicas 1", "at least 2"),
    ],
)
def test_wrong_options_are_refused_in_words(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        fleet.main(arguments.split())

    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
