"""Kubernetes: past gangs from their pods, of any scheduler, as kubectl prints them::

    kubectl get pods -A -o json > pods.json                                           pods that still exist
    kubectl get pods -A -o json --watch --output-watch-events > events.json           also those deleted meanwhile

A file has one or more JSON objects: lists, pods, or watch events (the API's JSON lines too). The last state of a pod
counts. Pods form gangs as in the advising mode (backends/kubernetes/objects/other_schedulers.py). Pods without a GPU
do not count. Source of the fields: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/

========== ===========================================================================================================
submitted  creation of the gang's first pod
GPUs       largest number that its pods held at the same time, from status.startTime to the end
run time   GPU-seconds of its pods, divided by that number, so that repeated pods count as work
end        of a pod: its last container's finishedAt, or metadata.deletionTimestamp if it was deleted while it ran
queue      gangwatch.io/queue, or the queue of KAI, Kueue or Volcano, else the namespace
consent    annotations gangwatch.io/restartable and preemptible; without them a gang is neither
========== ===========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import BackendError, TraceError
from scheduler_feedback.backends.kubernetes.objects.annotations import flag_of
from scheduler_feedback.backends.kubernetes.objects.objects import Part, Pod
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import gang_of, queue_of
from scheduler_feedback.backends.kubernetes.objects.translate import (
    PREEMPTIBLE,
    QUEUE,
    RESTARTABLE,
    WORKLOAD,
    TopologyLabels,
    slots_of,
    wall_ns,
)
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect

MOST_BYTES = 1 << 30
"""Largest JSON object in a file, in bytes: a list of 100,000 pods."""

_LISTS = frozenset({"List", "PodList"})
_EVENTS = frozenset({"ADDED", "MODIFIED", "DELETED"})
_document = msgspec.json.Decoder(dict[str, Any])


class _Terminated(Part):
    finished_at: str = ""


class _State(Part):
    terminated: _Terminated | None = None


class _Container(Part):
    state: _State = msgspec.field(default_factory=_State)


class _Status(Part):
    container_statuses: list[_Container] | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last known state of a pod."""

    line: int
    pod: Pod
    deleted: bool
    finished: tuple[str, ...]
    """End of each container that has ended."""


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    pods: dict[str, _Seen] = {}
    refused: list[Refused] = []
    for line, document in _documents(path):
        for deleted, raw in _pods_in(document):
            try:
                seen = _seen(line, deleted, raw)
            except (msgspec.ValidationError, ValueError) as error:
                refused.append(Refused("", line, f"line {line}: not a pod: {error}"))
                continue
            if seen is not None:
                pods[seen.pod.metadata.uid or seen.pod.metadata.key] = seen
    gangs: dict[str, list[_Seen]] = {}
    for seen in pods.values():
        gangs.setdefault(_gang_key(seen.pod), []).append(seen)
    jobs = (_job(name.partition("#")[0], sorted(members, key=_created_ns)) for name, members in gangs.items())
    return collect(str(path), [*refused, *_distinct(jobs)], ("the run time of a gang is that of its GPUs",))


# --- the file --------------------------------------------------------------------------------------------------------


