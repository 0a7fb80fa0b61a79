"""Advice in addition to the marks on nodes: events on the affected pods, and taints on single devices.

An event's name is derived from the verdict and the pod, so it is written only once, even by successive controllers.

A DeviceTaintRule (dynamic resource allocation, if the server has resource.k8s.io/v1beta2) keeps new claims off a GPU
that an active verdict accuses. It exists while the verdict is active and the node is in quarantine. So the limits on
quarantined nodes, for the cluster and for each rack, also limit the number of rules. A ResourceSlice's attribute
``uuid`` maps a GPU to its device; a GPU that no slice lists gets no rule.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part, Pod
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict_text import sentence

RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MANAGED = "app.kubernetes.io/managed-by"
MOST_PODS = 8
"""Maximum number of pods that get an event about one verdict. A gang rarely has more pods on one node."""

_READ_AGAIN_SECONDS = 60.0
"""Interval between reads of the ResourceSlices: devices get new names when a driver restarts."""

_log = logging.getLogger(__name__)
Write = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Accusation:
    """An active verdict that accuses a node or GPU."""

    verdict_id: str
    gang: str
    node: str
    words: str
    device: str = ""
    """UUID of the GPU, if the verdict accuses one and its node is in quarantine."""


def accusations_of(state: State) -> tuple[Accusation, ...]:
    """Return the active verdicts that accuse a node or GPU."""
    found = []
    for verdict in state.verdicts.values():
        node = state.nodes.get(verdict.node)
        if verdict.kind not in ACCUSING or node is None:
            continue
        out = node.state is NodeState.QUARANTINE and verdict.level == "gpu"
        device = verdict.device if out else ""
        found.append(Accusation(verdict.verdict_id, verdict.gang, verdict.node, sentence(verdict), device))
    return tuple(found)


class _Text(Part):
    string: str = ""


class _Device(Part):
    name: str = ""
    attributes: dict[str, _Text] | None = None


class _Pool(Part):
    name: str = ""


class _SliceSpec(Part):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None


class _Slice(Part):
    spec: _SliceSpec


class _Slices(Part):
    items: list[_Slice]


class Rule(Part):
    metadata: Metadata


class Rules(Part):
    items: list[Rule]


_slices = msgspec.json.Decoder(_Slices)
_rules = msgspec.json.Decoder(Rules)
Selector = tuple[str, str, str]
"""Names that identify a device of a ResourceSlice: (driver, pool, device)."""


class Advice:
    """Writer of events on pods, and of taint rules for devices.

    concerned: returns the pods of a gang ('': of any gang) on a node. devices: whether to write DeviceTaintRules.
    """

    def __init__(
        self, client: Client, concerned: Callable[[str, str], Sequence[Pod]], *, devices: bool = False
    ) -> None:
        self._client, self._concerned, self._devices = client, concerned, devices
        self._published: dict[str, tuple[Accusation, list[Pod]]] = {}
        self._events: deque[Write] = deque()  # to be written
        self._rules: set[str] | None = None  # names of existing rules; None: not listed yet
        self._places: dict[str, Selector] = {}  # by UUID
        self._read_at = float("-inf")

    async def writes(self, accusations: Iterable[Accusation], most: int) -> list[Write]:
        """Return at most `most` writes, which publish these accusations and withdraw all others.

        Each write is returned once and must be executed; only writes of missing rules are returned again.
        """
        active = {accusation.verdict_id: accusation for accusation in accusations}
        for verdict_id, accusation in active.items():
            if verdict_id not in self._published:
                pods = list(self._concerned(accusation.gang, accusation.node))[:MOST_PODS]
                self._published[verdict_id] = accusation, pods
                self._events += [partial(self._event, pod, accusation, True) for pod in pods]
        for verdict_id in [one for one in self._published if one not in active]:
            accusation, pods = self._published.pop(verdict_id)
            here = {pod.metadata.uid for pod in self._concerned(accusation.gang, accusation.node)}
            self._events += [partial(self._event, pod, accusation, False) for pod in pods if pod.metadata.uid in here]
        writes = (await self._rule_writes(active))[:most] if self._devices else []
        while self._events and len(writes) < most:
            writes.append(self._events.popleft())
        return writes

    # --- events ------------------------------------------------------------------------------------------------------

    async def _event(self, pod: Pod, accusation: Accusation, active: bool) -> None:
        metadata = pod.metadata
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        digest = hashlib.sha256(f"{accusation.verdict_id} {metadata.uid} {active}".encode()).hexdigest()[:16]
        message = f"node {accusation.node}: {accusation.words}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata.name[:200]}.{digest}", "namespace": metadata.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata.namespace,
                "name": metadata.name,
                "uid": metadata.uid,
            },
            "type": "Warning" if active else "Normal",
            "reason": "NodeDoubted" if active else "NodeCleared",
            "message": (message if active else f"no longer: {message}")[:1024],
            "source": {"component": "gangwatch"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._client.create(f"/api/v1/namespaces/{metadata.namespace}/events", body)
        except RefusedError as error:
            if error.code not in (404, 409):  # the namespace is being deleted, or the event exists
                raise

    # --- devices -----------------------------------------------------------------------------------------------------

    async def _rule_writes(self, active: Mapping[str, Accusation]) -> list[Write]:
        try:
            if self._rules is None:
                self._rules = {rule.metadata.name for rule in await rules_of(self._client)}
            accused = {accusation.device: accusation for accusation in active.values() if accusation.device}
            if accused.keys() - self._places.keys() and time.monotonic() - self._read_at >= _READ_AGAIN_SECONDS:
                self._places = await self._devices_by_uuid()
                self._read_at = time.monotonic()
        except RefusedError as error:
            if error.code != 404:
                raise
            _log.warning("DeviceTaintRules are off: this API server does not serve resource.k8s.io/v1beta2")
            self._devices = False
            return []
        wanted = {
            _name(accusation.node, uuid): (self._places[uuid], accusation)
            for uuid, accusation in accused.items()
            if uuid in self._places
        }
        writes: list[Write] = [
            partial(self._taint, name, selector, accusation)
            for name, (selector, accusation) in wanted.items()
            if name not in self._rules
        ]
        return writes + [partial(self._untaint, name) for name in self._rules if name not in wanted]

    async def _devices_by_uuid(self) -> dict[str, Selector]:
        found = {}
        for one in (await self._client.get(SLICES, _slices)).items:
            for device in one.spec.devices or ():
                uuid = (device.attributes or {}).get("uuid")
                if uuid is not None and uuid.string:
                    found[uuid.string] = (one.spec.driver, one.spec.pool.name, device.name)
        return found

    async def _taint(self, name: str, selector: Selector, accusation: Accusation) -> None:
        driver, pool, device = selector
        body: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": name,
                "labels": {MANAGED: "gangwatch"},
                "annotations": {f"{OURS}reason": accusation.words},
            },
            "spec": {
                "deviceSelector": {"driver": driver, "pool": pool, "device": device},
                "taint": {"key": f"{OURS}quarantine", "effect": "NoSchedule"},
            },
        }
        try:
            await self._client.create(RULES, body)
        except RefusedError as error:
            if error.code != 409:
                raise
        assert self._rules is not None, "they were listed before"
        self._rules.add(name)

    async def _untaint(self, name: str) -> None:
        await remove_rule(self._client, name)
        assert self._rules is not None, "they were listed before"
        self._rules.discard(name)


async def rules_of(client: Client) -> list[Rule]:
    """Return the DeviceTaintRules of gangwatch. Raises RefusedError with code 404 if the server does not have the
    kind.
    """
    return (await client.get(RULES, _rules, labelSelector=f"{MANAGED}=gangwatch")).items


async def remove_rule(client: Client, name: str) -> None:
    try:
        await client.delete(f"{RULES}/{name}")
    except RefusedError as error:
        if error.code != 404:
            raise


def _name(node: str, uuid: str) -> str:
    """Return the name of a device's taint rule. It has a digest of the UUID, whose characters may not be valid in
    names.
    """
    digest = hashlib.sha256(uuid.encode()).hexdigest()[:10]
    return f"gangwatch-{node[:200]}-{digest}"
