"""Facts: all inputs of the checks.

Times are wall times (`wall`, seconds since 1970) or fair times (`fair`). Fair time counts only while the machine is
not overloaded and the test keeps no daemon down. Time limits are in fair seconds.
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
    """A point in time. wall: seconds since 1970. fair: fair seconds since the start of the day."""

    wall: float
    fair: float


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed check. check: its name. subject: job, node or daemon. text: the contradiction."""

    check: str
    subject: str
    text: str
    wall: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """A possible failure: a wrong state that is tolerated for some time. patience: this time in fair seconds."""

    check: str
    subject: str
    text: str
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """One accepted job. members: ids of its jobs (several for an array). request: the submitted request.

    fails: whether its program ends with a code other than 0. starts: False if its program does not exist. command:
    its command line.
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
    """A rank's own record of one attempt. code: exit code; None before the rank has recorded its end."""

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
    """One live process of a job. leader: whether it is a rank, and not the child of a rank.

    waited: seconds since its start in which it waited for a CPU. ran: CPU seconds since its start.
    """

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
    """All live processes of jobs at the time `at`. daemons: process id by name."""

    at: Instant
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of reading the API: all jobs by id, and nodes by name, at a moment between begun and ended."""

    begun: Instant
    ended: Instant
    jobs: dict[str, Document]
    nodes: dict[str, Document] = field(default_factory=dict)
    queue: Document = field(default_factory=dict)
    verdicts: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """Jobs or nodes as shown by the command line or the page.

    source: which of them. fields: by job id or 'node:NAME'.
    """

    source: str
    begun: Instant
    ended: Instant
    fields: dict[str, Document]


@dataclass(slots=True)
class Command:
    """A user's request that gangwatch accepted. word: cancel, freeze, thaw, maintenance, quarantine, release, reload.

    target: job or node, '' for the cluster.
    """

    word: str
    target: str
    asked: float
    accepted: float
    fair: float = 0.0


@dataclass(slots=True)
class Disturbance:
    """A disturbance of one rank by the test.

    kind: stopped, held (stopped repeatedly), outspun (other processes use its CPU) or killed.
    expected: fair seconds within which a verdict must name the rank; None if no verdict is required. until: end of
    the disturbance. found: fair time of the first right verdict. before: by rank, wall time and seconds waited for a
    CPU when the disturbance began. restarts: whether the controller must then restart the gang.
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
    """Period between two wall times in which the test kept an agent down.

    In this period and shortly afterwards, the agent's node does not report.
    """

    node: str
    began: float
    until: float


@dataclass(slots=True)
class Daemon:
    """One daemon process. touched: wall time at which the test last killed the daemon, or requested its end."""

    name: str
    pid: int
    created: float
    touched: float | None = None


@dataclass(slots=True)
class Facts:
    """All facts of the day. queues: currently configured queues, by name. policy: other settings of the policy.

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
        """Return the first accepted cancel request for the job or its array."""
        owner = self.owner_of.get(job)
        names = {job, owner.job if owner else job}
        return next((one for one in self.commands if one.word == "cancel" and one.target in names), None)

    def took(self, words: tuple[str, ...], target: str = "") -> list[Command]:
        """Return the accepted requests of these kinds (such as 'cancel') about the target, in order of time."""
        return [one for one in self.commands if one.word in words and one.target == target]
