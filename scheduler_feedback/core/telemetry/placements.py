"""Which ranks each node may report: the scheduler's placement, held against what agents send.

A frame is data from an untrusted node. An agent may report a rank of a gang only where the scheduler placed that rank
on the agent's node, in the attempt that runs. Names of gangs come from four places (agent/rank_attribution.py):

- the scheduler's own, such as ``j-000001``: only what the state holds is accepted;
- ``pod-UID``: a pod that this scheduler did not place; the backend says on which node it is;
- ``slurm-JOB.STEP``: Slurm says on which nodes the job runs, not which rank is where;
- ``uid-UID/NAME``: processes that nothing attests. Nobody placed them, so nobody can say on which nodes such a gang
  has ranks: each node's processes are a gang of their own.

One thread calls ``follow``; any thread may read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler_feedback.core.job import Job, RankRecord

OUTSIDE = ("pod-", "slurm-", "uid-")
"""How names begin that no scheduler of ours gives. Agents give them to pods, to steps of Slurm jobs, and to processes
that nothing attests."""

MOST_ENDED = 1 << 16
"""Ended attempts that are remembered, so that the last frames of an ended job are not mistaken for an attack."""


class Refusal(StrEnum):
    """Why a node may not report a rank. The value is the label ``reason`` of the metric."""

    NOT_PLACED = "not-placed"  # the gang runs on other nodes
    RANK = "rank"  # the gang runs here, this rank does not
    ATTEMPT = "attempt"  # the gang runs here, in another attempt
    ENDED = "ended"  # the attempt has ended; its agent's last frames say the rest
    UNKNOWN = "unknown"  # the scheduler knows no such gang
    NOT_KNOWN_YET = "not-known-yet"  # the scheduler may learn of it: records wait
    LIMIT = "limit"  # too many gangs or ranks that nobody placed


_DROPPED = "its records and series of them are dropped; gangwatch_watch_records_refused_total counts them"
REFUSED = {
    Refusal.NOT_PLACED: f"the agent reports ranks of a gang that runs on other nodes: {_DROPPED}",
    Refusal.RANK: f"the agent reports ranks of a gang that run on other nodes: {_DROPPED}",
    Refusal.ATTEMPT: f"the agent reports an attempt that the scheduler has not started: {_DROPPED}",
    Refusal.ENDED: f"the agent still reports an attempt that has ended: {_DROPPED}",
    Refusal.UNKNOWN: f"the agent reports a gang that the scheduler does not know: {_DROPPED}",
    Refusal.NOT_KNOWN_YET: "the agent reports a gang that the scheduler does not know yet",
    Refusal.LIMIT: f"the agent reports more gangs, ranks or events than one node may: {_DROPPED}",
}
"""Each reason for the log."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt of a gang on one node."""

    attempt: int
    """The attempt that runs, as the scheduler counts."""
    ranks: frozenset[int] | None
    """The ranks on this node; None where the scheduler does not know which of the gang's ranks are here. Then attempts
    are the launcher's count, which may be ahead of the scheduler's: one that starts ranks again by itself counts on."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The attempt of a job as it was last followed."""

    attempt: int
    ranks: list[RankRecord]
    nodes: Mapping[str, Placed]
    left: Mapping[str, Placed]
    """Where the attempt before this one was: its agents' last frames may still be on their way."""


Attest = Callable[[str, str, int], Placed | Refusal | None]
"""What a backend says of (node, gang) beyond the state; None: it has nothing to say. Called from any thread.

The third argument is when the report came, in monotonic nanoseconds: what the backend knew before that may be old.
"""

NOWHERE: Mapping[str, Placed] = {}


