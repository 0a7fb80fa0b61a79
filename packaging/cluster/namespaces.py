"""Processes of the cluster's components in their own namespaces, with network links and control groups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from node_files import GROUP

LINK = "gwcluster0"
"""The machine's own end of its link to the cluster: the only interface that the machine gets."""
GROUPS = Path("/sys/fs/cgroup")
_NEW = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_V2_CONTROLLERS = "+cpu +cpuset +memory +pids +io"


def run(*command: str, inside: int | None = None) -> None:
    """Run a command, and exit the program if it fails.

    inside: pid of the process in whose network namespace the command runs; None for this process's own.
    """
    entered = () if inside is None else ("nsenter", f"--target={inside}", "--net")
    done = subprocess.run([*entered, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"cluster: `{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")


def start(folder: Path, name: str, command: list[str], path: str) -> int:
    """Run a command as process 1 of new namespaces. Return the pid of the process that keeps the namespaces open.

    name: name of the component. path: value of PATH for the command.
    """
    (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / name / "init.log").open("ab") as log:
        holder = subprocess.Popen(
            ["unshare", *_NEW, *command],
            env={"PATH": path, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(str(holder.pid))
    until = time.monotonic() + 30
    while holder.poll() is None and time.monotonic() < until:
        if _children(holder.pid):  # it forks after it has made the namespaces
            return holder.pid
        time.sleep(0.02)
    raise SystemExit(f"cluster: {name} did not start; see {folder / name / 'init.log'}")


def link_machine(control: int) -> None:
    """Connect the host with the control plane's bridge, and route the pods' addresses over this link.

    control: pid that keeps the control plane's namespaces open.
    """
    run("ip", "link", "add", LINK, "type", "veth", "peer", "name", "machine", "netns", str(control))
    run("ip", "link", "set", "machine", "master", "nodes", "up", inside=control)
    run("ip", "address", "add", "10.213.0.254/24", "dev", LINK)
    run("ip", "link", "set", LINK, "up")
    run("ip", "route", "add", "10.213.240.0/24", "via", "10.213.0.1")


def link_node(control: int, node: int, name: str, index: int) -> None:
    """Connect a node with the control plane's bridge. On the node, the interface is eth0.

    control, node: pids that keep the namespaces of the control plane and of the node open.
    """
    # The kernel removes the namespaces of a node that has ended, and with them its link, at some later time.
    with contextlib.suppress(SystemExit):
        run("ip", "link", "delete", name, inside=control)
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(node), inside=control)
    run("ip", "link", "set", name, "master", "nodes", "up", inside=control)
    run("ip", "route", "replace", f"10.213.{index}.0/24", "via", f"10.213.0.{10 + index}")  # a rebooted node has one


def make_group(name: str) -> None:
    """Create a node's control group in every cgroup hierarchy of the host."""
    for hierarchy in _hierarchies():
        own = hierarchy / GROUP / name
        own.mkdir(parents=True, exist_ok=True)
        if (GROUPS / "cgroup.controllers").exists():  # cgroup v2 alone
            for parent in (hierarchy, own.parent, own):
                (parent / "cgroup.subtree_control").write_text(_V2_CONTROLLERS)


def end(folder: Path, name: str) -> None:
    """Stop a component and all processes in its namespaces, and wait for their ends."""
    file = folder / f"{name}.pid"
    holder = int(file.read_text())
    if _is_ours(holder, folder):
        first = _children(holder)  # as process 1 ends, the kernel ends all others of its namespace
        for process in (*first, holder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        until = time.monotonic() + 60
        while any(runs(process) for process in (*first, holder)):
            if time.monotonic() > until:
                raise SystemExit(
                    f"cluster: processes of {name} remain after 60 s: {first}; run `make cluster-down` again"
                )
            time.sleep(0.05)
    file.unlink()


def remove_link() -> None:
    """Remove the link between host and cluster, with its routes. The kernel removes all other links with the
    namespaces."""
    if Path(f"/sys/class/net/{LINK}").exists():
        subprocess.run(["ip", "link", "delete", LINK], capture_output=True)


def remove_groups() -> None:
    """Remove the control groups of all nodes."""
    for hierarchy in _hierarchies():
        top = hierarchy / GROUP
        if not top.exists():
            continue
        for folder, _, _ in os.walk(top, topdown=False):
            _remove_group(Path(folder))


def _remove_group(group: Path) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:  # a process that has just ended still counts for some milliseconds
            if time.monotonic() > until:
                raise SystemExit(f"cluster: {group} cannot be removed: {error}") from error
            time.sleep(0.05)


def _hierarchies() -> list[Path]:
    if (GROUPS / "cgroup.controllers").exists():
        return [GROUPS]
    return sorted({path.resolve() for path in GROUPS.iterdir() if (path / "cgroup.procs").exists()})


def _children(process: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _is_ours(process: int, folder: Path) -> bool:
    """Return whether the process belongs to this cluster. A later process with the same pid does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return str(folder).encode() in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def runs(process: int) -> bool:
    """Return whether a process is running. A zombie does not count as running."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
