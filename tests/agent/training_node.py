"""Complete agent on fake hardware (eight H100, eight NICs, a kubelet), for tests that break one part of it.

The collectors come from ``make_collectors`` and run in a node behind the exporter's server. Collectors with long
intervals run as often as those with short ones, so that tests do not wait for them.
"""

from __future__ import annotations

import math
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from unittest import mock

import pytest

from agent.collectors import Machine, make_collectors
from agent.collectors.gpu import nvml_collector as nvml_collector
from agent.collectors.host import kubelet_pods, owners
from agent.collectors.rdma import rdma as rdma_collector
from agent.collectors.rdma import rdma_series
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.runner import Runner
from agent.schema.clock import Clock, SystemClock
from agent.sources.nvml import nvml as nvml_source
from exporter.prometheus.exposition import EVERYTHING
from exporter.publisher import Publisher
from exporter.push.target import PushTarget
from tests.agent.scripted_collectors import shown, value, wait_until
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.nvml.control import FakeNvml
from tests.fakes.sysfs.tree import Tree, build

INTERVAL_SECONDS = 0.25

MOST_RUNS_UNSEEN = 1
"""A fault must be visible within two intervals of its collector: at most one run that began after the fault may end
before a frame without it. The limit counts runs, so it does not depend on the machine's speed."""


