"""Virtual nodes: a network namespace and control groups each, linked by bridges with the speed of a NIC.

A site belongs to the process that made it, and its names contain that process's id. ``sweep`` removes the sites of
processes that ended without removing theirs. Needs root, cgroup v1 and the programs ip and tc.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
INTERFACES, NAMESPACES = Path("/sys/class/net"), Path("/run/netns")
HIERARCHIES = ("cpu", "memory", "blkio")
PREFIX = "gwr"
NAMES = re.compile(rf"{PREFIX}(\d+)[nabcu]\d+")
SUBNET = "10.219.0"
DAEMONS = "daemons"
"""Name of the control group of the controller and the agents."""
SHARES, STARTING_SHARES = 1024 * 128, 1024 * 32
"""Weight of all nodes together, and while their job starts; another process of the machine has 1024.

A start needs seconds of CPU time for imports. It must not disturb the job of another benchmark process.
"""
QUEUE = "4mb"
"""Longest queue in front of a link, in bytes. It drops nothing of these small trainings."""
BURST = "128kb"
"""Bytes that a link may send at once. A packet of 64 KiB with its headers must fit: the kernel splits larger ones into
dozens, and then a third of the machine's time went into handling them."""


class SiteError(Exception):
    """Error: this machine can't have virtual nodes. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Node:
    """One virtual node."""

    name: str
    """Name of the node in gangwatch."""
    namespace: str
    """Name of its network namespace."""
    device: str
    """The bridge's end of its link. The node's own end is eth0."""
    address: str
    """Address in the bridge's subnet."""


def run(*command: str) -> str:
    """Run a command and return its output. Raises SiteError with its message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SiteError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def unsupported() -> str:
    """Return why this machine can't have virtual nodes; '' if it can."""
    if os.geteuid() != 0:
        return "root is needed to make network namespaces and control groups: run it as root"
    missing = [name for name in HIERARCHIES if not (GROUPS / name / "cgroup.procs").exists()]
    if missing:
        return f"cgroup v1 is needed, with the controllers {', '.join(HIERARCHIES)}; absent: {', '.join(missing)}"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if not any((Path(part) / program).exists() for part in os.environ.get("PATH", os.defpath).split(":")):
            return f"{program} is absent: apt-get install {package}"
    return ""


