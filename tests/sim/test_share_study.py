"""The study of placement rules for shares of GPUs, on a part of the OpenB cluster and on small files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.schema.errors import TraceError
from scheduler_feedback.policies.shares.gpu_room import Request, Room
from scheduler_feedback.sim.studies.share_study import arrivals, cluster_of, fill, tasks_of
from tests import needs

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_the_published_order_of_rules_on_a_part_of_openb() -> None:
    tasks = tasks_of(needs.data("jobs", "openb-pods.csv"))
    nodes = cluster_of(needs.data("jobs", "openb-gpu-nodes.csv"))
    assert (len(tasks), len(nodes)) == (8152, 1213)
    assert sum(room.total_milli for room in nodes.values()) == 6_212_000
    # A tenth of both, so that the proportions of types and requests remain.
    part = {name: room for number, (name, room) in enumerate(nodes.items()) if number % 10 == 3}
    left = {
        rule: 1 - fill(rule, part, tasks[::10], 43).allocated
        for rule in ("random", "best-fit", "fgd", "least-fragmentation", "whole-gpus")
    }
    # Published for the whole cluster: 0.125, 0.069, 0.046.
    assert max(left["fgd"], left["least-fragmentation"]) < 0.85 * left["best-fit"] < 0.8 * left["random"]
    assert left["whole-gpus"] > left["random"]


def test_a_run_is_the_same_again_and_counts_its_tasks() -> None:
    nodes = {f"n{number}": Room((1000, 1000), 8000, 1000) for number in range(4)}
    tasks = [Request(1, 400, 1000), Request(1, 1000, 1000), Request(2)]
    first = fill("least-fragmentation", nodes, tasks, 7, arrived=2.0)
    assert fill("least-fragmentation", nodes, tasks, 7, arrived=2.0) == first
    assert 0 < first.dropped < first.tasks and 0.5 < first.allocated <= 1.0
    assert first.at_capacity <= first.allocated


def test_tasks_arrive_until_they_request_the_given_part_of_the_cluster() -> None:
    tasks = [Request(1, 500), Request(1), Request(0, cpu_milli=1)]
    for arrived in (0.5, 1.3):
        total = sum(task.total_milli for task in arrivals(tasks * 20, 50_000, 3, arrived))
        assert arrived * 50_000 - 1000 < total <= arrived * 50_000
    assert arrivals(tasks * 20, 50_000, 3) != arrivals(tasks * 20, 50_000, 4)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,1,1,2,500,", "line 2: 2 GPUs with gpu_milli 500; a share is of one GPU"),
        ("a,1,1,1,1500,", "line 2: gpu_milli is 1500"),
        ("a,1,1,x,1000,", "line 2, column num_gpu"),
        ("a,1,1,1", "line 2"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(PODS + line + "\n")
    with pytest.raises(TraceError, match=reason):
        tasks_of(path)


def test_types_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(PODS + "a,1000,5,1,460,V100M16|V100M32\nb,2000,6,0,0,\n")
    assert tasks_of(path) == [Request(1, 460, 1000, 5, ("V100M16", "V100M32")), Request(0, 1000, 2000, 6)]
    path.write_text(PODS)
    with pytest.raises(TraceError, match="contains no task"):
        tasks_of(path)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("n0,1000,1,1000000000,T4\n", "line 2, column gpu: 1000000000 GPUs; at most 1024"),
        ("n0,1000,1,-1,T4\n", "line 2, column gpu"),
        ("", "contains no node"),
    ],
)
def test_a_wrong_node_is_named(tmp_path: Path, lines: str, reason: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + lines)
    with pytest.raises(TraceError, match=reason):
        cluster_of(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("n1,1,1,1,A", "line 3, column sn: 'n1' is listed twice"), (",1,1,1,A", "line 3, column sn: is missing")],
)
def test_a_node_needs_a_name_of_its_own(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(f"sn,cpu_milli,memory_mib,gpu,model\nn1,1,1,1,A\n{line}\n")
    with pytest.raises(TraceError, match=re.escape(reason)):
        cluster_of(file)
