"""Collector of the kubelet's pods and of the devices that it has allocated to them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Protocol

from agent.collectors.block import Block
from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import UnsupportedError
from agent.schema.frame import Column
from agent.sources.kubelet.pod_resources import Pod

LIST_NS = 10_000_000_000
"""Interval in ns at which the kubelet's pods are listed. If a new pod is expected, they are listed sooner. The interval
is long because the kubelet limits the calls of all its clients together to 100 per second."""

ALLOCATABLE_NS = 60_000_000_000
KEEP_NS = 45_000_000_000
"""Age in ns at which a listing of pods is no longer used. If the kubelet stops responding, the pods of the last listing
therefore disappear within a minute."""

MAX_RESOURCES = 64


class Lister(Protocol):
    """Interface to the kubelet: it lists pods and allocatable devices."""

    def list(self) -> tuple[Pod, ...]: ...

    def allocatable(self) -> tuple[tuple[str, str], ...]: ...


class PodTable:
    """The newest listing of pods by the kubelet. One collector writes it; another collector's thread reads it."""

    def __init__(self) -> None:
        self.wanted = False
        self._listed: tuple[tuple[Pod, ...], int] | None = None

    def put(self, pods: tuple[Pod, ...], now_ns: int) -> None:
        self._listed = (pods, now_ns)
        self.wanted = False

    def pods(self, now_ns: int) -> tuple[Pod, ...]:
        """Return the pods, or () if the listing is older than KEEP_NS."""
        listed = self._listed
        return listed[0] if listed is not None and now_ns - listed[1] <= KEEP_NS else ()

    def due(self, now_ns: int) -> bool:
        """Return whether to list the pods now: a collector has requested it, or the listing is older than LIST_NS."""
        return self.wanted or self._listed is None or now_ns - self._listed[1] >= LIST_NS


class KubeletCollector:
    """Collector that lists the kubelet's pods every 10 s, or sooner if another collector requests a listing.

    If the kubelet does not respond, every run retries and fails. Only this collector's success metric shows the
    failure. Raise UnsupportedError if the folder of the kubelet's socket does not exist.
    """

    name = "kubelet"

    def __init__(
        self,
        socket_path: str,
        table: PodTable,
        clock: Clock | None = None,
        interval_seconds: float = 5.0,
        kubelet: Lister | None = None,
    ) -> None:
        if not os.path.isdir(os.path.dirname(socket_path)):
            raise UnsupportedError(f"kubelet: no folder {os.path.dirname(socket_path)}")
        if kubelet is None:
            # Imported here so that a node without a kubelet does not load an HTTP/2 library.
            from agent.sources.kubelet.kubelet import Kubelet

            kubelet = Kubelet(socket_path)
        self.interval_seconds = interval_seconds
        self._kubelet = kubelet
        self._table = table
        self._clock = clock or SystemClock()
        self._allocatable: Counter[str] = Counter()
        self._allocatable_ns: int | None = None
        self._allocatable_supported = True
        self._resources: tuple[str, ...] = ()
        self._pods: tuple[Pod, ...] | None = None
        self._block = Block([Column("gangwatch_kubelet_pods")])

    def collect(self) -> Block:
        now_ns = self._clock.monotonic_ns()
        if not self._table.due(now_ns):
            return self._block
        pods = self._kubelet.list()
        self._table.put(pods, now_ns)
        asked = self._ask_allocatable(now_ns)
        if asked or pods is not self._pods:
            self._pods = pods
            self._fill(pods)
        return self._block

    def close(self) -> None:
        """Do nothing: the collector keeps nothing open."""

    def _ask_allocatable(self, now_ns: int) -> bool:
        """Count the devices that pods may use, by resource, if this is due. Return whether the kubelet was queried.

        Kubelets before 1.23 do not support the query; they are not queried again.
        """
        since_ns = self._allocatable_ns
        if not self._allocatable_supported or (since_ns is not None and now_ns - since_ns < ALLOCATABLE_NS):
            return False
        try:
            self._allocatable = Counter(resource for resource, _ in self._kubelet.allocatable())
            self._allocatable_ns = now_ns
        except UnsupportedError:
            self._allocatable_supported = False
        return True

    def _fill(self, pods: tuple[Pod, ...]) -> None:
        allocated = Counter(
            resource for pod in pods for container in pod.containers for resource, _ in container.devices
        )
        resources = tuple(sorted(self._allocatable.keys() | allocated.keys()))[:MAX_RESOURCES]
        if resources != self._resources:
            self._resources = resources
            self._block = Block(
                [
                    Column("gangwatch_kubelet_pods"),
                    *(Column("gangwatch_kubelet_devices_allocatable", (("resource", one),)) for one in resources),
                    *(Column("gangwatch_kubelet_devices_allocated", (("resource", one),)) for one in resources),
                ]
            )
        block = self._block
        block.clear()
        block.set_gauge(0, len(pods))
        for position, resource in enumerate(resources, 1):
            if self._allocatable_supported:
                block.set_gauge(position, self._allocatable[resource])
            block.set_gauge(position + len(resources), allocated[resource])
