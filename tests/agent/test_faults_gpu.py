"""Faults of GPUs and their driver: each affects only its own series, is visible in /metrics, and recovers."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.scripted_collectors import wait_until
from tests.agent.training_node import MOST_RUNS_UNSEEN, TrainingNode, shorten_intervals, threads_of
from tests.fakes.nvml.control import GPU_IS_LOST, SUCCESS, FakeNvml

HANG_SECONDS = float(os.environ.get("GANGWATCH_HANG_SECONDS", "6"))
"""Duration of the hung call; nightly runs use 60, the documented limit."""

SCRAPE_SECONDS = 0.05

POWER = "gangwatch_gpu_power_instant_watts"
ALL_GPUS = 8


@pytest.fixture
def site(tmp_path: Path, nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingNode]:
    shorten_intervals(monkeypatch)
    with TrainingNode(tmp_path, nvml_library, nvml) as running:
        try:
            yield running
        finally:
            nvml.reset()
    assert not threads_of()


def of_gpu(name: str, address: str = "0000:61:00.0") -> bool:
    """Return whether the collector belongs to the GPU with this PCI address, by default the fake's fourth GPU."""
    return name.endswith(address)


@pytest.mark.slow
@pytest.mark.serial
def test_a_hung_driver_call_affects_only_its_gpu(tmp_path: Path, nvml_library: Path, nvml: FakeNvml) -> None:
    """Use the product's intervals: /metrics responds within 50 ms, and all other series stay fresh."""
    with TrainingNode(tmp_path, nvml_library, nvml, 1.0) as site:
        others = [f"gpu/{address}" for address in site.tree.gpus if not of_gpu(address)]
        nvml.hang(3)
        try:
            frames = site.frames_until(lambda: "gpu/0000:61:00.0" in site.stuck())
            assert frames <= 3, "the hanging run begins during the first one"
            ends = time.monotonic() + HANG_SECONDS
            took: list[float] = []
            while time.monotonic() < ends:
                text, seconds = site.scrape()
                took.append(seconds)
                assert all(of_gpu(name) or name == "nvml" for name in site.failing()), "only its own series"
                assert max(site.age(name) for name in (*others, "host", "rdma/mlx5_0", "network")) < 3.0
                assert site.present(POWER) == ALL_GPUS - 1
                assert 'gangwatch_collector_stuck{collector="gpu/0000:61:00.0",node="n0"} 1' in text
                time.sleep(0.1)
            assert statistics.median(took) < SCRAPE_SECONDS
            assert sorted(took)[len(took) * 9 // 10] < SCRAPE_SECONDS, "with tolerance for other load of the machine"
        finally:
            nvml.hang(3, False)
        wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)
        assert site.value("gangwatch_agent_threads_abandoned") == 0
    assert not threads_of()


def test_a_driver_that_hangs_completely_affects_only_its_worker(site: TrainingNode) -> None:
    for gpu in range(ALL_GPUS):
        site.nvml.hang(gpu)
    wait_until(lambda: site.present(POWER) == 0)
    lanes_others = {"host", "network", "rdma", "rdma/mlx5_3", "kubelet", "pcie"}
    began = site.seq()
    while site.seq() < began + 8:
        assert not lanes_others & site.failing()
        assert site.scrape()[0]
        time.sleep(0.1)
    abandoned = site.value("gangwatch_agent_threads_abandoned")
    assert abandoned is not None and 1 <= abandoned <= 8
    for gpu in range(ALL_GPUS):
        site.nvml.hang(gpu, False)
    wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)
    assert site.value("gangwatch_agent_threads_abandoned") == 0


def test_a_gpu_that_falls_off_the_bus_recovers_on_return(site: TrainingNode) -> None:
    site.nvml.set_gpu_code(3, GPU_IS_LOST)
    lost = "gpu/0000:61:00.0"
    assert site.runs_unseen(lost, lambda: lost in site.failing()) <= MOST_RUNS_UNSEEN
    wait_until(lambda: site.gpus_up() == ALL_GPUS - 1)
    wait_until(lambda: site.present(POWER) == ALL_GPUS - 1)
    assert {name for name in site.failing() if name != "nvml"} <= {
        f"{kind}/0000:61:00.0" for kind in ("gpu", "gpu-slow", "gpu-processes")
    }
    assert site.present("gangwatch_gpu_up") == ALL_GPUS, "the GPU is reported as down, not dropped"
    site.nvml.set_gpu_code(3, SUCCESS)
    wait_until(lambda: site.gpus_up() == ALL_GPUS and site.present(POWER) == ALL_GPUS)
    wait_until(lambda: site.failing() == set())


