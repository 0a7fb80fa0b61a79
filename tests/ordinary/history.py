"""History of a cluster that a test writes: one call for each fact, all correct until the test falsifies one."""

from __future__ import annotations

from typing import Any

from benchmarks.ordinary.oracle.facts import (
    Command,
    Daemon,
    Disturbance,
    Facts,
    Failure,
    Instant,
    Process,
    RankLife,
    Reading,
    Statement,
    Submission,
    Table,
)
from benchmarks.ordinary.oracle.oracle import Oracle

BEGIN = 1_800_000_000.0


def at(seconds: float) -> Instant:
    """Return a reading this many seconds after the start, on a machine without other load."""
    return Instant(BEGIN + seconds, seconds)


class History:
    """Two nodes of two slots, and the jobs that a test records on them."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.oracle = Oracle(self.facts)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.nodes = {name: self._node(name) for name in ("node-0", "node-1")}
        self.processes: list[Process] = []
        self.verdicts: list[dict[str, Any]] = []
        self.queue: dict[str, Any] = {"frozen": False, "waiting": [], "reserved_for": None, "reserved_nodes": {}}
        self._pid = 100

    @staticmethod
    def _node(name: str) -> dict[str, Any]:
        return {"node": name, "state": "healthy", "present": True, "slots": 2}

    # --- events -------------------------------------------------------------------------------------------------------

    def submit(self, job: str, ranks: int = 1, fails: bool = False, **request: Any) -> None:
        """Record that a job was accepted one second after the start and has been pending since."""
        self.facts.submitted(
            Submission(job, (job,), {"ranks": ranks, **request}, BEGIN + 0.5, BEGIN + 1.5, fails=fails)
        )
        self.jobs[job] = {
            "job": job,
            "state": "pending",
            "attempt": 0,
            "ranks": [],
            "size": ranks,
            "queue": request.get("queue", "default"),
            "submitted_ns": int((BEGIN + 1) * 1e9),
            "attempt_started_ns": None,
            "ended_ns": None,
            "waiting_because": "",
            "reason": "",
        }

    def wait(self, job: str, because: str) -> None:
        self.jobs[job] |= {"state": "pending", "waiting_because": because}
        self.queue["waiting"].append({"job": job})

    def start(self, job: str, *places: tuple[str, int], seconds: float = 2.0, size: int | None = None) -> None:
        """Record that all ranks run, each with a process and a line in its log."""
        document = self.jobs[job]
        document |= {"state": "running", "attempt": document["attempt"] + 1, "waiting_because": ""}
        document["attempt_started_ns"] = int((BEGIN + seconds - 0.1) * 1e9)
        document["ranks"] = []
        for rank, (node, slot) in enumerate(places):
            self._pid += 1
            place = {"rank": rank, "node": node, "slot": slot, "pid": self._pid, "exit_code": None}
            document["ranks"].append(place)
            key = (job, document["attempt"], rank)
            self.facts.lives[key] = RankLife(*key, size or len(places), node, self._pid, BEGIN + seconds)
            self.processes.append(Process(self._pid, *key, node, True, BEGIN + seconds))

    def end(self, job: str, code: int = 0, seconds: float = 10.0) -> None:
        """Record that all ranks wrote their end and exited, and that gangwatch reported it."""
        document = self.jobs[job]
        for rank in document["ranks"]:
            life = self.facts.lives[job, document["attempt"], rank["rank"]]
            life.ended, life.code, rank["exit_code"] = BEGIN + seconds, code, code
        self.processes = [one for one in self.processes if one.job != job]
        document |= {"state": "failed" if code else "completed", "ended_ns": int((BEGIN + seconds + 0.2) * 1e9)}
        document["reason"] = f"rank 0 on node node-0 exited with {code}" if code else "all ranks exited with 0"

    def command(self, word: str, target: str = "", seconds: float = 5.0) -> None:
        self.facts.commands.append(Command(word, target, BEGIN + seconds, BEGIN + seconds + 0.1))

    def disturb(self, kind: str, job: str, rank: int, seconds: float, expected: float | None = None) -> None:
        life = self.facts.lives[job, self.jobs[job]["attempt"], rank]
        began = at(seconds)
        self.facts.disturbances.append(
            Disturbance(kind, job, life.attempt, rank, life.node, began.wall, began.fair, expected=expected)
        )

    def add_verdict(self, job: str, rank: int, kind: str, cause: str, seconds: float, confidence: float = 0.97) -> None:
        self.verdicts.append(
            {
                "job": job,
                "rank": rank,
                "ranks": [],
                "attempt": self.jobs[job]["attempt"],
                "kind": kind,
                "cause": cause,
                "node": "node-0",
                "confidence": confidence,
                "first_wall_ns": int((BEGIN + seconds) * 1e9),
                "last_wall_ns": int((BEGIN + seconds + 1) * 1e9),
            }
        )

    def state(self, source: str, job: str, **fields: Any) -> None:
        """Record what the command line or the page says about the job between two readings of the API."""
        self.facts.statements.append(Statement(source, at(19.3), at(19.4), {job: fields}))

    def daemon_ends(self, name: str, touched: float | None = None) -> None:
        self.facts.daemons[50] = Daemon(name, -50, BEGIN, touched)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def judge(self, first: float = 19.0, last: float = 19.0, step: float = 1.0) -> list[Failure]:
        """Return the defects that the oracle reports at second `first`, and every `step` seconds until `last`."""
        seconds = first
        while True:
            reading = Reading(at(seconds), at(seconds + 0.1), self.jobs, self.nodes, self.queue, tuple(self.verdicts))
            self.facts.reading = reading
            self.facts.readings.append(reading)
            self.facts.table = Table(at(seconds + 0.2), tuple(self.processes))
            found = self.oracle.judge(at(seconds + 0.3))
            seconds += step
            if found or seconds > last:
                return found