def shorten_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run collectors twice a second that the product runs every ten or thirty seconds."""
    monkeypatch.setattr(nvml_collector, "INTERVAL_SECONDS", 2 * INTERVAL_SECONDS)
    monkeypatch.setattr(nvml_source, "RETRY_LOST_SECONDS", 2 * INTERVAL_SECONDS)
    monkeypatch.setattr(rdma_collector, "DISCOVERY_SECONDS", 2 * INTERVAL_SECONDS)
    monkeypatch.setattr(rdma_collector, "RETRY_SECONDS", 4 * INTERVAL_SECONDS)
    monkeypatch.setattr(rdma_collector, "SLOW_SECONDS", INTERVAL_SECONDS)
    monkeypatch.setattr(rdma_series, "SLOW_SECONDS", INTERVAL_SECONDS)
    monkeypatch.setattr(kubelet_pods, "LIST_NS", round(INTERVAL_SECONDS * 1e9))
    monkeypatch.setattr(owners, "RDMA_LIST_NS", round(INTERVAL_SECONDS * 1e9))


class TrainingNode:
    """Agent that runs inside the ``with``. The exit ends all its threads and closes all its descriptors."""

    def __init__(
        self,
        folder: Path,
        library: Path,
        nvml: FakeNvml,
        interval_seconds: float = INTERVAL_SECONDS,
        *,
        clock: Clock | None = None,
        targets: Mapping[str, PushTarget] | None = None,
    ) -> None:
        self.nvml = nvml
        self.tree: Tree = build(folder / "host")
        self.kubelet = FakeKubelet(folder / "kubelet.sock")
        self.proc_root = self.tree.root
        root = str(self.tree.root)
        machine = Machine(
            Attribution(None, root, pod_logs=str(folder / "pods")),
            proc_root=root,
            sys_root=root,
            nvml_library=str(library),
            interval_seconds=interval_seconds,
            kubelet_socket=self.kubelet.path,
            kernel_log=str(self.tree.kernel_log),
        )
        self.collectors, self.left_out = make_collectors(machine)
        for collector in self.collectors:
            if collector.interval_seconds > interval_seconds:
                setattr(collector, "interval_seconds", interval_seconds)  # noqa: B010 (the protocol says it is read only)
        self._clock = clock or SystemClock()
        self._runs: deque[tuple[str, int, int]] = deque(maxlen=10_000)
        self.node = Node("n0", self.collectors, self._clock, interval_seconds, proc_root=root)
        self.server = Publisher(self.node, "127.0.0.1", 0, None, EVERYTHING, targets or {})

    def __enter__(self) -> TrainingNode:
        self._logging = mock.patch.object(Runner, "run_once", self._logged(Runner.run_once))
        self._logging.start()
        self.kubelet.start()
        self.node.start()
        self.server.start()
        wait_until(lambda: self.failing() == set() and self.gpus_up() == 8 and self.age("rdma/mlx5_0") < 60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        self.node.stop()
        self.kubelet.stop()
        self._logging.stop()

    def _logged(self, run_once: Callable[[Runner], None]) -> Callable[[Runner], None]:
        """Return a function that runs a collector and records the collector, the start and the end."""

        def logged(runner: Runner) -> None:
            began_ns = self._clock.monotonic_ns()
            run_once(runner)
            self._runs.append((runner.name, began_ns, self._clock.monotonic_ns()))

        return logged

    # --- values of the newest frame ---------------------------------------------------------------------------------

    def values(self, metric: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return {labels: value} of the metric's present series."""
        newest = self.node.newest()
        if newest is None:
            return {}
        layout, frame = newest
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for index, column in enumerate(layout.gauges):
            if column.metric == metric and not math.isnan(frame.gauges[index]):
                found[column.labels] = float(frame.gauges[index])
        for index, column in enumerate(layout.counters):
            if column.metric == metric and frame.counters_valid[index]:
                found[column.labels] = float(frame.counters[index])
        return found

    def failing(self) -> set[str]:
        """Return the collectors whose newest run failed, hangs or is too old; {"?"} before the first run."""
        states = self.values("gangwatch_collector_success")
        return {labels[0][1] for labels, success in states.items() if not success} if states else {"?"}

    def stuck(self) -> set[str]:
        return {labels[0][1] for labels, stuck in self.values("gangwatch_collector_stuck").items() if stuck}

    def age(self, collector: str) -> float:
        """Return the age of the collector's newest sample in seconds; infinite without a sample."""
        age = shown(self.node, "gangwatch_collector_sample_age_seconds", collector=collector)
        return math.inf if age is None or math.isnan(age) else float(age)

    def gpus_up(self) -> float:
        return sum(self.values("gangwatch_gpu_up").values())

    def present(self, metric: str) -> int:
        """Return how many series of the metric have a value."""
        return len(self.values(metric))

    def value(self, metric: str, **labels: str) -> float | int | None:
        return value(self.node.newest(), metric, **labels)

    def seq(self) -> int:
        newest = self.node.newest()
        return 0 if newest is None else newest[1].seq

    def runs_unseen(self, collector: str, condition: Callable[[], bool]) -> int:
        """Wait for a frame that meets the condition. Return the number of the collector's runs before it, without the
        last.

        Only runs count that began after this call and ended before the newest frame that did not meet the condition.
        """
        began_ns = self._clock.monotonic_ns()
        frames: list[tuple[int, bool]] = []
        remove = self.node.add_listener(lambda _, frame: frames.append((frame.monotonic_ns, condition())))
        try:
            wait_until(lambda: any(shows for _, shows in frames))
        finally:
            remove()
        first = next(index for index, (_, shows) in enumerate(frames) if shows)
        unseen_ns = frames[first - 1][0] if first else began_ns
        return sum(name == collector and begun >= began_ns and ended < unseen_ns for name, begun, ended in self._runs)

    def frames_until(self, condition: Callable[[], bool]) -> int:
        """Wait until the condition is true. Return the number of frames until then."""
        began = self.seq()
        wait_until(condition)
        return self.seq() - began

    # --- the server --------------------------------------------------------------------------------------------------

    def scrape(self) -> tuple[str, float]:
        """Return the text of /metrics and the response time in seconds."""
        began = time.monotonic()
        with urllib.request.urlopen(f"{self.server.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return text, time.monotonic() - began


def threads_of(node: str = "n0") -> set[str]:
    """Return the names of the node's live threads."""
    return {thread.name for thread in threading.enumerate() if re.match(rf"{node}/|nvml-events", thread.name)}


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
