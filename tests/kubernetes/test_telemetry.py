"""Real agents, frames, detectors and API server: a process becomes slow, and its gang is moved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.objects.translate import REQUIRED_TOPOLOGY, RESTARTABLE, TIME_LIMIT
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.verdict import Kind
from tests.kubernetes.bed import ControlPlane
from tests.kubernetes.harness import Api, Cluster, Running, needs_manager, running, wait_for
from tests.kubernetes.process_kubelet import COMMAND, Agents, ProcessKubelet
from tests.kubernetes.test_feedback import POLICY, node_state, taints
from tests.loop.disturbance import stopped_and_continued
from tests.ports import held_port

pytestmark = [
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_dp.py"
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
RANKS = 3


def newest_step(it: Running, gang: str) -> int:
    """Return the newest step that all ranks of the gang have finished, from the frames; 0 if there is none."""
    pace = it.controller.pace_of(gang)
    return 0 if pace is None or not len(pace.newest) else int(pace.newest[-1])


def test_a_slowed_process_is_found_by_its_agent_s_frames_and_its_gang_moves_away(
    access: Access, plane: ControlPlane, folder: Path, tmp_path: Path
) -> None:
    needs_manager(plane)
    environment = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held_port())}
    command = [
        sys.executable, str(EXAMPLE), "--steps", "100000", "--batch", "64", "--pace-seconds", "0.06",
        "--checkpoint", str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    policy = replace(POLICY, quarantine_seconds=8.0)
    with (
        Agents(folder, NODES) as agents,
        ProcessKubelet(access, agents, environment, tmp_path / "ranks.output") as kubelet,
        running(access, folder, policy, watching=True) as it,
    ):
        api = Api(access)
        cluster = Cluster(api)
        try:
            for number, name in enumerate(NODES):
                cluster.add_nodes(name, gpus=1, **{"topology.gangwatch.io/spine": f"s{number // RANKS}"})
            declared = {RESTARTABLE: "true", TIME_LIMIT: "36000", REQUIRED_TOPOLOGY: "spine"}
            cluster.add_job(
                "train",
                RANKS,
                gpus=1,
                annotations=declared,
                pod={"terminationGracePeriodSeconds": 10},
                pod_annotations={COMMAND: json.dumps(command)},
                backoffLimit=0,
            )
            wait_for("it runs", lambda: "train" in it.jobs() and it.jobs()["train"].state is JobState.RUNNING)
            job = it.jobs()["train"]
            places = cluster.nodes_of("train")
            slow = next(record.slot.node for record in job.ranks if record.rank == 1)
            wait_for("its steps are those of the gang", lambda: it.controller.speeds().get(job.job_id), 60)
            assert not [name for name in it.controller.speeds() if name.startswith("pod-")]
            wait_for("it has warmed up", lambda: newest_step(it, job.job_id) > 160, 90)
            with stopped_and_continued(kubelet.pid_on(slow)):
                wait_for("it is moved", lambda: it.jobs()["train"].attempt == 2, 90)
            cluster.add_gang("filler", RANKS - 1, gpus=1)
            wait_for("the node is tainted", lambda: "gangwatch.io/quarantine" in taints(cluster, slow))
            wait_for("it runs again", lambda: it.jobs()["train"].state is JobState.RUNNING)
            assert not set(places.values()) & set(cluster.nodes_of("train").values())
            wait_for("what it left is filled", lambda: cluster.bound("filler") == RANKS - 1)
            assert set(cluster.nodes_of("filler").values()) == set(places.values()) - {slow}
            found = it.controller.cycle.ask(lambda _: it.controller.store.entries_of(job.job_id)).result(30)
            named = [row.entry.text for row in found if row.entry.kind == "verdict"]
            assert any(f"rank 1 of {job.job_id} on {slow} is a {Kind.STRAGGLER.value}" in text for text in named)
            batch = api.get("/apis/batch/v1/namespaces/default/jobs/train")
            assert batch["status"].get("failed", 0) == 0
            wait_for("the node comes back", lambda: node_state(it, slow) is NodeState.HEALTHY)
            wait_for("and carries no taint", lambda: not taints(cluster, slow))
            wait_for("the training goes on", lambda: it.controller.speeds().get(job.job_id))
        finally:
            cluster.clear()
            api.close()
