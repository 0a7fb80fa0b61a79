"""Ranks that each node may report, according to the scheduler's placement.

A frame is data from an untrusted node. An agent may report a rank of a gang only if the scheduler placed that rank on
the agent's node, in the running attempt. There are four types of gang names (agent/rank_attribution.py):

- names of this scheduler, such as ``j-000001``: accepted only if the state contains them;
- ``pod-UID``: a pod that this scheduler did not place; the backend knows its node;
- ``slurm-JOB.STEP``: Slurm knows the nodes of the job, but not the node of each rank;
- ``uid-UID/NAME``: processes without any attestation. No scheduler placed them, so each node's processes are a separate
    gang.

One thread calls ``follow``; any thread may read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler_feedback.core.job import Job, RankRecord

OUTSIDE = ("pod-", "slurm-", "uid-")
"""Prefixes of names that this scheduler does not assign. Agents assign them to pods, to steps of Slurm jobs, and to
processes without attestation."""

MOST_ENDED = 1 << 16
"""Maximum number of ended attempts that are kept, so that the last frames of an ended job are not reported as an
attack."""


class Refusal(StrEnum):
    """Reason why a node may not report a rank. The value is the label ``reason`` of the metric."""

    NOT_PLACED = "not-placed"  # the gang runs on other nodes
    RANK = "rank"  # the gang runs on this node, but this rank does not
    ATTEMPT = "attempt"  # the gang runs on this node, in another attempt
    ENDED = "ended"  # the attempt has ended; these are its agent's last frames
    UNKNOWN = "unknown"  # the scheduler has no such gang
    NOT_KNOWN_YET = "not-known-yet"  # the scheduler may still learn of the gang: its records wait
    LIMIT = "limit"  # too many gangs or ranks without a placement


_DROPPED = "these records and series are dropped; gangwatch_watch_records_refused_total counts them"
REFUSED = {
    Refusal.NOT_PLACED: f"the agent reports ranks of a gang that runs on other nodes: {_DROPPED}",
    Refusal.RANK: f"the agent reports ranks of a gang that run on other nodes: {_DROPPED}",
    Refusal.ATTEMPT: f"the agent reports an attempt that the scheduler has not started: {_DROPPED}",
    Refusal.ENDED: f"the agent still reports an attempt that has ended: {_DROPPED}",
    Refusal.UNKNOWN: f"the agent reports a gang that the scheduler does not know: {_DROPPED}",
    Refusal.NOT_KNOWN_YET: "the agent reports a gang that the scheduler does not know yet",
    Refusal.LIMIT: f"the agent reports more gangs, ranks or events than one node may: {_DROPPED}",
}
"""Log message for each reason."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt of a gang on one node."""

    attempt: int
    """The running attempt, as the scheduler counts."""
    ranks: frozenset[int] | None
    """The ranks on this node; None if unknown to the scheduler. The attempt number in reports is then the launcher's
    count. It may be ahead of the scheduler's, because a launcher may restart ranks without the scheduler."""


@dataclass(frozen=True, slots=True)
class _Running:
    """The running attempt of a job as of the last call of ``follow``."""

    attempt: int
    ranks: list[RankRecord]
    nodes: Mapping[str, Placed]
    left: Mapping[str, Placed]
    """Previous placement of the job. It is kept because the last frames of its agents may still arrive."""


Attest = Callable[[str, str, int], Placed | Refusal | None]
"""Function (node, gang, time) that returns the backend's decision about a gang without a placement in the state.

The time is that of the report, in monotonic nanoseconds; backend data from before that time may be outdated. The
function returns None if the backend has no decision. It may be called from any thread.
"""

News = Callable[[str], object]
"""Function (node) that returns an object that identifies the data on which ``Attest`` decides about the node's reports:
another after each change.

While it is the same object, a report of the node that was accepted is accepted again. None: ask ``Attest`` each time.
It may be called from any thread.
"""

NOWHERE: Mapping[str, Placed] = {}


class Placements:
    """Placement of all gangs that hold slots, by node.

    attest: function that returns the backend's decision about gangs with a prefix of OUTSIDE.
    news: function that returns an object that identifies the data of these decisions about a node.
    """

    def __init__(self, attest: Attest | None = None, news: News = lambda _node: None) -> None:
        self._attest = attest
        self.news = news
        self._nodes: dict[str, Mapping[str, Placed]] = {}
        self._running: dict[str, _Running] = {}
        self._ended: OrderedDict[str, _Running] = OrderedDict()
        self._hosts: dict[str, str] = {}
        self._first = True

    # --- the scheduler's thread ---------------------------------------------------------------------------------------

    def follow(self, jobs: Iterable[Job]) -> None:
        """Replace the placement with that of all jobs that hold slots. Every other placement has ended."""
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
            # The cycle never changes a list of ranks in place: the same object means that no rank has moved.
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
            if known.nodes == nodes:  # the backend reported pids of ranks; no rank moved
                return
            self._remove(job.job_id, known, touched)
        for node, placed in nodes.items():
            self._copy(node, touched)[job.job_id] = placed

    def _remove(self, gang: str, known: _Running, touched: dict[str, dict[str, Placed]]) -> None:
        for node in known.nodes:
            self._copy(node, touched).pop(gang, None)

    def _copy(self, node: str, touched: dict[str, dict[str, Placed]]) -> dict[str, Placed]:
        """Return a copy of the node's gangs, which the caller may change. Readers may still use the original mapping,
        so it is not changed."""
        if node not in touched:
            touched[node] = dict(self._nodes.get(node, NOWHERE))
        return touched[node]

    # --- any thread ---------------------------------------------------------------------------------------------------

    def of(self, node: str) -> Mapping[str, Placed]:
        """Return the gangs with ranks on the node. Returns the same object until these gangs change."""
        return self._nodes.get(node, NOWHERE)

    def claim(self, node: str, gang: str, came_ns: int) -> Placed | Refusal | None:
        """Return what the node may report of the gang, or why it may report nothing.

        None: the gang has no placement, and the node may report its own part of the gang. came_ns: monotonic time of
        the report.
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
        """Record the address at which the node's agent was reached."""
        self._hosts[node] = host

    def same_host(self, one: str, other: str) -> bool:
        """Return whether the agents of both nodes have the same address; True if neither address is known."""
        return self._hosts.get(one, "") == self._hosts.get(other, "")


def _nodes_of(job: Job) -> dict[str, Placed]:
    """Return the placement of the job's newest attempt, by node."""
    here: dict[str, set[int]] = {}
    for rank in job.ranks:
        here.setdefault(rank.slot.node, set()).add(rank.rank)
    return {node: Placed(job.attempt, frozenset(ranks)) for node, ranks in here.items()}
