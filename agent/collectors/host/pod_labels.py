"""Collector of selected labels of the pods that use devices of this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agent.collectors.block import Block
from agent.collectors.host.kubelet_pods import PodTable
from agent.schema.clock import Clock, SystemClock
from agent.schema.frame import Column

LIST_NS = 300_000_000_000
"""Interval in ns at which labels are read again, to find changed labels of running pods. New pods are read at the next
run. The interval is long because every node sends this request to the same API server."""

MAX_PODS = 512
"""Maximum number of pods whose labels are published."""

PodName = tuple[str, str]


class Lister(Protocol):
    """Interface to the API server: it lists the labels of the node's pods."""

    def list(self) -> Mapping[PodName, Mapping[str, str]]: ...


class PodLabelCollector:
    """Collector that publishes the labels in `names` of each pod with a device, one series for each label of a pod.

    names: label keys, such as ``app.kubernetes.io/name``. The pods are the ones in the PodTable, from the kubelet.
    """

    name = "pod-labels"
    interval_seconds = 30.0

    def __init__(self, names: tuple[str, ...], table: PodTable, lister: Lister, clock: Clock | None = None) -> None:
        self._names = names
        self._table = table
        self._lister = lister
        self._clock = clock or SystemClock()
        self._listed_ns: int | None = None
        self._labels: dict[PodName, Mapping[str, str]] = {}
        self._columns: list[Column] = []
        self._block = Block()

    def collect(self) -> Block:
        now_ns = self._clock.monotonic_ns()
        pods = {
            (pod.namespace, pod.name)
            for pod in self._table.pods(now_ns)
            if any(container.devices or container.claimed for container in pod.containers)
        }
        old = self._listed_ns is None or now_ns - self._listed_ns >= LIST_NS
        if pods and (old or not pods <= self._labels.keys()):
            listed = self._lister.list()
            self._listed_ns = now_ns
            self._labels = {pod: listed[pod] for pod in pods if pod in listed}
        columns = [
            Column(
                "gangwatch_pod_label_info", (("label", name), ("namespace", namespace), ("pod", pod), ("value", value))
            )
            for namespace, pod in sorted(pods & self._labels.keys())[:MAX_PODS]
            for name in self._names
            if (value := self._labels[namespace, pod].get(name)) is not None
        ]
        if columns != self._columns:
            self._columns = columns
            self._block = Block(columns)
            self._block.gauges[:] = 1.0
        return self._block

    def close(self) -> None:
        """Do nothing: the collector keeps nothing open."""