def test_the_agent_recovers_from_a_driver_reload(site: TrainingNode) -> None:
    site.nvml.set_driver_loaded(False)
    unseen = site.runs_unseen("nvml", lambda: any(name.startswith(("nvml", "gpu/")) for name in site.failing()))
    assert unseen <= MOST_RUNS_UNSEEN
    wait_until(lambda: "nvml" in site.failing())
    wait_until(lambda: site.present(POWER) == 0)
    assert site.scrape()[0]
    assert not {"host", "rdma/mlx5_0", "network"} & site.failing()
    site.nvml.set_driver_loaded(True)
    wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS and site.gpus_up() == ALL_GPUS)


def test_mig_series_follow_a_reconfiguration(site: TrainingNode) -> None:
    assert site.present("gangwatch_gpu_mig_info") == 0
    before = set(site.values(POWER))
    for layout in (1, 2, 0):
        site.nvml.set_mig(2, layout)
        wait_until(lambda layout=layout: (site.present("gangwatch_gpu_mig_info") > 0) is (layout > 0))  # type: ignore[misc]
        wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)
        assert set(site.values(POWER)) == before, "the series of the GPUs are unchanged"
    assert site.present("gangwatch_gpu_mig_info") == 0


def test_the_gpus_are_released_for_a_reset_and_acquired_again(site: TrainingNode) -> None:
    assert site.nvml.is_initialized()
    site.node.release()
    wait_until(lambda: site.value("gangwatch_agent_released") == 1)
    assert not site.nvml.is_initialized(), "the agent does not block a reset"
    wait_until(lambda: site.present(POWER) == 0)
    assert not {"host", "rdma/mlx5_0", "network"} & site.failing()
    site.node.acquire()
    wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)
    assert site.nvml.is_initialized() and site.value("gangwatch_agent_released") == 0


def test_a_release_during_a_hung_call_is_reported_as_incomplete(site: TrainingNode) -> None:
    site.nvml.hang(3)
    wait_until(lambda: "gpu/0000:61:00.0" in site.stuck())
    site.node.release()
    began = site.seq()
    wait_until(lambda: site.seq() > began + 4)
    assert site.value("gangwatch_agent_released") == 0
    site.nvml.hang(3, False)
    wait_until(lambda: site.value("gangwatch_agent_released") == 1)
    assert not site.nvml.is_initialized()
    site.node.acquire()
    wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)


@pytest.mark.parametrize("fault", ["lost", "reload", "mig"])
def test_rates_stay_possible_around_a_fault(site: TrainingNode, fault: str) -> None:
    """A reader that computes rates from frames around a fault gets none that is negative or impossible for a GPU."""
    from agent.schema.frame import Frame, Layout
    from tests.agent.rates_of_frames import Rates

    rates = Rates(("gangwatch_gpu_energy_joules_total",))
    listener: Callable[[Layout, Frame], None] = rates.add
    remove = site.node.add_listener(listener)
    actions: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "lost": (lambda: site.nvml.set_gpu_code(3, GPU_IS_LOST), lambda: site.nvml.set_gpu_code(3, SUCCESS)),
        "reload": (lambda: site.nvml.set_driver_loaded(False), lambda: site.nvml.set_driver_loaded(True)),
        "mig": (lambda: site.nvml.set_mig(3, 1), lambda: site.nvml.set_mig(3, 0)),
    }
    hurt, heal = actions[fault]
    wait_until(lambda: rates.count > 8 * 4)
    hurt()
    began = site.seq()
    wait_until(lambda: site.seq() > began + 4)
    heal()
    wait_until(lambda: site.failing() == set() and site.present(POWER) == ALL_GPUS)
    before = rates.count
    wait_until(lambda: rates.count > before + 8 * 4)
    remove()
    # 8 GPUs of at most 700 W each; a late read makes the next interval look longer than it is.
    assert rates.least >= 0 and rates.most < 2000, (rates.least, rates.most)
