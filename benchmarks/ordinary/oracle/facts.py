"""Facts: everything that the oracle is given. Times are seconds; `wall` is the time of day, `fair` is the harness's.

A fair second is one in which the machine let processes run and in which the harness itself disturbed no daemon. What
lasts is measured in fair seconds, so that a starved machine excuses lateness and nothing else.
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
    """What does not hold. check: the check's name. subject: job, node or daemon. text: the contradiction."""

    check: str
    subject: str
    text: str
    wall: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that must not last. patience: fair seconds for which it may; 0: not at all."""

    check: str
    subject: str
    text: str
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was accepted. members: ids of its jobs (several of an array). request: what was asked for.

    fails: whether its program ends with anything but 0 by itself. starts: False where its program does not exist.
    """

    job: str
    members: tuple[str, ...]
    request: Document
    asked: float
    accepted: float
    fails: bool = False
    starts: bool = True


@dataclass(slots=True)
class RankLife:
    """What one rank of one attempt wrote about itself. code: None while it has not written its end."""

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
    runnable and did not run, ran: seconds of processor time (both since it began)."""

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
    """The jobs' live processes, all of which were alive at `at`. daemons: pid by name."""

    at: Instant
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What the API said. jobs: every job by id, of one moment between begun and ended. nodes: by name."""

    begun: Instant
    ended: Instant
    jobs: dict[str, Document]
    nodes: dict[str, Document] = field(default_factory=dict)
    queue: Document = field(default_factory=dict)
    verdicts: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What the command line or the page said of jobs or nodes. source: which of them. fields: by job or 'node:NAME'."""

    source: str
    begun: Instant
    ended: Instant
    fields: dict[str, Document]


@dataclass(slots=True)
class Command:
    """What a user asked for and gangwatch accepted. word: cancel, freeze, thaw, maintenance, quarantine, release,
    reload. target: job or node, '' for the cluster."""

    word: str
    target: str
    asked: float
    accepted: float
    fair: float = 0.0


@dataclass(slots=True)
class Disturbance:
    """What the harness did to one rank. kind: stopped, held (stopped and continued in turn), outspun, killed.

    expected: fair seconds within which a verdict must name it; None: none is demanded. until: when it was over.
    found: fair time at which the right verdict was seen first. before: by rank, the wall time and the seconds waited
    for a processor when the disturbance was seen first. restarts: whether the gang must be restarted once it is found.
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
    """An agent that the harness killed or stopped: between these wall times, and a little after, its node is silent."""

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
    """All that is known. queues: the policy's queues by name, as configured now. policy: its other keys.

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
        """Take in an accepted submission."""
        self.submissions[submission.job] = submission
        for member in submission.members:
            self.owner_of[member] = submission

    def attempt_lives(self, job: str, attempt: int) -> list[RankLife]:
        """The evidence of one attempt's ranks."""
        return [life for (name, number, _), life in self.lives.items() if name == job and number == attempt]

    def cancelled(self, job: str) -> Command | None:
        """The first accepted cancel of the job or of its array."""
        owner = self.owner_of.get(job)
        names = {job, owner.job if owner else job}
        return next((one for one in self.commands if one.word == "cancel" and one.target in names), None)

    def took(self, words: tuple[str, ...], target: str = "") -> list[Command]:
        """Accepted commands of these words about the target, in order."""
        return [one for one in self.commands if one.word in words and one.target == target]