class Placements:
    """The placement of all gangs that hold slots, by node.

    attest: the backend's own knowledge of gangs that are named as in OUTSIDE.
    """

    def __init__(self, attest: Attest | None = None) -> None:
        self._attest = attest
        self._nodes: dict[str, Mapping[str, Placed]] = {}
        self._running: dict[str, _Running] = {}
        self._ended: OrderedDict[str, _Running] = OrderedDict()
        self._hosts: dict[str, str] = {}
        self._first = True

    # --- the scheduler's thread ---------------------------------------------------------------------------------------

    def follow(self, jobs: Iterable[Job]) -> None:
        """Take over the placement of all jobs that hold slots; every other placement has ended."""
        touched: dict[str, dict[str, Placed]] = {}
        holding: set[str] = set()
        first, self._first = self._first, False
        for job in jobs:
            if not job.state.holds_slots:
                if first and job.ranks:  # it ended before this process began
                    self._ended[job.job_id] = _Running(job.attempt, job.ranks, _nodes_of(job), NOWHERE)
                continue
            holding.add(job.job_id)
            known = self._running.get(job.job_id)
            # The cycle never changes a list of ranks in place: where it is the same object nothing has moved.
            if known is None or known.ranks is not job.ranks or known.attempt != job.attempt:
                self._place(job, known, touched)
        for gang in self._running.keys() - holding:
            known = self._ended[gang] = self._running.pop(gang)
            self._remove(gang, known, touched)
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
        for node, gangs in touched.items():
            if gangs:
                self._nodes[node] = gangs
            else:
                self._nodes.pop(node, None)

    def _place(self, job: Job, known: _Running | None, touched: dict[str, dict[str, Placed]]) -> None:
        nodes = _nodes_of(job)
        earlier = known or self._ended.pop(job.job_id, None)
        left = NOWHERE if earlier is None else earlier.left if earlier.nodes == nodes else earlier.nodes
        self._running[job.job_id] = _Running(job.attempt, job.ranks, nodes, left)
        if known is not None:
            if known.nodes == nodes:  # the backend has told the pids of ranks, which moves none
                return
            self._remove(job.job_id, known, touched)
        for node, placed in nodes.items():
            self._copy(node, touched)[job.job_id] = placed

    def _remove(self, gang: str, known: _Running, touched: dict[str, dict[str, Placed]]) -> None:
        for node in known.nodes:
            self._copy(node, touched).pop(gang, None)

    def _copy(self, node: str, touched: dict[str, dict[str, Placed]]) -> dict[str, Placed]:
        """The node's gangs, as a copy that may be changed: readers keep the mapping that they have."""
        if node not in touched:
            touched[node] = dict(self._nodes.get(node, NOWHERE))
        return touched[node]

    # --- any thread ---------------------------------------------------------------------------------------------------

    def of(self, node: str) -> Mapping[str, Placed]:
        """Gangs with ranks on the node. The same object until that changes."""
        return self._nodes.get(node, NOWHERE)

    def claim(self, node: str, gang: str, came_ns: int) -> Placed | Refusal | None:
        """What the node may report of the gang; None: nobody placed it, and the node may report its own part of it.

        came_ns: when the report came, monotonic.
        """
        if self._attest is not None and (said := self._attest(node, gang, came_ns)) is not None:
            return said
        placed = self.of(node).get(gang)
        if placed is not None:
            return placed
        if (known := self._running.get(gang) or self._ended.get(gang)) is not None:
            was_here = node in known.left or node in known.nodes
            return Refusal.ENDED if was_here else Refusal.NOT_PLACED
        return None if gang.startswith(OUTSIDE) else Refusal.UNKNOWN

    def reached(self, node: str, host: str) -> None:
        """The node's agent was reached at this address."""
        self._hosts[node] = host

    def same_host(self, one: str, other: str) -> bool:
        """Whether the agents of both nodes are reached at one address. True where that is not known of either."""
        return self._hosts.get(one, "") == self._hosts.get(other, "")


def _nodes_of(job: Job) -> dict[str, Placed]:
    """The job's newest attempt, by node."""
    here: dict[str, set[int]] = {}
    for rank in job.ranks:
        here.setdefault(rank.slot.node, set()).add(rank.rank)
    return {node: Placed(job.attempt, frozenset(ranks)) for node, ranks in here.items()}