@dataclass(slots=True)
class Site:
    """Virtual nodes of one process. Use it as a context: leaving it removes everything."""

    nodes: int
    """Number of nodes."""
    rate_mbit: int
    """Speed of each node's link in both directions."""
    leaves: int = 1
    """Number of leaf switches. Node i is below leaf i modulo leaves; two leaves are linked by one uplink."""
    limits: dict[str, str] = field(default_factory=dict)
    """Values that each rank's control groups get at its start, by file name."""
    owner: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        if reason := unsupported():
            raise SiteError(reason)

    def name(self, kind: str, index: int = 0) -> str:
        """Return the name of an interface or namespace. A name has at most 15 characters."""
        return f"{PREFIX}{self.owner}{kind}{index}"

    def node(self, index: int) -> Node:
        return Node(f"node-{index}", self.name("n", index), self.name("a", index), f"{SUBNET}.{10 + index}")

    def group(self, hierarchy: str, node: str = "") -> Path:
        """Return the site's control group in a hierarchy, or that of a node."""
        return GROUPS / hierarchy / f"{PREFIX}{self.owner}n0" / node

    def __enter__(self) -> Site:
        sweep()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _build(self) -> None:
        for leaf in range(self.leaves):
            run("ip", "link", "add", self.name("b", leaf), "type", "bridge")
            run("ip", "link", "set", self.name("b", leaf), "up")
        if self.leaves == 2:
            run("ip", "link", "add", self.name("u", 0), "type", "veth", "peer", "name", self.name("u", 1))
            for end in range(2):
                run("ip", "link", "set", self.name("u", end), "master", self.name("b", end), "up")
        for index in range(self.nodes):
            node = self.node(index)
            run("ip", "netns", "add", node.namespace)
            inside = ("ip", "-netns", node.namespace)
            run("ip", "link", "add", node.device, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
            run("ip", "link", "set", node.device, "master", self.name("b", index % self.leaves), "up")
            run(*inside, "address", "add", f"{node.address}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "link", "set", "lo", "up")
            self.set_rate(node.name, self.rate_mbit)
            for hierarchy in HIERARCHIES:
                self.group(hierarchy, node.name).mkdir(parents=True, exist_ok=True)
        self.group("cpu", DAEMONS).mkdir()
        # The nodes come before other processes of the machine, which they would not have beside them in reality.
        self.set_shares(STARTING_SHARES)

    def set_shares(self, shares: int) -> None:
        """Set the weight of all nodes together."""
        (self.group("cpu") / "cpu.shares").write_text(str(shares))

    def set_rate(self, node: str, mbit: float) -> None:
        """Set the speed of a node's link, in both directions."""
        one = self.node(int(node.rpartition("-")[2]))
        shape(one.device, mbit)
        shape("eth0", mbit, one.namespace)

    def set_uplink(self, mbit: float) -> None:
        """Set the speed of the link between the two leaf switches, in both directions."""
        for end in range(2):
            shape(self.name("u", end), mbit)

    def write(self, path: Path) -> None:
        """Write the description that programs/enter.py reads."""
        nodes = {}
        for index in range(self.nodes):
            node = self.node(index)
            groups = [str(self.group(hierarchy, node.name)) for hierarchy in HIERARCHIES]
            nodes[node.name] = {"namespace": node.namespace, "address": node.address, "groups": groups}
        path.write_text(json.dumps({"nodes": nodes, "limits": self.limits}))

    def enter_daemons(self) -> None:
        """Move the calling process into the group of the daemons; its later children start in it."""
        (self.group("cpu", DAEMONS) / "cgroup.procs").write_text("0")

    def rank_group(self, hierarchy: str, node: str, job: str, rank: int) -> Path:
        """Return the control group of a rank."""
        return self.group(hierarchy, node) / f"{job}.{rank}"

    def remove(self) -> None:
        """End all processes in the site's groups, and remove groups, links and namespaces."""
        _remove(self.owner)


def shape(device: str, mbit: float, namespace: str = "") -> None:
    """Limit the speed of an interface's sending side with a token bucket."""
    inside = ("-netns", namespace) if namespace else ()
    bucket = ("tbf", "rate", f"{round(mbit * 1000)}kbit", "burst", BURST, "limit", QUEUE)
    run("tc", *inside, "qdisc", "replace", "dev", device, "root", *bucket)


def processes(group: Path) -> list[int]:
    """Return the processes in a control group; empty if the group does not exist."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _kill(folder: Path) -> None:
    """Kill all processes in a group and the groups below it, and wait until they are gone."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        alive = [pid for own, _, _ in os.walk(folder) for pid in processes(Path(own))]
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    raise SiteError(f"processes in {folder} remain after 20 s")


def _remove(owner: int) -> None:
    name = f"{PREFIX}{owner}n0"
    for hierarchy in HIERARCHIES:
        folder = GROUPS / hierarchy / name
        if folder.exists():
            _kill(folder)
            for own, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(own).rmdir()
    for link in _own(_names(INTERFACES), owner):
        with contextlib.suppress(SiteError):  # the other end of a pair is gone with the first
            run("ip", "link", "delete", link)
    for namespace in _own(_names(NAMESPACES), owner):
        with contextlib.suppress(SiteError):
            run("ip", "netns", "delete", namespace)


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.exists() else []


def _own(names: list[str], owner: int) -> list[str]:
    return [name for name in names if (match := NAMES.fullmatch(name)) and int(match[1]) == owner]


def sweep() -> list[int]:
    """Remove the sites of processes that have ended. Return their process ids."""
    names = [*_names(INTERFACES), *_names(NAMESPACES)]
    for hierarchy in HIERARCHIES:
        names += _names(GROUPS / hierarchy)
    owners = {int(match[1]) for name in names if (match := NAMES.fullmatch(name))}
    left = sorted(owner for owner in owners if not Path(f"/proc/{owner}").exists())
    for owner in left:
        _remove(owner)
    return left
