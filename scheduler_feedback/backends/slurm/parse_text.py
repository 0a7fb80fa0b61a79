"""What `scontrol --oneliner show jobs|nodes` say: the forms of versions without JSON. Pure.

A line is words KEY=VALUE; a value may hold spaces and even words with '=' in them (a comment, a reason), which is why
keys are told from the rest by a list. With --details a job's line repeats ``Nodes=... GRES=...`` for each group of
nodes that have alike.
"""

from __future__ import annotations

import re
from datetime import datetime

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.facts import SlurmJob, SlurmNode, base_state
from scheduler_feedback.backends.slurm.gres import gpus_of, indices_of, wanted
from scheduler_feedback.backends.slurm.hostlist import expand

_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z/_:&.]*)=")
_NONE = frozenset({"", "(null)", "N/A", "None", "n/a", "Unknown"})
_SPAN = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_STAMP = re.compile(r"(.*?) ?\[([^@\]]*)@[^\]]*\]\s*\Z", re.DOTALL)
_GROUP = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_FREE = frozenset({"Reason", "Comment", "Extra", "JobName", "OS"})
"""Keys whose values people write: words with '=' in them belong to the value, unless a known key begins there."""

_AFTER_FREE = frozenset(
    {"StdErr", "StdIn", "StdOut", "Power", "UserId", "GroupId", "RealMemory", "ReqNodeList", "Comment", "AdminComment",
     "SystemComment", "Reason", "Extra", "Dependency", "TresPerNode", "MailUser"}
)  # fmt: skip
"""Keys that may follow such a value."""


def jobs(text: str) -> dict[int, SlurmJob]:
    """The jobs by number. Raises BackendError naming line and field."""
    if text.strip() in ("", "No jobs in the system"):
        return {}
    found = (
        _job(_Line(line, f"scontrol show jobs: line {at}")) for at, line in enumerate(text.splitlines(), 1) if line
    )
    return {job.number: job for job in found}


def nodes(text: str) -> dict[str, SlurmNode]:
    """The nodes by name. Raises BackendError naming line and field."""
    lines = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise BackendError("scontrol show nodes: it says nothing")
    found = (_node(_Line(line, f"scontrol show nodes: line {at}")) for at, line in lines)
    return {node.name: node for node in found}


class _Line:
    """One line's values by key. What is wrong raises BackendError with line and key."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self._where = text, where
        self.values: dict[str, str] = {}
        newest, begin = "", 0
        for match in _KEY.finditer(text):
            if newest in _FREE and match[1] not in _AFTER_FREE:
                continue
            if newest:
                self.values.setdefault(newest, text[begin : match.start()].strip())
            newest, begin = match[1], match.end()
        if newest:
            self.values.setdefault(newest, text[begin:].strip())

    def wrong(self, key: str, why: str) -> BackendError:
        return BackendError(f"{self._where}: {key}: {why}")

    def word(self, key: str, needed: bool = False) -> str:
        value = self.values.get(key, "")
        if needed and not value:
            raise self.wrong(key, "it is absent")
        return "" if value in _NONE else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.word(key).partition("-")[0]
        if not value and default is not None:
            return default
        if not value.isdecimal():
            raise self.wrong(key, f"{value[:40]!r} is no count")
        return int(value)

    def hosts(self, key: str) -> tuple[str, ...]:
        try:
            return expand(self.values.get(key, ""))
        except ValueError as error:
            raise self.wrong(key, str(error)) from None

    def seconds(self, key: str) -> float:
        """An instant, since the epoch; scontrol prints local time without a zone."""
        value = self.word(key)
        if not value:
            return 0.0
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise self.wrong(key, f"{value[:40]!r} is no date and time") from None

    def span(self, key: str) -> float | None:
        """[days-]hours:minutes:seconds, None for no limit."""
        value = self.word(key)
        if value in ("", "UNLIMITED", "Partition_Limit"):
            return None
        found = _SPAN.fullmatch(value)
        if found is None:
            raise self.wrong(key, f"{value[:40]!r} is no [days-]hours:minutes:seconds")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _job(line: _Line) -> SlurmJob:
    state = line.word("JobState", needed=True)
    nodes = line.hosts("NodeList") if state != "PENDING" else ()
    by_node: dict[str, tuple[int, ...]] = {}
    for group, gres in _GROUP.findall(line.text):
        try:
            by_node.update(dict.fromkeys(expand(group), indices_of(gres)))
        except ValueError as error:
            raise line.wrong("GRES", str(error)) from None
    code, _, signal = line.word("ExitCode").partition(":")
    return SlurmJob(
        number=line.count("JobId"),
        state=base_state((state,)),
        completing=state == "COMPLETING",
        nodes=nodes,
        gpus=tuple(by_node.get(name, ()) for name in nodes),
        restarts=line.count("Restarts", 0),
        comment=line.word("Comment"),
        batch=line.word("BatchFlag") == "1",
        requeue=line.word("Requeue") == "1",
        user=line.word("UserId").partition("(")[0],
        name=line.word("JobName"),
        partition=line.word("Partition"),
        time_limit_seconds=line.span("TimeLimit"),
        started_seconds=line.seconds("StartTime") if state != "PENDING" else 0.0,
        begins_seconds=line.seconds("EligibleTime"),
        excluded=line.hosts("ExcNodeList"),
        least_nodes=line.count("NumNodes", 1),
        held=line.word("Priority") == "0" or state in ("REQUEUE_HOLD", "SPECIAL_EXIT"),
        exit_code=128 + int(signal) if signal not in ("", "0") else int(code) if code.isdecimal() else None,
        reason=line.word("Reason"),
        gpus_wanted=wanted(
            line.word("TresPerJob"),
            line.word("TresPerNode"),
            line.word("TresPerTask"),
            line.count("NumNodes", 1),
            line.count("NumTasks", 1),
        ),
    )


def _node(line: _Line) -> SlurmNode:
    gpus, gpu_type = gpus_of(line.word("Gres"))
    states = line.word("State", needed=True).upper()
    # Until 21.08 a mark stands for a flag: '*' for one that does not respond.
    flags = {"NOT_RESPONDING"} if "*" in states else set()
    stamp = _STAMP.match(line.word("Reason"))
    return SlurmNode(
        name=line.word("NodeName", needed=True),
        gpus=gpus,
        gpu_type=gpu_type,
        states=frozenset({*re.split(r"[+]", re.sub(r"[*~#!%$@^-]", "", states)), *flags}),
        reason=stamp[1] if stamp is not None else line.word("Reason"),
        reason_user=stamp[2] if stamp is not None else "",
        weight=line.count("Weight", 1),
        features=tuple(word for word in line.word("ActiveFeatures").split(",") if word),
        comment=line.word("Comment"),
        partitions=tuple(word for word in line.word("Partitions").split(",") if word),
    )
