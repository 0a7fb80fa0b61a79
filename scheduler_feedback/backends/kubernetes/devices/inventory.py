"""Devices of each node, from the ResourceSlices that drivers publish.

A pool may have several slices. Only its newest generation counts, and only if all slices of that generation exist.
Source: https://kubernetes.io/docs/reference/kubernetes-api/resource/resource-slice-v1/ (spec.pool).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.devices.counters import Amounts, CounterKey, totals_of, uses_of
from scheduler_feedback.backends.kubernetes.devices.device_objects import Device, ResourceSlice, SliceSpec
from scheduler_feedback.backends.kubernetes.devices.selectors import matches
from scheduler_feedback.backends.kubernetes.objects.constraints import holds
from scheduler_feedback.backends.kubernetes.objects.objects import Node, NodeSelector

MOST_RESULTS = 64
"""Maximum number of results that a device keeps: more than the classes and selectors of one cluster."""


class DeviceId(NamedTuple):
    """Names that identify a device."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Published:
    """A device that a driver has published."""

    id: DeviceId
    device: Device

    node: str
    """Name of the node that the device is part of; '' if several nodes can use it."""

    selector: NodeSelector | None
    """Nodes that can use a device of several nodes; None: all nodes."""

    uses: tuple[tuple[CounterKey, int], ...] = ()
    """What the device uses of the counters that it shares with others of its pool."""

    results: dict[str, bool] = field(default_factory=dict, compare=False)
    """Whether the device fulfils a CEL expression, for those evaluated so far."""

    def fulfils(self, expression: str) -> bool:
        """Return whether the device fulfils the expression. Raises SelectorError if that is not supported."""
        known = self.results.get(expression)
        if known is None:
            if len(self.results) >= MOST_RESULTS:
                self.results.clear()
            known = self.results[expression] = matches(expression, self.id.driver, self.device)
        return known


def why_unusable(spec: SliceSpec, device: Device) -> str:
    """Return why gangwatch does not allocate the device; '' if it does: as a whole, and for one claim at a time."""
    if device.consumes_counters and not spec.node_name:
        return "shares counters with others, and several nodes can use it"
    if device.allow_multiple_allocations:
        return "can be allocated to several claims (consumable capacity)"
    if device.binding_conditions:
        return "is attached only after its allocation (binding conditions)"
    if device.node_allocatable_resources:
        return "represents CPU or memory of its node"
    if spec.per_device_node_selection:
        return "selects nodes of its own (perDeviceNodeSelection)"
    return ""


