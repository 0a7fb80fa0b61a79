"""Interference between jobs that report no steps: counters alone identify the neighbour."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.iteration.job_slowdown import SlowdownTest
from scheduler_feedback.detectors.iteration.work_rate import WorkRate, averaged, steady_width

NS = 1_000_000_000
START = 1_700_000_000 * NS
RANKS = 16

Busy = Callable[[int], bool]


def shape(name: str, sharing: dict[str, tuple[str, ...]]) -> Shape:
    nodes = tuple(f"{name}-n{rank // 8}" for rank in range(RANKS))
    return Shape(name, 1, np.arange(RANKS), sharing.get("host", nodes), sharing=sharing)


def values(random: np.random.Generator, slower: float = 1.0) -> np.ndarray:
    """Return counters of a healthy job whose iterations take `slower` times as long as usual."""
    made = np.zeros((len(FEATURES), RANKS))
    for name in ("tensor_active", "nvlink_bytes", "nic_transmit_bytes"):
        made[FEATURE[name]] = random.normal(1.0, 0.01, RANKS) / slower
    made[FEATURE["sm_active"]] = random.normal(0.8, 0.004, RANKS)
    made[FEATURE["sm_clock"]] = 1.98e9
    made[FEATURE["nic_congestion"]] = random.poisson(3.0, RANKS)
    made[FEATURE["processor"]] = random.normal(1.6, 0.02, RANKS)
    made[FEATURE["pcie_link"]] = 1.0
    return made


def reported(
    sharing: dict[str, tuple[str, ...]],
    busy: Busy,
    hurts: bool,
    sees: str | None,
    slow: Busy | None = None,
    hot: Busy | None = None,
    longer: float = 1.25,
) -> list[Verdict]:
    """Return the verdicts on a victim and two neighbours that are busy at different times, in 400 s without step
    reports.

    hurts: whether the victim is slower while the first neighbour is busy. sees: counter by which the victim's ranks
    confirm it. slow: when the victim is slower for another reason. hot: when one of its ranks is throttled. longer:
    factor by which that rank then works longer than its peers.
    """
    random = np.random.default_rng(3)
    shapes = [shape(name, sharing) for name in ("victim", "noisy", "other")]
    detectors = make_detection()
    found: list[Verdict] = []
    for second in range(1, 401):
        now = START + second * NS
        on = busy(second)
        slower = 1.25 if (hurts and on) or (slow is not None and slow(second)) else 1.0
        made = [values(random, slower), values(random), values(random)]
        for index, works in ((1, on), (2, second // 31 % 2 == 0)):
            made[index][FEATURE["nic_transmit_bytes"]] += 5.0 * works
            made[index][FEATURE["processor"]] += 10.0 * works
        if sees is not None and on:
            made[0][FEATURE[sees]] += {"nic_congestion": 200.0, "runqueue_wait": 0.3}[sees]
        if hot is not None and hot(second):
            made[0][FEATURE["thermal_throttle"], 3] = 0.5
            made[0][FEATURE["tensor_active"], 3] *= longer
        window = np.concatenate(made, axis=1).astype(np.float32)[:, None]
        jobs = tuple(JobTelemetry(one) for one in shapes)
        telemetry = Telemetry(now, jobs, Counters(np.array([now]), 1.0, window), (), {})
        found += [one for one in detectors.tick(telemetry) if isinstance(one, Verdict)]
    return found


UPLINK = {"uplink": ("leaf-1",) * RANKS}
HOST = {"host": ("n0",) * 8 + ("n1",) * 8}


def bursts(second: int) -> bool:
    return second > 120 and second % 50 < 30


@pytest.mark.parametrize(
    ("sharing", "sees", "cause"),
    [(UPLINK, "nic_congestion", Cause.CONGESTION), (HOST, "runqueue_wait", Cause.HOST_CONTENTION)],
)
def test_the_neighbour_of_a_job_without_steps_is_reported(
    sharing: dict[str, tuple[str, ...]], sees: str, cause: Cause
) -> None:
    found = reported(sharing, bursts, True, sees)
    assert {(one.kind, one.gang, one.aggressor, one.cause) for one in found} == {
        (Kind.INTERFERENCE, "victim", "noisy", cause)
    }
    assert found[0].confidence > 0.8
    assert found[0].slowdown == pytest.approx(1.25, rel=0.1)


def test_a_neighbour_that_started_with_the_slowdown_is_reported() -> None:
    """The neighbour had no counters before. Usual values are assumed for that time."""
    found = reported(UPLINK, lambda second: second > 250, True, "nic_congestion")
    assert {(one.kind, one.aggressor) for one in found} == {(Kind.INTERFERENCE, "noisy")}


def test_a_neighbour_without_confirmation_by_counters_is_not_reported() -> None:
    assert not reported(UPLINK, bursts, True, None)
    assert not reported(HOST, bursts, True, None)


def test_a_neighbour_is_not_reported_if_the_job_is_slow_at_other_times() -> None:
    assert not reported(UPLINK, bursts, False, "nic_congestion", slow=lambda second: second > 120 and second % 70 < 25)


def test_a_hot_rank_is_accused_unless_a_neighbour_explains_the_slowdown() -> None:
    hot = reported(UPLINK, lambda second: False, False, None, slow=lambda second: second > 300, hot=lambda s: s > 300)
    assert {(one.kind, one.rank) for one in hot} == {(Kind.STRAGGLER, 3)}
    disturbed = reported(UPLINK, bursts, True, "nic_congestion", hot=lambda second: second > 300)
    assert {one.kind for one in disturbed} == {Kind.INTERFERENCE}


def test_a_hot_rank_that_works_no_longer_is_not_accused() -> None:
    assert not reported(
        UPLINK, lambda second: False, False, None, slow=lambda second: second > 300, hot=lambda s: s > 300, longer=1.0
    )


def test_a_neighbour_without_cost_is_not_reported() -> None:
    assert not reported(UPLINK, bursts, False, "nic_congestion")


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_with_uneven_iterations_is_never_slower_and_a_slower_one_is(seed: int) -> None:
    """The job's rate varies by a tenth from window to window, and it saves once for ten seconds."""
    random, slowdown_test = np.random.default_rng(seed), SlowdownTest()
    for second in range(600):
        made = values(random) * random.lognormal(0.0, 0.1) * (0.0 if 300 <= second < 310 else 1.0)
        slowdown_test.take(made.astype(np.float32))
        assert slowdown_test.slower() < 1.05 or 300 <= second < 400, (
            second
        )  # the job did nothing for a seventh of that time
    for _ in range(90):
        slowdown_test.take((values(random, 1.25) * random.lognormal(0.0, 0.1)).astype(np.float32))
    assert slowdown_test.slower() == pytest.approx(1.25, rel=0.1)


def test_a_rate_is_averaged_over_whole_iterations() -> None:
    random = np.random.default_rng(1)
    rate = np.where(np.arange(400) % 10 < 6, 1.0, 0.1) * random.normal(1.0, 0.01, 400)
    width = steady_width(rate)
    assert width is not None
    assert width % 10 == 0
    assert averaged(rate, width)[20:-20] == pytest.approx(0.64, rel=0.02)
    assert steady_width(random.exponential(1.0, 400)) is None


def test_the_loss_is_relative_to_the_usual_rate() -> None:
    rate, random = WorkRate(), np.random.default_rng(2)
    for second in range(300):
        rate.take(values(random, 1.3 if second >= 240 else 1.0).astype(np.float32))
    lost = rate.lost()
    assert lost is not None
    assert lost[:230] == pytest.approx(0.0, abs=0.03)
    assert lost[250:] == pytest.approx(0.3, abs=0.03)
