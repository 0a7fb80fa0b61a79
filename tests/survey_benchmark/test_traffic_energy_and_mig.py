"""Inputs of the rows of Crux, PowerFlow and MIGER, and small runs of them."""

from __future__ import annotations

import pytest

from benchmarks.policies import TRACES
from benchmarks.survey import energy, mig, traffic
from benchmarks.survey.energy import points
from benchmarks.survey.zeus_derive import derived
from scheduler_feedback.sim.studies.energy_study import run
from tests import needs


def test_the_measured_points_are_of_six_trainings_at_seven_limits() -> None:
    assert len(points()) == 6 and all(len(one) == 7 and one[-1].speed == 1.0 for one in points().values())


def test_the_batch_with_the_shortest_epoch_is_derived() -> None:
    fields = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")
    lines = [("d", "n", "8", "a", "100", "20", "50"), ("d", "n", "8", "a", "250", "10", "90"),
             ("d", "n", "16", "a", "100", "9", "70.04"), ("d", "n", "16", "a", "250", "6", "99")]  # fmt: skip
    found = derived([dict(zip(fields, line, strict=True)) for line in lines])
    assert found == [("n-d", 100, 0.6667, 70.0), ("n-d", 250, 1.0, 99.0)]


def test_energy_falls_with_its_price_and_the_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "JOBS", 40)
    energy.jobs.cache_clear()
    jobs = energy.jobs(3)
    free, dear = (run(jobs, energy.GPUS, energy.priced(price)) for price in (1e5, 300.0))
    assert dear.joules < free.joules and dear.jct > free.jct
    assert run(jobs, energy.GPUS, energy.budgeted(6000.0)).most_watts <= 6000.0
    energy.jobs.cache_clear()


def test_the_network_share_of_the_models_is_that_of_muris_traces() -> None:
    needs.data("jobs", TRACES["muri-1"][0])
    shares = {model: profile.share for (model, size), profile in traffic.profiles().items() if size == 32}
    assert len(shares) == 8
    assert shares["bert"] == pytest.approx(133 / 260) and shares["dqn"] < 0.01
    assert traffic.profiles()["bert", 64] == traffic.profiles()["bert", 32]


def test_tasks_of_openb_get_the_smallest_profile() -> None:
    needs.data("jobs", "openb-pods.csv")
    names = {profile.partition(".")[0] for profile, _ in mig.kinds()}
    assert names == {"1g", "2g", "3g", "4g", "7g"}, "7g: more than four sevenths, but no whole GPU"
    assert len(mig.kinds()) == 3077
