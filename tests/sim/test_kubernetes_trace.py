"""Traces of pods, as `kubectl get pods` prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.schema.errors import TraceError
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulation import read_trace


def at(minute: int) -> str:
    return f"2026-11-29T10:{minute:02d}:00Z"


def pod(name: str, begin: int | None = 2, end: int | None = 12, gpus: int = 4, **more: Any) -> dict[str, Any]:
    """Return a pod that was created at minute 1. more: labels, annotations, owner, phase, spec, deleted."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-{name}{more.get('uid', '')}",
        "creationTimestamp": at(more.get("created", 1)),
        "labels": more.get("labels", {}),
        "annotations": more.get("annotations", {}),
    }
    if "owner" in more:
        kind, owner, uid = more["owner"]
        metadata["ownerReferences"] = [{"kind": kind, "name": owner, "uid": uid, "controller": True}]
    if "deleted" in more:
        metadata["deletionTimestamp"] = at(more["deleted"])
    status: dict[str, Any] = {"phase": more.get("phase", "Succeeded" if end is not None else "Running")}
    if begin is not None:
        status["startTime"] = at(begin)
    if end is not None:
        status["containerStatuses"] = [{"state": {"terminated": {"exitCode": 0, "finishedAt": at(end)}}}]
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}}
    spec = {"containers": [container], "nodeName": "n", **more.get("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def read(tmp_path: Path, *documents: Any, indent: int | None = 4) -> Trace:
    file = tmp_path / "pods.json"
    file.write_text("\n".join(json.dumps(one, indent=indent) for one in documents) + "\n")
    return read_trace(file, "kubernetes")


def listed(*pods: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(pods)}


JOB = ("Job", "train", "u1")


def test_the_pods_of_a_job_are_a_gang(tmp_path: Path) -> None:
    more: dict[str, Any] = {"owner": JOB, "labels": {"kueue.x-k8s.io/queue-name": "vision"}}
    trace = read(tmp_path, listed(pod("train-0", 2, 12, **more), pod("train-1", 3, 12, **more), pod("web", gpus=0)))
    [job] = trace.jobs
    assert (job.job_id, job.spec.ranks, job.spec.queue) == ("ml.train.job", 8, "vision")
    assert job.run_seconds == pytest.approx((10 * 4 + 9 * 4) / 8 * 60)
    assert job.submitted_ns == 1_795_946_460 * 10**9
    assert (job.spec.restartable, job.spec.preemptible, job.line) == (False, False, 1)


@pytest.mark.parametrize("indent", [None, 4])
def test_watch_events_have_deleted_pods_and_their_last_state(tmp_path: Path, indent: int | None) -> None:
    events = [
        {"type": "ADDED", "object": pod("a", None, None, phase="Pending")},
        {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}},
        {"type": "MODIFIED", "object": pod("a", 2, None)},
        {"type": "DELETED", "object": pod("a", 2, None, deleted=9)},
        {"type": "ADDED", "object": pod("b", 4, 5)},
    ]
    trace = read(tmp_path, *events, indent=indent)
    assert [(job.job_id, job.run_seconds) for job in trace.jobs] == [("ml.a.pod", 420.0), ("ml.b.pod", 60.0)]


def test_a_repeated_pod_counts_as_work_and_not_as_a_rank(tmp_path: Path) -> None:
    pods = (
        pod("t-0", 2, 12, 1, owner=JOB),
        pod("t-1", 2, 6, 1, owner=JOB, phase="Failed"),
        pod("t-1b", 6, 12, 1, owner=JOB, created=6),
    )
    [job] = read(tmp_path, listed(*pods)).jobs
    assert (job.spec.ranks, job.run_seconds) == (2, 600.0)


def test_a_later_job_of_the_same_name_is_another(tmp_path: Path) -> None:
    pods = (pod("t-0", 2, 3, 1, owner=JOB), pod("t-0", 8, 12, 1, owner=("Job", "train", "u2"), created=7, uid="2"))
    trace = read(tmp_path, listed(*pods))
    assert [(job.job_id, job.run_seconds) for job in trace.jobs] == [("ml.train.job", 60.0), ("ml.train.job#2", 240.0)]


def test_annotations_of_gangwatch_are_read(tmp_path: Path) -> None:
    ours = {"gangwatch.io/restartable": "true", "gangwatch.io/preemptible": "true", "gangwatch.io/workload": "bert"}
    spec = {"priority": 7, "activeDeadlineSeconds": 900, "nodeSelector": {"nvidia.com/gpu.product": "H200"}}
    labels = {"gangwatch.io/queue": "q", "scheduling.x-k8s.io/pod-group": "g"}
    [job] = read(tmp_path, pod("a", annotations=ours, labels=labels, spec=spec)).jobs
    got = job.spec
    assert (got.restartable, got.preemptible, got.workload, got.priority) == (True, True, "bert", 7)
    assert (got.time_limit_seconds, got.gpu_types, got.queue, job.job_id) == (900.0, ("H200",), "q", "ml.g.podgroup")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (pod("x", 2, None), "line 40: pod ml/x has not ended"),
        (pod("x", None, None, phase="Pending"), "pod ml/x is still pending"),
        (pod("x", None, 5, phase="Failed"), "no pod of it ever ran, so its run time is unknown"),
        (pod("x", 9, 5), "pod ml/x ended before it started"),
        (pod("x", 2, None, phase="Failed"), "pod ml/x has no time of its end"),
        (pod("x", annotations={"gangwatch.io/restartable": "maybe"}), "'maybe' is neither 'true' nor 'false'"),
        ({"kind": "Event", "metadata": {"name": "x"}}, "not a pod: its kind is 'Event'"),
        ({"kind": "Pod", "metadata": {"name": 3}}, "not a pod: Expected `str`, got `int`"),
        ({**pod("x"), "metadata": {"name": "x", "namespace": "ml"}}, "pod ml/x has no valid creationTimestamp"),
    ],
)
def test_pods_that_cannot_be_used_are_refused_with_the_reason(tmp_path: Path, bad: dict[str, Any], reason: str) -> None:
    trace = read(tmp_path, pod("good"), bad)
    assert len(trace.jobs) == 1
    [refused] = trace.refused
    assert reason in refused.reason and "line " in refused.reason


def test_a_malformed_number_of_gpus_is_refused(tmp_path: Path) -> None:
    bad = pod("x")
    bad["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "many"
    [refused] = read(tmp_path, pod("good"), bad).refused
    assert "ml/x: 'many' is not a quantity" in refused.reason


@pytest.mark.parametrize("text", ["", "name,gpus\na,1\n", '{"kind": "Pod",\n', "[1]\n", "\x00\xff"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pods.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match=r"not the JSON of `kubectl get pods -o json`|no job can be read"):
        read_trace(file, "kubernetes")


def test_a_file_cut_off_in_a_pod_says_where(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    whole = json.dumps(pod("a"), indent=4)
    file.write_text(f"{whole}\n{whole[: len(whole) // 2]}")
    with pytest.raises(TraceError, match=rf"line {len(whole.splitlines()) + 1}: not the JSON of"):
        read_trace(file, "kubernetes")
