"""Backends that decide which ranks a node may report, for the comparison of kept decisions with repeated ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.ingest.frames import GPUS, Agents
from benchmarks.ingest.frames import Job as Simulated
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.telemetry.placements import Placed, Placements
from tests.kubernetes.makers import pod

ACCEPTED = object()
"""Data of a backend that accepts every report. It never changes."""


class Decisions:
    """A backend's decisions. `placements` is for the fleet; `moved` is called for each pod that moves."""

    def __init__(self, kubernetes: bool, repeated: bool, agents: Agents, simulated: Sequence[Simulated]) -> None:
        """Create the decisions about the nodes of these agents.

        kubernetes: decide with an informer cache, and with jobs that the scheduler has placed, as its backend does; if
        not, accept every report. repeated: decide again for each report, as without `Backend.attest_data`. If not, a
        decision is kept until a pod moves, which the backend of Slurm does, and that of Kubernetes did.
        """
        self._data = object()
        self._cache = InformerCache("gangwatch", TopologyLabels()) if kubernetes else None
        self._pods: list[Pod] = []
        if (cache := self._cache) is None:
            self.placements = Placements(
                lambda _node, _gang, _at_ns: Placed(1, None), _news(lambda _node: self._data, repeated)
            )
            return
        self.placements = Placements(
            lambda node, gang, _at_ns: cache.attest(node, gang), _news(lambda _node: self._data, repeated)
        )
        for index in range(len(simulated)):
            made = pod(f"rank-{index}", GPUS, nodeName=agents.names[index])
            cache.pod_changed(made.metadata.key, None, made)
            self._pods.append(made)
        self.placements.follow(_placed(agents, simulated))

    def moved(self) -> None:
        """Let a pod of another job end, and its replacement be bound: the data of all decisions change."""
        if self._cache is not None:
            made = self._pods[0]
            self._cache.pod_changed(made.metadata.key, made, None)
            self._cache.pod_changed(made.metadata.key, None, made)
        self._data = object()


def _news(news: Callable[[str], object], repeated: bool) -> Callable[[str], object]:
    return (lambda _node: None) if repeated else news


def _placed(agents: Agents, simulated: Sequence[Simulated]) -> list[Job]:
    """Return the simulated jobs as running jobs of the scheduler, with eight ranks on each of their nodes."""
    jobs: dict[str, Job] = {}
    for index, one in enumerate(simulated):
        job = jobs.get(one.name)
        if job is None:
            job = jobs[one.name] = Job(one.name, JobSpec(one.name, ("train",), GPUS), JobState.RUNNING, 0, attempt=1)
            job.ranks = []
        job.ranks += [RankRecord(one.first_rank + gpu, Slot(agents.names[index], gpu)) for gpu in range(GPUS)]
    return list(jobs.values())