def _documents(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (first line, JSON object) of each object. Raises TraceError if the file is something else.

    kubectl indents its objects, so that one ends with the line `}`; those of the API have one line each.
    """
    begun, parts, size = 1, list[bytes](), 0
    try:
        with path.open("rb") as file:
            for line, text in enumerate(file, 1):
                if not parts:
                    begun, text = line, text.removeprefix(b"\xef\xbb\xbf")
                    if not text.strip():
                        continue
                parts.append(text)
                size += len(text)
                if size > MOST_BYTES:
                    raise TraceError(f"{path}: line {begun}: an object is larger than {MOST_BYTES >> 20} MiB")
                if text.startswith(b"}") or (len(parts) == 1 and text.rstrip().endswith(b"}")):
                    yield begun, _decoded(path, begun, b"".join(parts))
                    parts, size = [], 0
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    if parts:
        yield begun, _decoded(path, begun, b"".join(parts))


def _decoded(path: Path, line: int, data: bytes) -> dict[str, Any]:
    try:
        return _document.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: line {line}: not the JSON of `kubectl get pods -o json`: {error}") from error


def _pods_in(document: dict[str, Any]) -> Iterator[tuple[bool, Any]]:
    """Yield (whether it was deleted, pod) for each pod of a list, a watch event or a pod."""
    kind, event = str(document.get("kind")), str(document.get("type"))
    if kind in _LISTS:
        items = document.get("items")
        yield from ((False, item) for item in (items if isinstance(items, list) else ()))
    elif event in _EVENTS:
        yield event == "DELETED", document.get("object")
    elif event != "BOOKMARK":
        yield False, document


def _seen(line: int, deleted: bool, raw: Any) -> _Seen | None:
    """Return the state of a pod with GPUs; None for other pods. Raises ValueError."""
    kind = raw.get("kind", "Pod") if isinstance(raw, dict) else "no object"
    if kind != "Pod":
        raise ValueError(f"its kind is {str(kind)[:40]!r}")
    pod = msgspec.convert(raw, Pod)
    status = msgspec.convert(raw.get("status", {}), _Status)
    try:
        if not slots_of(pod):
            return None
    except BackendError as error:
        raise ValueError(f"{pod.metadata.key}: {error}") from error
    ends = (one.state.terminated for one in status.container_statuses or ())
    return _Seen(line, pod, deleted, tuple(one.finished_at for one in ends if one is not None and one.finished_at))


# --- gangs -----------------------------------------------------------------------------------------------------------


def _gang_key(pod: Pod) -> str:
    """Return the name of the pod's gang. A later owner of the same name is another gang."""
    name, owner = gang_of(pod), pod.owner
    if owner is not None and name.endswith(f".{owner.name}.{owner.kind.lower()}"):
        return f"{name}#{owner.uid}"
    return f"{name}#{pod.metadata.uid}" if name.endswith(f".{pod.metadata.name}.pod") else name


def _distinct(jobs: Iterator[TraceJob | Refused]) -> Iterator[TraceJob | Refused]:
    """Number the later ones of several jobs with the same id."""
    count: dict[str, int] = {}
    for job in jobs:
        number = count[job.job_id] = count.get(job.job_id, 0) + 1
        if isinstance(job, TraceJob) and number > 1:
            name = f"{job.job_id}#{number}"
            yield TraceJob(name, job.line, job.submitted_ns, job.run_seconds, job.spec)
        else:
            yield job


def _job(name: str, members: Sequence[_Seen]) -> TraceJob | Refused:
    first = members[0]
    try:
        held = [interval for seen in members if (interval := _held(seen)) is not None]
        if not held:
            raise ValueError("no pod of it ever ran, so its run time is unknown")
        declared = first.pod.metadata
        ranks = _most_at_once(held)
        kind = (first.pod.spec.node_selector or {}).get(TopologyLabels().gpu_type)
        spec = JobSpec(
            name,
            SIMULATED_COMMAND,
            ranks,
            queue=declared.label(QUEUE) or queue_of(first.pod) or declared.namespace or "default",
            workload=declared.annotation(WORKLOAD),
            time_limit_seconds=float(first.pod.spec.active_deadline_seconds or 0) or None,
            restartable=flag_of(declared, RESTARTABLE),
            preemptible=flag_of(declared, PREEMPTIBLE),
            priority=max(seen.pod.spec.priority for seen in members),
            gpu_types=(kind,) if kind else (),
        )
    except (ValueError, BackendError) as error:
        return Refused(name, first.line, f"line {first.line}: {error}")
    work_ns = sum(count * (end - begin) for begin, end, count in held)
    return TraceJob(name, first.line, _created_ns(first), work_ns / ranks / 1e9, spec)


def _created_ns(seen: _Seen) -> int:
    return wall_ns(seen.pod.metadata.creation_timestamp)


def _held(seen: _Seen) -> tuple[int, int, int] | None:
    """Return (begin, end, GPUs) of the time that the pod held GPUs, in nanoseconds; None if it never started.

    Raises ValueError if it has not ended.
    """
    pod = seen.pod
    key = pod.metadata.key
    if not _created_ns(seen):
        raise ValueError(f"pod {key} has no valid creationTimestamp")
    begin = wall_ns(pod.status.start_time)
    if not begin:
        if pod.over or seen.deleted:
            return None
        raise ValueError(f"pod {key} is still pending")
    if pod.over and seen.finished:
        end = max(map(wall_ns, seen.finished))
    elif pod.over or seen.deleted:
        end = wall_ns(pod.metadata.deletion_timestamp or "") or max(map(wall_ns, seen.finished), default=0)
    else:
        raise ValueError(f"pod {key} has not ended")
    if not end:
        raise ValueError(f"pod {key} has no time of its end")
    if end < begin:
        raise ValueError(f"pod {key} ended before it started")
    return begin, end, slots_of(pod)


def _most_at_once(held: Sequence[tuple[int, int, int]]) -> int:
    """Return the largest number of GPUs held at the same time. A pod that starts when another ends replaces it."""
    changes = sorted(change for begin, end, count in held for change in ((begin, count), (end, -count)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return max(most, max(count for _, _, count in held))
