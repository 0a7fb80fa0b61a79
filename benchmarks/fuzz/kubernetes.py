"""Fuzz targets: responses of an API server (lists and watches of objects), and quantities.

Any user may write annotations, so the controller must not trust them.
"""

from __future__ import annotations

import json
import random
from typing import Any, cast

import msgspec

from agent.schema.errors import BackendError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.kubernetes_objects import QUANTITIES, cluster_of, pod_of
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from scheduler_feedback.backends.kubernetes.api_server.client import Client, RefusedError
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch, _list_of
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Node, Pod, PodGroup, Queue, StoredVolume
from scheduler_feedback.backends.kubernetes.objects.quantities import amount, amounts, parse_quantity
from scheduler_feedback.backends.kubernetes.objects.translate import (
    TopologyLabels,
    with_queues,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import UpstreamGroup
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild, resumed
from scheduler_feedback.core.state import Policy

_KUBERNETES = "scheduler_feedback.backends.kubernetes"

# --- objects ---------------------------------------------------------------------------------------------------------


KINDS: dict[str, Any] = {
    "nodes": Node,
    "claims": Claim,
    "volumes": StoredVolume,
    "podgroups": PodGroup,
    "upstream": UpstreamGroup,
    "queues": Queue,
    "pods": Pod,
}
_LISTS = {name: msgspec.json.Decoder(_list_of(kind)) for name, kind in KINDS.items()}


def _make_objects(chance: random.Random) -> bytes:
    cluster = cluster_of(chance)
    if chance.random() < 0.25:
        name = chance.choice(list(cluster))
        cluster[name] = mutate.tree(chance, cluster[name])
    made = json.dumps(cluster).encode()
    return mutate.octets(chance, made) if chance.random() < 0.05 else made


def _parse_objects(data: bytes) -> str:
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return REFUSED_FIRST
    cache = InformerCache("gangwatch", TopologyLabels())
    handlers = {
        "nodes": cache.node_changed,
        "pods": cache.pod_changed,
        "claims": cache.claim_changed,
        "volumes": cache.volume_changed,
        "podgroups": cache.group_changed,
        "queues": cache.queue_changed,
        "upstream": cache.upstream_changed,
    }
    refused = False
    for name, raw in parts.items():
        if name not in _LISTS:
            continue
        try:
            listed = _LISTS[name].decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            refused = True
            continue
        for item in listed.items:
            try:
                cast(Any, handlers[name])(item.metadata.key, None, item)
            except BackendError:  # `Watch._change` leaves such an object unchanged
                refused = True
    seen = cache.seen()
    for key in sorted({*cache.groups, *cache.pods}):
        gang = cache.gang(key)
        if gang is not None:
            refused |= bool(gang.refused)
            for pod in gang.pods:
                try:
                    constraint = constraint_of(pod)
                except BackendError:  # then the gang is refused, too
                    assert gang.spec is None
                    continue
                for node in cache.nodes:
                    cache.why_not(constraint, node)
    policy = with_queues(Policy(), cache.queues.values())
    state, _ = rebuild(cache, seen, policy, 10**18)
    if gone := resumed(cache, state.jobs.values())[1]:
        raise AssertionError(f"rebuilt from the cache, but not in it: {gone}")
    return REFUSED if refused else ACCEPTED


# --- a watch ---------------------------------------------------------------------------------------------------------


def _make_watch(chance: random.Random) -> bytes:
    lines = []
    for at in range(chance.randrange(1, 4)):
        kind = chance.choice(("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "x"))
        item = (
            {"code": chance.choice((410, 500, "x")), "message": "gone"}
            if kind == "ERROR" and chance.random() < 0.8
            else pod_of(chance, at % 2)
        )
        event: Any = {"type": kind, "object": item}
        if chance.random() < 0.3:
            event = mutate.tree(chance, event)
        line = json.dumps(event).encode()
        lines.append(mutate.octets(chance, line) if chance.random() < 0.1 else line)
    return b"\n".join(lines)


def _parse_watch(data: bytes) -> str:
    changes: list[str] = []

    def on_change(key: str, _: Pod | None, after: Pod | None) -> None:
        changes.append(key)
        if after is not None and after.metadata.uid.endswith("3"):
            raise BackendError("'x' is no quantity")

    watch: Watch[Pod] = Watch(cast(Client, None), "/api/v1/pods", Pod, on_change)
    outcome = ACCEPTED
    for line in data.split(b"\n"):
        try:
            watch._take(line)
        except (RefusedError, BackendError) as error:
            outcome = REFUSED_FIRST if "malformed" in str(error) or "truncated" in str(error) else REFUSED
    return outcome


# --- quantities ------------------------------------------------------------------------------------------------------


def _make_quantities(chance: random.Random) -> bytes:
    values = [
        mutate.text(chance, value) if chance.random() < 0.3 else value for value in chance.choices(QUANTITIES, k=3)
    ]
    return json.dumps(values).encode("utf-8", "replace")


def _parse_quantities(data: bytes) -> str:
    taken = 0
    values = json.loads(data)
    parse_quantity.cache_clear()
    amount.cache_clear()
    for value in values:
        try:
            parse_quantity(value)
            taken += amounts({"cpu": value, "memory": value})["cpu"] is not None
        except BackendError:
            continue
    return ACCEPTED if taken == len(values) else REFUSED if taken else REFUSED_FIRST


TARGETS = (
    Target(
        "kubernetes-objects",
        _make_objects,
        _parse_objects,
        (
            f"{_KUBERNETES}.objects.translate",
            f"{_KUBERNETES}.objects.constraints",
            f"{_KUBERNETES}.objects.volumes",
            f"{_KUBERNETES}.objects.upstream_groups",
            f"{_KUBERNETES}.published.rebuild",
            f"{_KUBERNETES}.attempts.pod_attempt:placement_of",
            f"{_KUBERNETES}.attempts.pod_attempt:adopt",
            f"{_KUBERNETES}.attempts.pod_attempt:last_attempt",
            f"{_KUBERNETES}.published.marks:remembered",
        ),
    ),
    Target(
        "kubernetes-watch",
        _make_watch,
        _parse_watch,
        (f"{_KUBERNETES}.api_server.watch:Watch._take", f"{_KUBERNETES}.api_server.watch:Watch._change"),
    ),
    Target(
        "kubernetes-quantities",
        _make_quantities,
        _parse_quantities,
        (f"{_KUBERNETES}.objects.quantities:parse_quantity", f"{_KUBERNETES}.objects.quantities:amount"),
    ),
)