class Inventory:
    """The devices of all pools."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], dict[str, ResourceSlice]] = {}  # by pool (driver, name) and slice
        self._local: dict[str, dict[tuple[str, str], list[Published]]] = {}  # by node and pool
        self._wide: dict[tuple[str, str], list[Published]] = {}  # by pool: devices of several nodes
        self._unusable: dict[tuple[str, str], list[tuple[Published, str]]] = {}  # by pool: with the reason of each
        self._incomplete: dict[tuple[str, str], set[str]] = {}  # by pool: its nodes; '' for several nodes
        self._nodes: dict[tuple[str, str], set[str]] = {}  # by pool: nodes with devices of it
        self._counters: dict[tuple[str, str], dict[CounterKey, int]] = {}  # by pool
        self._sharing: dict[str, dict[tuple[str, str], list[Published]]] = {}  # by node and pool: users of counters

    def __bool__(self) -> bool:
        return bool(self._slices)

    def change(self, key: str, before: ResourceSlice | None, after: ResourceSlice | None) -> set[str]:
        """Update a pool. Return the nodes whose devices may have changed; '' among them means all nodes."""
        changed: set[str] = set()
        for pool in {(one.spec.driver, one.spec.pool.name) for one in (before, after) if one is not None}:
            slices = self._slices.setdefault(pool, {})
            slices.pop(key, None)
            if after is not None and pool == (after.spec.driver, after.spec.pool.name):
                slices[key] = after
            changed |= self._nodes.get(pool, set()) | self._incomplete.get(pool, set())
            self._rebuild(pool)
            changed |= self._nodes.get(pool, set()) | self._incomplete.get(pool, set())
        return changed

    def _rebuild(self, pool: tuple[str, str]) -> None:
        for node in self._nodes.pop(pool, set()):
            if node:
                self._local[node].pop(pool, None)
                self._sharing.get(node, {}).pop(pool, None)
        self._wide.pop(pool, None)
        self._unusable.pop(pool, None)
        self._incomplete.pop(pool, None)
        self._counters.pop(pool, None)
        if not self._slices[pool]:
            del self._slices[pool]
            return
        newest = max(one.spec.pool.generation for one in self._slices[pool].values())
        slices = [one for _, one in sorted(self._slices[pool].items()) if one.spec.pool.generation == newest]
        if len(slices) != slices[0].spec.pool.resource_slice_count:
            self._incomplete[pool] = {one.spec.node_name for one in slices}
            return
        try:
            totals = totals_of(*pool, (counters for one in slices for counters in one.spec.shared_counters or ()))
        except BackendError:
            totals = {}  # devices that use them are left out
        if totals:
            self._counters[pool] = totals
        for one in slices:
            self._add(pool, one, totals)

    def _add(self, pool: tuple[str, str], one: ResourceSlice, counters: Amounts) -> None:
        spec = one.spec
        if not (spec.node_name or spec.all_nodes or spec.node_selector or spec.per_device_node_selection):
            return
        selector = None if spec.all_nodes else spec.node_selector
        devices: list[Published] = []
        for device in spec.devices or ():
            why = why_unusable(spec, device)
            try:
                uses = uses_of(*pool, device.consumes_counters)
            except BackendError as error:
                uses, why = (), f"uses counters that cannot be read: {error}"
            if any(key not in counters for key, _ in uses):
                uses, why = (), "uses counters that its pool does not have"
            published = Published(DeviceId(*pool, device.name), device, spec.node_name, selector, uses)
            if uses and spec.node_name:
                self._sharing.setdefault(spec.node_name, {}).setdefault(pool, []).append(published)
            if why:
                self._unusable.setdefault(pool, []).append((published, why))
            else:
                devices.append(published)
        self._nodes.setdefault(pool, set()).add(spec.node_name)
        if spec.node_name:
            self._local.setdefault(spec.node_name, {}).setdefault(pool, []).extend(devices)
        else:
            self._wide.setdefault(pool, []).extend(devices)

    def unusable(self) -> Iterator[tuple[Published, str]]:
        """Yield the devices that gangwatch does not allocate, with the reason of each."""
        return itertools.chain.from_iterable(self._unusable.values())

    def usable(self) -> Iterator[Published]:
        """Yield the devices of all nodes."""
        for pools in self._local.values():
            yield from itertools.chain.from_iterable(pools.values())
        yield from itertools.chain.from_iterable(self._wide.values())

    def devices_on(self, node: Node) -> list[Published]:
        """Return the devices that pods on the node can use, in the order of their pools and slices."""
        found = [one for _, devices in sorted(self._local.get(node.metadata.name, {}).items()) for one in devices]
        for _, devices in sorted(self._wide.items()):
            found += [one for one in devices if _reaches(one.selector, node)]
        return found

    def sharing_on(self, node: str) -> list[Published]:
        """Return the devices of the node that share counters, also those that gangwatch does not allocate."""
        return [one for devices in self._sharing.get(node, {}).values() for one in devices]

    def counters_on(self, node: str) -> dict[CounterKey, int]:
        """Return the amounts of the counters that devices of the node share."""
        found: dict[CounterKey, int] = {}
        for pool in self._sharing.get(node, {}):
            found |= self._counters.get(pool, {})
        return found

    def updating_on(self, node: Node) -> str:
        """Return the name of a pool of the node that is being updated; '' if there is none."""
        name = node.metadata.name
        return next((pool for (_, pool), nodes in sorted(self._incomplete.items()) if nodes & {name, ""}), "")

    def per_node(self) -> Iterable[list[Published]]:
        """Yield the devices of each node that has devices of its own."""
        for pools in self._local.values():
            yield [one for devices in pools.values() for one in devices]


def _reaches(selector: NodeSelector | None, node: Node) -> bool:
    return selector is None or any(holds(term, node) for term in selector.node_selector_terms)
