"""Attribution of processes to ranks, from rank files of the local backend, control groups and Slurm step daemons.

The folder ``ranks/NODE`` contains one file per rank, ``JOB.ATTEMPT.RANK.json``. The shim that started the rank writes
the file. A process is the rank only if its pid and its start time match the file. A descendant of a rank's process
belongs to the rank of its nearest ancestor that matches a file. A process in the folder of another node belongs to that
node, and this node's agent refuses it.
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
"""Maximum age, in ns, of the listings of rank files and pods. A folder's modification time alone is not sufficient to
detect a change: the resolution of this time is a kernel tick."""

MAX_REGISTERED_A_GANG = 512
"""Maximum number of registered processes kept per gang. It is twice the maximum number of processes of a job that may
report steps."""

MAX_ANCESTORS = 256
"""Maximum number of ancestors of a process that are followed. Process trees are less deep. The limit also ends a search
during which the parents change."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Gang and rank of a process, from a rank file, a control group or a Slurm step daemon."""

    gang: str
    attempt: int | None
    """Number of the attempt; None if the source does not contain the number."""
    rank: int | None
    """Number of the rank; None if the process belongs to the gang but its rank is unknown."""
    source: Literal["local", "slurm", "kubernetes"]
    """Source of the identity. 'local': rank file of a shim. 'slurm': path of a control group, or a Slurm step daemon
    that is an ancestor of the process. 'kubernetes': path of a control group."""

    def tenant(self) -> Tenant:
        """Return the tenant of the process: its pod, its Slurm job (without the job step), or its local job."""
        if self.source == "kubernetes":
            return Tenant("pod", self.gang.removeprefix("pod-"))
        return Tenant("job", self.gang.partition(".")[0] if self.source == "slurm" else self.gang)


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Owner of a device or process, as label values; "" for an unknown value.

    attempt and rank come from a shim's rank file, or else from the environment of the process. The gang never comes
    from the environment, which a process can choose.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    gang: str = ""
    attempt: str = ""
    rank: str = ""
    slurm_job: str = ""

    def in_pod(self) -> bool:
        """Return whether the owner is a pod, known by name or only by uid."""
        return bool(self.pod) or self.gang.startswith("pod-")


class RankFile(msgspec.Struct, frozen=True):
    """Content of one file in ``ranks/NODE``. Start times are in clock ticks since boot (field 22 of /proc/PID/stat)."""

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
    """Return the Slurm job step or Kubernetes pod named in the text of /proc/PID/cgroup; None if there is none.

    The gang is ``slurm-JOB.STEP`` (``slurm-JOB`` outside a step) or ``pod-UID``. Attempt and rank are unknown.
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
    """One listing of a folder of rank files: the files, and the identity of each process by (pid, start time)."""

    ranks: tuple[RankFile, ...]
    by_process: dict[tuple[int, int], Identity]


def _list(folder: str) -> _Index:
    """Read every rank file. Ignore unreadable and malformed files. A missing folder contains no ranks."""
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
    """Lookup of the gang and rank of processes. Thread-safe.

    ranks_folder: this node's ``ranks/NODE``; None without a local backend. Other nodes have folders next to it.
    pod_logs: the kubelet's folder of logs. The names of its subfolders contain the names of the pods.
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
        """Store the rank that a process of an external job has reported when it registered.

        Such a process has no rank file. Its gang is known from its control group or step daemon.
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
        """Return the ranks of this node with a live process, sorted by gang, attempt and rank."""
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
        """Return the identity of a process; None if no source contains the process or the process does not exist.

        The sources are, in this order: the rank file of the process or its nearest ancestor, the control group of the
        process, and a Slurm step daemon among its ancestors.
        """
        return self._attested(pid)[0]

    def owner(self, pid: int) -> Owner | None:
        """Return the owner of a process, including the rank number; None if no source contains the process."""
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
                words = {}  # the environment of another job, from which the process was started
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
        """Return the namespace and name of the pod with this uid, or ("", "") if they are not known."""
        names = self.pods()
        return names.get(uid, ("", ""))

    def pods(self) -> dict[str, tuple[str, str]]:
        """Return the (namespace, name) of each pod, by uid. The listing of pods is at most RELIST_NS old."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if self._pods_listed_ns is None or now_ns - self._pods_listed_ns >= RELIST_NS:
                self._pods = pods_by_uid(self._pod_logs)
                self._pods_listed_ns = now_ns
            return self._pods

    def started_ns(self, pid: int) -> int | None:
        """Return the start time of the process in nanoseconds since boot; None if there is no such process.

        The time is on CLOCK_BOOTTIME.
        """
        stat = read_process_stat(self._proc_root, pid) if pid > 0 else None
        return None if stat is None else stat.start_time * TICK_NS

    def tenant_of_peer(self, peer: Peer) -> Tenant:
        """Return the tenant of the process that connected to the step socket: its pod or Slurm job, else its user.

        Only the control group of the process is read. Rank files and step daemons are read after registration.
        """
        cgroup = self._cgroup(peer.pid) if peer.pid > 0 else ""
        identity = identity_of_cgroup(cgroup)
        if identity is not None:
            return identity.tenant()
        return self._user(peer, cgroup)

    def user_of_peer(self, peer: Peer) -> Tenant:
        """Return the tenant of a process whose pod or job is unknown: the user who runs it."""
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
        """Return the attested identity of a process (None if unknown), and its pod or Slurm job.

        The pod or job comes from its control group.
        """
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

    def other_node(self, pid: int) -> str | None:
        """Return the other node to which the process belongs; None if it belongs to this node or to no node.

        The process belongs to the node whose rank files contain it or its nearest ancestor. Each call lists the
        folders of all nodes.
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
        """Yield the process and its ancestors, nearest first. Stop at the first process that cannot be read."""
        for _ in range(MAX_ANCESTORS):
            if pid <= 0 or (stat := read_process_stat(self._proc_root, pid)) is None:
                return
            yield stat
            pid = stat.parent

    def _own(self) -> _Index:
        """Return this node's rank files.

        List them again if their folder changed or the list is older than RELIST_NS.
        """
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
