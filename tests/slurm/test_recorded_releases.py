"""Jobs and nodes of Slurm 23.11 to 25.11, as these releases print them (``recorded/README.md`` names the sources).

Of 23.11 there is one running job, and no nodes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler_feedback.backends.slurm.parsing import parse_json
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode

RECORDED = Path(__file__).with_name("recorded")
RELEASES = ("23.11", "24.05", "24.11", "25.05", "25.11")
WITH_NODES = RELEASES[1:]


def jobs_of(release: str) -> dict[int, SlurmJob]:
    found = parse_json.jobs((RECORDED / release / "jobs.json").read_bytes())
    assert not found.refused
    return dict(found.records)


def nodes_of(release: str) -> dict[str, SlurmNode]:
    found = parse_json.nodes((RECORDED / release / "nodes.json").read_bytes(), "scontrol show nodes --json")
    assert not found.refused
    return dict(found.records)


@pytest.mark.parametrize("release", RELEASES)
def test_the_documents_are_of_the_release_s_own_data_parser(release: str) -> None:
    parser = {"23.11": "40", "24.05": "41", "24.11": "42", "25.05": "43", "25.11": "44"}[release]
    for name in ("jobs", "nodes") if release in WITH_NODES else ("jobs",):
        meta = json.loads((RECORDED / release / f"{name}.json").read_text())["meta"]
        assert meta["plugin"]["data_parser"] == f"data_parser/v0.0.{parser}"
        assert meta["slurm"]["release"].startswith(release)


@pytest.mark.parametrize(
    ("release", "number", "nodes", "minutes", "started"),
    [
        ("23.11", 6080221, ("cma2-02",), 11520, 1711534808),
        ("24.05", 649722, ("cn001",), 2, 1747754478),
        ("24.11", 6360, ("cn1",), 2, 1762788771),
        ("25.05", 4734, ("cn1", "cn2", "cn3"), 2, 1762789002),
        ("25.11", 5745, ("cn1",), 2, 1762942469),
    ],
)
def test_a_running_job(release: str, number: int, nodes: tuple[str, ...], minutes: int, started: int) -> None:
    job = jobs_of(release)[number]
    assert (job.state, job.runs, job.completing, job.nodes) == ("RUNNING", True, False, nodes)
    assert (job.time_limit_seconds, job.started_seconds, job.restarts) == (minutes * 60, started, 0)
    assert (job.batch, job.requeue, job.held, job.reason) == (True, True, False, "")
    assert job.gpus == ((),) * len(nodes), "these clusters run jobs without GPUs"


@pytest.mark.parametrize(
    ("release", "number", "reason", "nodes"),
    [
        ("24.05", 649730, "BeginTime", 1),
        ("24.11", 6369, "Resources", 1),
        ("25.05", 4741, "Resources", 1),
        ("25.11", 5750, "BeginTime", 2),
    ],
)
def test_a_pending_job(release: str, number: int, reason: str, nodes: int) -> None:
    job = jobs_of(release)[number]
    assert (job.state, job.nodes, job.reason, job.least_nodes) == ("PENDING", (), reason, nodes)
    assert (job.started_seconds, job.held, job.waits_for_room) == (0.0, False, reason == "Resources")
    assert job.begins_seconds > 0 and job.submitted_seconds > 0


@pytest.mark.parametrize(
    ("release", "ends"),
    [
        ("24.05", {649717: ("TIMEOUT", 143), 649718: ("COMPLETED", 0), 649719: ("FAILED", 1)}),
        ("24.11", {6355: ("CANCELLED", 143), 6357: ("TIMEOUT", 143), 6358: ("COMPLETED", 0), 6359: ("FAILED", 1)}),
        ("25.05", {4728: ("CANCELLED", 143), 4730: ("TIMEOUT", 143), 4731: ("COMPLETED", 0), 4732: ("FAILED", 1)}),
        ("25.11", {5736: ("CANCELLED", 143), 5737: ("TIMEOUT", 143), 5738: ("COMPLETED", 0), 5739: ("FAILED", 1)}),
    ],
)
def test_ended_jobs_and_their_exit_codes(release: str, ends: dict[int, tuple[str, int]]) -> None:
    """Signal 15 is shown as 128 + 15, as a shell does."""
    jobs = jobs_of(release)
    assert {number: (jobs[number].state, jobs[number].exit_code) for number in ends} == ends


@pytest.mark.parametrize(
    ("release", "number", "gpus"),
    [
        ("24.11", 6355, 1),  # gres/gpu:1 of the job
        ("24.11", 6356, 2),  # gres/gpu:h100:1,gres/gpu:h200:1 of each node
        ("25.05", 4728, 4),  # gres/gpu:4 of each node
        ("25.05", 4729, 1),  # gres/gpu:h100:1 of the job
        ("25.11", 5736, 4),
    ],
)
def test_requested_gpus(release: str, number: int, gpus: int) -> None:
    assert jobs_of(release)[number].gpus_wanted == gpus


@pytest.mark.parametrize("release", WITH_NODES[1:])
def test_broken_and_drained_nodes_have_their_reason(release: str) -> None:
    nodes = nodes_of(release).values()
    drained = [node for node in nodes if node.drained]
    assert [node.reason for node in drained] == ["ECC memory error"]
    assert [node.reason for node in nodes if "DOWN" in node.states] == ["CPU dead"]


@pytest.mark.parametrize(
    ("release", "node", "gpus", "gpu_type", "partition"),
    [
        ("24.05", "cn001", 0, "", "batch"),
        ("24.11", "ia1", 6, "", "ia"),  # two H100 and four H200
        ("25.05", "gpu2", 4, "h100", "gpu"),
        ("25.11", "gpu1", 4, "h100", "gpu"),
        ("25.11", "gpu3", 4, "", "gpu"),
    ],
)
def test_gpus_of_nodes(release: str, node: str, gpus: int, gpu_type: str, partition: str) -> None:
    found = nodes_of(release)[node]
    assert (found.gpus, found.gpu_type, found.partitions, found.weight) == (gpus, gpu_type, (partition,), 1)
