"""Which process is which rank: from the folder in which the local backend's shims write it, from control groups, and
from Slurm's step daemons.

``ranks/NODE`` holds one file a rank, ``JOB.ATTEMPT.RANK.json``, written by the shim that started the rank. Only a
process whose pid *and* start time stand there is that rank; a descendant belongs to its nearest such ancestor. What
another node's folder names belongs to that node: this node's agent must not take its word for anything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from agent.schema.clock import Clock, SystemClock
from agent.sources.files import read_file
from agent.sources.kubelet.pod_logs import FOLDER as POD_LOGS
from agent.sources.kubelet.pod_logs import pods_by_uid
from agent.sources.proc.cgroup import Membership, parse_cgroup, user_of_cgroup
from agent.sources.proc.proc import TICK_NS, ProcessStat, read_process_stat
from agent.sources.proc.slurm_node import ATTEMPT, JOB, RANK, read_environment, step_of_daemon
from agent.sources.steps.step_messages import Peer
from agent.sources.steps.tenants import Tenant

RELIST_NS = 1_000_000_000
"""The folder is listed anew at least this often: its modification time alone has the grain of a kernel tick."""

MAX_REGISTERED_A_GANG = 512
"""Processes of one gang that are remembered as ranks because they registered: twice what a job may have reporters."""

MAX_ANCESTORS = 256
"""A walk to the root ends here: deeper than process trees are, and a bound while parents change under the walk."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a process is, as the machine attests it.

    attempt: None where the source does not tell it. rank: None where the process is known to belong to the gang but
    not to which rank. source: 'local' (a shim's rank file), 'slurm' (a control group's path, or a step daemon among
    the ancestors) or 'kubernetes' (a control group's path).
    """

    gang: str
    attempt: int | None
    rank: int | None
    source: Literal["local", "slurm", "kubernetes"]

    def tenant(self) -> Tenant:
        """Whose account it is on: the pod, or the job with all of its steps."""
        if self.source == "kubernetes":
            return Tenant("pod", self.gang.removeprefix("pod-"))
        return Tenant("job", self.gang.partition(".")[0] if self.source == "slurm" else self.gang)


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Whose a device or process is, in words; "" where it is not known.

    attempt and rank are attested by a shim's rank file, and otherwise the process's own word about itself: it is
    believed inside the gang that is attested, and nowhere else.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    gang: str = ""
    attempt: str = ""
    rank: str = ""
    slurm_job: str = ""

    def in_pod(self) -> bool:
        """Whether it is of a pod, be that known by name or by uid alone."""
        return bool(self.pod) or self.gang.startswith("pod-")


class RankFile(msgspec.Struct, frozen=True):
    """The content of one file in ``ranks/NODE``. Start times are field 22 of /proc/PID/stat."""

    gang: str
    attempt: int
    rank: int
    pid: int
    start_time: int
    slot: str | int | None = None
    shim_pid: int | None = None
    shim_start_time: int | None = None


_decoder = msgspec.json.Decoder(RankFile)


# --- control groups --------------------------------------------------------------------------------------------------


def identity_of_cgroup(cgroup: str) -> Identity | None:
    """What the text of /proc/PID/cgroup attests: a Slurm job step or a Kubernetes pod, None for neither.

    The gang is ``slurm-JOB.STEP`` (``slurm-JOB`` outside a step) or ``pod-UID``. Neither names attempt or rank.
    """
    membership = parse_cgroup(cgroup)
    return None if membership is None else _identity(membership)


def _identity(membership: Membership) -> Identity:
    if membership.slurm_job:
        return _slurm(membership.slurm_job, membership.slurm_step)
    return Identity(f"pod-{membership.pod}", None, None, "kubernetes")


def _slurm(job: str, step: str) -> Identity:
    return Identity(f"slurm-{job}.{step}" if step else f"slurm-{job}", None, None, "slurm")


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Index:
    """One listing of a folder: whom each (pid, start time) is."""

    ranks: tuple[RankFile, ...]
    by_process: dict[tuple[int, int], Identity]


def _list(folder: str) -> _Index:
    """Read every rank file; one that is unreadable or not of that form is none. A missing folder has no ranks."""
    ranks: list[RankFile] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        names = []
    for name in names:
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            ranks.append(_decoder.decode(read_file(f"{folder}/{name}")))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    by_process: dict[tuple[int, int], Identity] = {}
    for rank in ranks:
        if rank.shim_pid is not None and rank.shim_start_time is not None:
            by_process[rank.shim_pid, rank.shim_start_time] = Identity(rank.gang, rank.attempt, None, "local")
    for rank in ranks:
        by_process[rank.pid, rank.start_time] = Identity(rank.gang, rank.attempt, rank.rank, "local")
    return _Index(tuple(ranks), by_process)


class Attribution:
    """Says of processes which rank they are. May be asked from several threads.

    ranks_folder: this node's ``ranks/NODE``, None where no local backend writes one; its siblings are other nodes'.
    pod_logs: the kubelet's folder of logs, which tells pods' names.
    """

    def __init__(
        self,
        ranks_folder: str | None,
        proc_root: str = "/proc",
        clock: Clock | None = None,
        pod_logs: str = POD_LOGS,
    ) -> None:
        self._folder = ranks_folder
        self._proc_root = proc_root
        self._clock = clock or SystemClock()
        self._pod_logs = pod_logs
        self._pods: dict[str, tuple[str, str]] = {}
        self._pods_listed_ns: int | None = None
        self._lock = threading.Lock()
        self._registered: dict[tuple[int, int], RankFile] = {}
        self._index = _Index((), {})
        self._listed_ns: int | None = None
        self._modified_ns = -1

    def register(self, gang: str, attempt: int, rank: int, pid: int) -> None:
        """A process that no rank file names, but a control group or a step daemon attests, is this rank from now on.

        The job's own scheduler started it, and wrote no file; which rank it is, it said when it registered.
        """
        stat = read_process_stat(self._proc_root, pid)
        if stat is None:
            return
        with self._lock:
            self._registered[pid, stat.start_time] = RankFile(gang, attempt, rank, pid, stat.start_time)
            same = [process for process, one in self._registered.items() if one.gang == gang]
            for process in same[: max(0, len(same) - MAX_REGISTERED_A_GANG)]:
                del self._registered[process]

    def ranks(self) -> list[RankFile]:
        """The ranks of this node whose processes are alive, sorted by gang, attempt and rank."""
        alive: list[RankFile] = []
        files = self._own()
        with self._lock:
            registered = [rank for process, rank in self._registered.items() if process not in files.by_process]
        for rank in (*files.ranks, *registered):
            stat = read_process_stat(self._proc_root, rank.pid)
            if stat is not None and stat.start_time == rank.start_time and stat.state not in "ZX":
                alive.append(rank)
            else:
                with self._lock:
                    self._registered.pop((rank.pid, rank.start_time), None)
        alive.sort(key=lambda rank: (rank.gang, rank.attempt, rank.rank))
        return alive

    def of_pid(self, pid: int) -> Identity | None:
        """Whose the process is: its nearest ancestor (itself included) in this node's folder, else its control group.

        None where nothing attests it, and where there is no such process.
        """
        return self._attested(pid)[0]

    def owner(self, pid: int) -> Owner | None:
        """Whose the process is, in words, with the rank that it was started as; None where nothing attests it."""
        identity, membership = self._attested(pid)
        if identity is None:
            return None
        attempt, rank = identity.attempt, identity.rank
        namespace, pod = self.pod(membership.pod) if membership.pod else ("", "")
        job = identity.gang.removeprefix("slurm-").partition(".")[0] if identity.source == "slurm" else ""
        words = {}
        if identity.source != "local":
            words = read_environment(self._proc_root, pid)
            if any(words.get(name, job) != job for name in JOB):
                words = {}  # another job's environment: it was started from there, and is no rank of this one
        return Owner(
            namespace,
            pod,
            "",
            identity.gang,
            _first(words, ATTEMPT) if attempt is None else str(attempt),
            _first(words, RANK) if rank is None else str(rank),
            job,
        )

    def pod(self, uid: str) -> tuple[str, str]:
        """Namespace and name of the pod; ("", "") where they are not known. Pods that came are looked for anew."""
        names = self.pods()
        return names.get(uid, ("", ""))

    def pods(self) -> dict[str, tuple[str, str]]:
        """(namespace, name) of every pod by uid, listed at most RELIST_NS ago."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._pods_listed_ns is None or now_ns - self._pods_listed_ns >= RELIST_NS:
                self._pods = pods_by_uid(self._pod_logs)
                self._pods_listed_ns = now_ns
            return self._pods

    def started_ns(self, pid: int) -> int | None:
        """When the process began, in nanoseconds since the boot (CLOCK_BOOTTIME); None where there is none such."""
        stat = read_process_stat(self._proc_root, pid) if pid > 0 else None
        return None if stat is None else stat.start_time * TICK_NS

    def tenant_of_peer(self, peer: Peer) -> Tenant:
        """On whose account a process's connection is, by one look at its control group: its pod or Slurm job, else its
        user. Rank files and step daemons, which may name a job for it, are asked once it has registered."""
        cgroup = self._cgroup(peer.pid) if peer.pid > 0 else ""
        membership = parse_cgroup(cgroup)
        if membership is not None:
            return _identity(membership).tenant()
        return self._user(peer, cgroup)

    def user_of_peer(self, peer: Peer) -> Tenant:
        """The user who answers for a process that nothing attests."""
        return self._user(peer, self._cgroup(peer.pid) if peer.pid > 0 else "")

    @staticmethod
    def _user(peer: Peer, cgroup: str) -> Tenant:
        user = user_of_cgroup(cgroup)
        return Tenant("user", str(peer.uid if user is None else user))

    def _cgroup(self, pid: int) -> str:
        try:
            return read_file(f"{self._proc_root}/{pid}/cgroup").decode("utf-8", "replace")
        except OSError:
            return ""

    def _attested(self, pid: int) -> tuple[Identity | None, Membership]:
        """What rank files tell of the process or its nearest ancestor, else its control group, else a step daemon."""
        index = self._own()
        ancestors = list(self._ancestors(pid))
        if not ancestors:
            return None, Membership()
        membership = parse_cgroup(self._cgroup(pid)) or Membership()
        for stat in ancestors:
            if (identity := index.by_process.get((stat.pid, stat.start_time))) is not None:
                return identity, membership
        if membership != Membership():
            return _identity(membership), membership
        for stat in ancestors[1:]:
            if (step := step_of_daemon(self._proc_root, stat.pid)) is not None:
                return _slurm(*step), membership
        return None, membership

    def elsewhere(self, pid: int) -> str | None:
        """The other node whose folder attests the process; None where this node's does first, or none.

        Lists the siblings each time: it is asked once a registration, not once a tick.
        """
        if self._folder is None:
            return None
        own = self._own().by_process
        parent, _, mine = self._folder.rstrip("/").rpartition("/")
        try:
            nodes = [entry.name for entry in os.scandir(parent or "/") if entry.is_dir() and entry.name != mine]
        except OSError:
            return None
        others = {process: node for node in nodes for process in _list(f"{parent}/{node}").by_process}
        for stat in self._ancestors(pid):
            process = (stat.pid, stat.start_time)
            if process in own:
                return None
            if process in others:
                return others[process]
        return None

    def _ancestors(self, pid: int) -> Iterator[ProcessStat]:
        """The process and its ancestors, nearest first, as far as they can be read."""
        for _ in range(MAX_ANCESTORS):
            if pid <= 0 or (stat := read_process_stat(self._proc_root, pid)) is None:
                return
            yield stat
            pid = stat.parent

    def _own(self) -> _Index:
        """This node's index, listed anew where the folder changed or the listing is a second old."""
        if self._folder is None:
            return self._index
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            try:
                modified_ns = os.stat(self._folder).st_mtime_ns
            except OSError:
                modified_ns = -1
            if self._listed_ns is None or modified_ns != self._modified_ns or now_ns - self._listed_ns >= RELIST_NS:
                self._index = _list(self._folder)
                self._listed_ns = now_ns
                self._modified_ns = modified_ns
            return self._index


def _first(words: dict[str, str], names: tuple[str, ...]) -> str:
    return next((words[name] for name in names if name in words), "")
