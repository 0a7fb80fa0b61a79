"""Faults of network, kubelet, receivers and clocks: each affects only its own series, is visible, and recovers."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.host.kubelet_pods import KEEP_NS, LIST_NS, KubeletCollector
from agent.collectors.host.owners import OwnerCollector
from agent.collectors.steps.step_collector import LINGER_NS
from agent.schema.clock import SystemClock
from agent.sources.kubelet.pod_resources import Container, Pod
from exporter.push.target import PushTarget
from tests import needs
from tests.agent.rates_of_frames import Rates
from tests.agent.scripted_collectors import wait_until
from tests.agent.training_node import INTERVAL_SECONDS, MOST_RUNS_UNSEEN, TrainingNode, shorten_intervals, threads_of
from tests.fakes.nvml.control import FakeNvml
from tests.fakes.sysfs.tree import write_number

RECEIVED = "gangwatch_rdma_port_receive_bytes_total"
SYMBOLS = "gangwatch_rdma_port_symbol_errors_total"

WORD_BYTES = 4


class OffsetClock(SystemClock):
    def __init__(self) -> None:
        self.ahead_ns = 0
        self.wall_ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() + self.wall_ahead_ns


@pytest.fixture
def clock() -> OffsetClock:
    return OffsetClock()


@pytest.fixture
def site(
    tmp_path: Path, nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, clock: OffsetClock
) -> Iterator[TrainingNode]:
    shorten_intervals(monkeypatch)
    with TrainingNode(tmp_path, nvml_library, nvml, clock=clock) as running:
        yield running
    assert not threads_of()


# --- the network -----------------------------------------------------------------------------------------------------


def test_a_nic_that_disappears_recovers_on_return(site: TrainingNode) -> None:
    assert site.value("gangwatch_rdma_devices") == site.present(RECEIVED) == 8
    site.tree.remove_nic("mlx5_3")
    assert site.runs_unseen("rdma", lambda: site.value("gangwatch_rdma_devices") == 7) <= MOST_RUNS_UNSEEN
    wait_until(lambda: site.present(RECEIVED) == 7 and site.failing() == set())
    assert all(dict(labels)["device"] != "mlx5_3" for labels in site.values(RECEIVED))
    site.tree.return_nic("mlx5_3")
    wait_until(lambda: site.present(RECEIVED) == 8 and site.failing() == set())


def test_a_file_that_fails_with_einval_affects_one_series(site: TrainingNode) -> None:
    # A real file that fails so: the loopback interface has no speed (net-sysfs.c, speed_show).
    speed = Path("/sys/class/net/lo/speed")
    try:
        speed.read_bytes()
        needs.absent("this kernel's loopback has a speed, and no file here answers EINVAL")
    except OSError as error:
        assert error.strerror == "Invalid argument"
    wait_until(lambda: site.present(SYMBOLS) == 8)
    before = {metric: site.present(metric) for metric in (RECEIVED, "gangwatch_rdma_port_link_downed_total")}
    file = site.tree.nic("mlx5_5").port / "counters" / "symbol_error"
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(speed)
    unreadable = "gangwatch_rdma_files_unreadable"
    unseen = site.runs_unseen("rdma", lambda: site.value(unreadable, device="mlx5_5") == 1)
    assert unseen <= MOST_RUNS_UNSEEN
    assert site.present(SYMBOLS) == 7 and site.failing() == set()
    assert {metric: site.present(metric) for metric in before} == before
    file.unlink()
    file.write_bytes(content)
    wait_until(lambda: site.present(SYMBOLS) == 8)
    wait_until(lambda: site.value("gangwatch_rdma_files_unreadable", device="mlx5_5") == 0)


def test_counters_that_reset_or_wrap_give_no_impossible_rate(site: TrainingNode) -> None:
    rates = Rates((RECEIVED, "gangwatch_rdma_out_of_sequence_packets_total"))
    port = site.tree.nic("mlx5_0").port
    words = port / "counters" / "port_rcv_data"
    sequence = port / "hw_counters" / "out_of_sequence"
    # A 64-bit value beyond the exact range of a float; a 32-bit value just before it wraps.
    write_number(words, 2**62)
    write_number(sequence, 2**32 - 10)
    began = site.seq()
    wait_until(lambda: site.seq() > began + 4)
    remove = site.node.add_listener(rates.add)
    for data, packets in ((2**62 + 1000, 2**32 - 5), (2**62 + 2000, 5), (500, 0), (1000, 7), (0, 0)):
        write_number(words, data)
        write_number(sequence, packets)
        began = site.seq()
        wait_until(lambda: site.seq() > began + 3)  # noqa: B023
    remove()
    assert rates.count > 100
    # At most 1,000 words or a dozen packets arrive between two samples; the samples are most of an interval apart.
    assert rates.least >= 0 and rates.most <= 1000 * WORD_BYTES / (INTERVAL_SECONDS / 4), (rates.worst, rates.most)


# --- the kubelet -----------------------------------------------------------------------------------------------------


def test_a_kubelet_restart_removes_no_series(site: TrainingNode, clock: OffsetClock) -> None:
    gpu = next(iter(site.values("gangwatch_gpu_up")))[0][1]
    site.kubelet.pods = [Pod("team", "llama-0", (Container("main", (("nvidia.com/gpu", gpu),)),))]
    wait_until(lambda: site.present("gangwatch_gpu_owner_info") == 1)
    site.kubelet.stop()
    assert site.runs_unseen("kubelet", lambda: site.failing() == {"kubelet"}) <= MOST_RUNS_UNSEEN
    assert site.present("gangwatch_gpu_owner_info") == 1, "a restart removes no series"
    site.kubelet.start()
    wait_until(lambda: site.failing() == set())
    # A hung kubelet has the same effect as one that is down.
    site.kubelet.hanging.set()
    wait_until(lambda: site.failing() == {"kubelet"})
    assert KEEP_NS < 60e9
    site.kubelet.hanging.clear()
    site.kubelet.pods = []
    wait_until(lambda: site.failing() == set() and site.present("gangwatch_gpu_owner_info") == 0)


def test_series_of_an_ended_job_are_no_longer_published(site: TrainingNode) -> None:
    gpus = sorted(labels[0][1] for labels in site.values("gangwatch_gpu_up"))
    site.kubelet.pods = [
        Pod("team", f"llama-{gpu}", (Container("main", (("nvidia.com/gpu", gpu),)),)) for gpu in gpus[:2]
    ]
    wait_until(lambda: site.scrape()[0].count("gangwatch_gpu_owner_info{") == 2)
    site.kubelet.pods = site.kubelet.pods[1:]
    wait_until(lambda: gpus[0] not in {dict(labels)["gpu"] for labels in site.values("gangwatch_gpu_owner_info")})
    text = site.scrape()[0]
    assert f'pod="llama-{gpus[0]}"' not in text and f'pod="llama-{gpus[1]}"' in text
    # With the product's intervals: one collector lists when it is due; another joins at its next run.
    lists_seconds = inspect.signature(KubeletCollector).parameters["interval_seconds"].default
    joins_seconds = OwnerCollector.interval_seconds
    assert LIST_NS / 1e9 + lists_seconds + joins_seconds + LINGER_NS / 1e9 <= 60


# --- receivers -------------------------------------------------------------------------------------------------------


def test_a_receiver_that_reads_nothing_fills_only_its_own_queue(
    tmp_path: Path, nvml_library: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_intervals(monkeypatch)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        target = PushTarget(endpoint, INTERVAL_SECONDS, queue_frames=3, timeout_seconds=0.5)
        with TrainingNode(tmp_path, nvml_library, nvml, targets={"otlp": target}) as site:

            def dropped() -> bool:
                text = site.scrape()[0]
                return any(
                    line.startswith("gangwatch_push_dropped_total{")
                    and 'reason="queue full"' in line
                    and line[-2:] != " 0"
                    for line in text.splitlines()
                )

            wait_until(dropped)
            before = site.seq()
            wait_until(lambda: site.seq() > before + 4)
            assert site.failing() == set(), "the node still makes and serves frames"
            text = site.scrape()[0]
            assert 'gangwatch_push_queue_frames{sink="otlp"} 3' in text.replace('node="n0",', "").replace(
                ',node="n0"', ""
            )
            assert "gangwatch_push_failures_total" in text


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_wall_clock_jump_changes_only_the_frame_time(site: TrainingNode, clock: OffsetClock) -> None:
    rates = Rates()
    remove = site.node.add_listener(rates.add)
    for jump_seconds in (-3600, 7200, -(10**8)):
        clock.wall_ahead_ns += jump_seconds * 10**9
        began = site.seq()
        wait_until(lambda: site.seq() > began + 3)  # noqa: B023
        assert site.failing() == set()
    remove()
    assert rates.least >= 0
    newest = site.node.newest()
    assert newest is not None and abs(newest[1].wall_ns - clock.wall_ns()) < 60 * 10**9, (
        "the frame has the clock's time"
    )


def test_a_suspended_machine_continues(site: TrainingNode, clock: OffsetClock) -> None:
    """Let monotonic time jump by an hour: missed runs of collectors are skipped, not repeated."""
    runs = site.value("gangwatch_agent_frames_total")
    clock.ahead_ns += 3600 * 10**9
    wait_until(lambda: site.failing() == set() and site.age("gpu/0000:61:00.0") < 5)
    after = site.value("gangwatch_agent_frames_total")
    assert runs is not None and after is not None and after < runs + 200
    wait_until(lambda: site.value("gangwatch_agent_threads_abandoned") == 0 and site.stuck() == set())
