"""Facts: all inputs of the oracle. Times are seconds; `wall` is the time of day, `fair` is the harness's.

A fair second is one in which the machine let processes run and the harness disturbed no daemon. Durations are measured
in fair seconds, so that an overloaded machine excuses lateness and nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]
HOLDING = ("starting", "running", "stopping")
ENDED = ("completed", "failed", "cancelled")
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment. wall: seconds since 1970. fair: fair seconds since the day began."""

    wall: float
    fair: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A violated check. check: the check's name. subject: job, node or daemon. text: the contradiction."""

    check: str
    subject: str
    text: str
    wall: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """A state that must not last. patience: fair seconds for which it may; 0: not at all."""

    check: str
    subject: str
    text: str
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """An accepted job. members: ids of its jobs (several of an array). request: the submitted request.

    fails: whether its program ends with a code other than 0. starts: False if its program does not exist.
    command: its command line, which the API shows to the job's user and to operators only.
    """

    job: str
    members: tuple[str, ...]
    request: Document
    asked: float
    accepted: float
    fails: bool = False
    starts: bool = True
    command: str = ""


@dataclass(slots=True)
class RankLife:
    """One rank's own record of one attempt. code: None until it has recorded its end."""

    job: str
    attempt: int
    rank: int
    size: int
    node: str
    pid: int
    started: float
    ended: float | None = None
    code: int | None = None
    terminated: float | None = None
    starts: int = 1
    parent: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A live process of a job. leader: it is a rank itself, and no child of one. waited: seconds for which it was
    runnable and did not run; ran: seconds of CPU time (both since it began)."""

    pid: int
    job: str
    attempt: int
    rank: int
    node: str
    leader: bool
    created: float
    status: str = ""
    ran: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """The jobs' live processes, all of them alive at `at`. daemons: pid by name."""

    at: Instant
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """A response of the API. jobs: every job by id, of one moment between begun and ended. nodes: by name."""

    begun: Instant
    ended: Instant
    jobs: dict[str, Document]
    nodes: dict[str, Document] = field(default_factory=dict)
    queue: Document = field(default_factory=dict)
    verdicts: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """Jobs or nodes as the command line or the page shows them. source: which of the two. fields: by job or
    'node:NAME'."""

    source: str
    begun: Instant
    ended: Instant
    fields: dict[str, Document]


@dataclass(slots=True)
class Command:
    """A user's request that gangwatch accepted. word: cancel, freeze, thaw, maintenance, quarantine, release, reload.
    target: job or node, '' for the cluster."""

    word: str
    target: str
    asked: float
    accepted: float
    fair: float = 0.0


@dataclass(slots=True)
class Disturbance:
    """A disturbance of one rank by the harness. kind: stopped, held (stopped and continued alternately), outspun,
    killed.

    expected: fair seconds within which a verdict must name it; None: none is demanded. until: its end. found: fair time
    at which the right verdict was first seen. before: by rank, the wall time and the seconds waited for a processor
    when the disturbance was first seen. restarts: whether the gang must be restarted after the verdict.
    """

    kind: str
    job: str
    attempt: int
    rank: int
    node: str
    began: float
    fair: float
    until: float = FOREVER
    expected: float | None = None
    found: float | None = None
    before: dict[int, tuple[float, float]] = field(default_factory=dict)
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Outage:
    """An agent killed or stopped by the harness between these wall times: the node does not report then and shortly
    after."""

    node: str
    began: float
    until: float


@dataclass(slots=True)
class Daemon:
    """A daemon process. touched: wall time at which the harness last killed it, or asked it to end."""

    name: str
    pid: int
    created: float
    touched: float | None = None


@dataclass(slots=True)
class Facts:
    """All facts. queues: the policy's queues by name, as configured now. policy: its other keys.

    policy_settled: False while a user changes the configuration.
    """

    submissions: dict[str, Submission] = field(default_factory=dict)
    owner_of: dict[str, Submission] = field(default_factory=dict)
    lives: dict[tuple[str, int, int], RankLife] = field(default_factory=dict)
    table: Table | None = None
    reading: Reading | None = None
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=600))
    statements: list[Statement] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    daemons: dict[int, Daemon] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    queues: dict[str, Document] = field(default_factory=dict)
    policy: Document = field(default_factory=dict)
    policy_settled: bool = True

    def submitted(self, submission: Submission) -> None:
        """Record an accepted submission."""
        self.submissions[submission.job] = submission
        for member in submission.members:
            self.owner_of[member] = submission

    def attempt_lives(self, job: str, attempt: int) -> list[RankLife]:
        """Return the records of one attempt's ranks."""
        return [life for (name, number, _), life in self.lives.items() if name == job and number == attempt]

    def cancelled(self, job: str) -> Command | None:
        """Return the first accepted cancel of the job or of its array."""
        owner = self.owner_of.get(job)
        names = {job, owner.job if owner else job}
        return next((one for one in self.commands if one.word == "cancel" and one.target in names), None)

    def took(self, words: tuple[str, ...], target: str = "") -> list[Command]:
        """Return the accepted commands of these words about the target, in order."""
        return [one for one in self.commands if one.word in words and one.target == target]
