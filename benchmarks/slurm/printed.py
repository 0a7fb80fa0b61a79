"""Fake Slurm that prints the output of squeue, sinfo and scontrol 22.05.8 for synthetic jobs.

Names, comments and folders are printed byte for byte and without quoting, as by the real commands (checked in
tests/slurm/test_hostile_names.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing import columns
from scheduler_feedback.backends.slurm.slurm_commands import Commands

SUBMITTED = 1_795_430_000
"""Default submission time of jobs, in seconds since the epoch."""


@dataclass(frozen=True)
class Printed:
    """One job of the fake Slurm. Fields that its user chooses are bytes. gpus: GPU indices on each of its nodes."""

    number: int
    name: bytes = b"train"
    user: str = "ann"
    state: str = "RUNNING"
    nodes: tuple[str, ...] = ("gpu001",)
    gpus: tuple[int, ...] = (0, 1)
    comment: bytes = b""
    folder: bytes = b"/home/ann"
    account: bytes = b""
    script: bytes = b"#!/bin/sh\ntrain\n"
    restarts: int = 0
    batch: bool = True
    requeue: bool = True
    submitted: int = SUBMITTED
    excluded: tuple[str, ...] = ()
    priority: int = 4_294_901_759
    limit_minutes: int | None = None
    exit_code: int = 0

    @property
    def holds(self) -> bool:
        return self.state not in ("PENDING", "COMPLETED", "CANCELLED", "FAILED")


def _stamp(seconds: int) -> bytes:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _limit(job: Printed) -> str:
    if job.limit_minutes is None:
        return "UNLIMITED"
    hours, minutes = divmod(job.limit_minutes, 60)
    return f"{hours}:{minutes:02d}:00" if hours else f"{minutes}:00"


def in_columns(jobs: Sequence[Printed]) -> bytes:
    """Return the output of ``squeue --noheader --Format=columns.FORMAT``."""
    printed = []
    for job in jobs:
        started = _stamp(job.submitted + 2)
        a_node = f"gres:gpu:{len(job.gpus)}" if job.gpus else "N/A"
        values: dict[str, bytes] = {
            "jobid": str(job.number).encode(),
            "username": job.user.encode(),
            "state": job.state.encode(),
            "restartcnt": str(job.restarts).encode(),
            "requeue": str(int(job.requeue)).encode(),
            "batchflag": str(int(job.batch)).encode(),
            "prioritylong": str(job.priority).encode(),
            "numnodes": str(len(job.nodes) or 1).encode(),
            "numtasks": str(len(job.nodes) or 1).encode(),
            "partition": b"batch",
            "timelimit": _limit(job).encode(),
            "starttime": started if job.state != "PENDING" else b"N/A",
            "eligibletime": _stamp(job.submitted),
            "submittime": _stamp(job.submitted),
            "reason": b"None",
            "tres-per-job": b"N/A",
            "tres-per-node": a_node.encode(),
            "tres-per-socket": b"N/A",
            "tres-per-task": b"N/A",
            "name": job.name,
            "comment": job.comment or b"(null)",
            "exit_code": str(job.exit_code << 8).encode(),
        }
        printed.append(b"".join(values[name][:width].ljust(width) for name, width in columns.COLUMNS) + b"\n")
    return b"".join(printed)


def in_places(jobs: Sequence[Printed]) -> bytes:
    """Return the output of ``squeue --noheader --format=columns.PLACES_FORMAT``."""
    lines = (f"{job.number}|{','.join(job.nodes) if job.holds else ''}|{','.join(job.excluded)}" for job in jobs)
    return "".join(f"{line}\n" for line in lines).encode()


def as_text(jobs: Sequence[Printed]) -> bytes:
    """Return the output of ``scontrol --oneliner --details show jobs``, with the fields in the order of 22.05.8."""
    printed = []
    for job in jobs:
        nodes = ",".join(job.nodes) if job.holds else ""
        gres = f"gpu:h200:{len(job.gpus)}(IDX:{','.join(map(str, job.gpus))})" if job.gpus else ""
        details = "".join(f" Nodes={node} CPU_IDs=0 Mem=0 GRES={gres}" for node in job.nodes) if job.holds else ""
        started = _stamp(job.submitted + 2).decode()
        printed.append(
            b"JobId=%d JobName=%b UserId=%b(1000) GroupId=g(1000) MCS_label=N/A Priority=%d Nice=0 Account=%b"
            % (job.number, job.name, job.user.encode(), job.priority, job.account or b"(null)")
            + (
                f" QOS=(null) JobState={job.state} Reason=None Dependency=(null) Requeue={int(job.requeue)}"
                f" Restarts={job.restarts} BatchFlag={int(job.batch)} Reboot=0 ExitCode={job.exit_code}:0"
                f" RunTime=00:10:00 TimeLimit=UNLIMITED TimeMin=N/A SubmitTime={_stamp(job.submitted).decode()}"
                f" EligibleTime={started} StartTime={started} EndTime=Unknown Partition=batch"
                f" AllocNode:Sid=login:1 ReqNodeList=(null) ExcNodeList={','.join(job.excluded) or '(null)'}"
                f" NodeList={nodes} NumNodes={len(job.nodes) or 1} NumTasks={len(job.nodes) or 1}"
                f" JOB_GRES={gres}  {details} Features=(null) Command=(null)"
            ).encode()
            + b" WorkDir="
            + job.folder
            + (b" Comment=" + job.comment + b" " if job.comment else b"")
            + b" StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power="
            + (b" TresPerNode=gres:gpu:%d" % len(job.gpus) if job.gpus else b"")
            + b" \n"
        )
    return b"".join(printed)


_ESCAPES = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("/"): b"\\/", ord("\n"): b"\\n", ord("\f"): b"\\f"}


def _quoted(data: bytes) -> bytes:
    """Quote text as json-c does: control characters are escaped, and all other bytes stay as they are."""
    parts = (_ESCAPES.get(byte) or (b"\\u%04x" % byte if byte < 32 else bytes((byte,))) for byte in data)
    return b'"' + b"".join(parts) + b'"'


def as_json(jobs: Sequence[Printed]) -> bytes:
    """Return the output of ``squeue --json`` of 22.05.8, but only with the fields that gangwatch reads."""
    entries = []
    for job in jobs:
        holds = job.nodes if job.holds else ()
        plain = {
            "job_id": job.number,
            "job_state": job.state,
            "nodes": ",".join(holds),
            "gres_detail": [f"gpu:h200:{len(job.gpus)}(IDX:{','.join(map(str, job.gpus))})" for _ in holds],
            "restart_cnt": job.restarts,
            "batch_flag": job.batch,
            "requeue": job.requeue,
            "user_name": job.user,
            "partition": "batch",
            "time_limit": job.limit_minutes,
            "start_time": job.submitted + 2,
            "eligible_time": job.submitted,
            "submit_time": job.submitted,
            "excluded_nodes": ",".join(job.excluded),
            "node_count": len(job.nodes) or 1,
            "tasks": len(job.nodes) or 1,
            "priority": job.priority,
            "state_reason": "None",
            "exit_code": job.exit_code << 8,
            "tres_per_job": "",
            "tres_per_node": f"gres:gpu:{len(job.gpus)}" if job.gpus else "",
            "tres_per_socket": "",
            "tres_per_task": "",
        }
        chosen = b'"name": %b, "comment": %b, "account": %b, "current_working_directory": %b' % tuple(
            _quoted(part) for part in (job.name, job.comment, job.account, job.folder)
        )
        entries.append(b"{%b, %b}" % (json.dumps(plain)[1:-1].encode(), chosen))
    return b'{"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "jobs": [%b]}' % b", ".join(entries)


def nodes_in_text(names: Sequence[str]) -> bytes:
    """Return the output of ``scontrol --oneliner show nodes`` for idle nodes with eight GPUs."""
    return "".join(
        f"NodeName={name} Arch=x86_64 CPUTot=64 ActiveFeatures=h200 Gres=gpu:h200:8 NodeHostName={name} "
        f"OS=Linux 6.1 #1 SMP  RealMemory=1000 State=IDLE Weight=10 Partitions=batch  BootTime=None\n"
        for name in names
    ).encode()


def nodes_in_json(names: Sequence[str]) -> bytes:
    """Return the output of ``sinfo --json`` for idle nodes with eight GPUs."""
    nodes = [
        {"name": name, "gres": "gpu:h200:8", "state": "idle", "state_flags": [], "weight": 10,
         "active_features": "h200", "partitions": ["batch"], "reason": "", "comment": ""}
        for name in names
    ]  # fmt: skip
    return json.dumps({"errors": [], "nodes": nodes}).encode()


@dataclass
class Queue:
    """Jobs of the fake Slurm. changes: received commands that change jobs, in order.

    before: called with every command before its output is computed. effect: called with every command in `changes`.
    Both may change `jobs`.
    """

    jobs: list[Printed]
    nodes: tuple[str, ...] = ("gpu001", "gpu002", "gpu003", "gpu004")
    changes: list[tuple[str, ...]] = field(default_factory=list)
    effect: Callable[[tuple[str, ...]], None] | None = None
    before: Callable[[tuple[str, ...]], None] | None = None

    def job(self, number: int) -> Printed | None:
        return next((job for job in self.jobs if job.number == number), None)

    def change(self, number: int, **changed: object) -> None:
        """Change fields of a job, as its owner does with `scontrol update`."""
        self.jobs = [replace(job, **changed) if job.number == number else job for job in self.jobs]  # type: ignore[arg-type]


class PrintedCommands(Commands):
    """Slurm commands with the output of the fake Slurm. text: print text, as releases without JSON do."""

    def __init__(self, queue: Queue, text: bool) -> None:
        super().__init__(text=text)
        self.queue = queue

    async def _run(self, command: tuple[str, ...], given: str | None = None) -> bytes:
        del given  # sbatch's standard input is not used
        queue = self.queue
        if queue.before is not None:
            queue.before(command)
        asked = {word.partition("=")[0]: word.partition("=")[2] for word in command if word.startswith("--")}
        one = asked.get("--jobs") or (command[-1] if command[-2:-1] == ("job",) else "")
        if one and queue.job(int(one)) is None:
            raise BackendError(f"{command[0]}: exit code 1: slurm_load_jobs error: Invalid job id specified")
        jobs = queue.jobs if not one else [job for job in queue.jobs if job.number == int(one)]
        match command:
            case ("sinfo", "--version"):
                return b"slurm 22.05.8\n"
            case ("sinfo", "--json"):
                return nodes_in_json(queue.nodes)
            case ("scontrol", "--oneliner", "show", "nodes"):
                return nodes_in_text(queue.nodes)
            case ("squeue", "--json"):
                return as_json(jobs)
            case ("squeue", *_) if asked.get("--Format") == columns.FORMAT:
                return in_columns(jobs)
            case ("squeue", *_) if asked.get("--format") == columns.PLACES_FORMAT:
                return in_places(jobs)
            case ("squeue", *_):
                running = (job for job in jobs if job.holds)
                return b"".join(b"%d|%b|%b\n" % (job.number, job.state.encode(), job.comment) for job in running)
            case ("scontrol", "--oneliner", "--details", "show", *_):
                return as_text(jobs)
            case ("scontrol", "write", "batch_script", number, "-"):
                job = queue.job(int(number))
                return b"" if job is None else job.script
            case _:
                queue.changes.append(command)
                if queue.effect is not None:
                    queue.effect(command)
                return b""
