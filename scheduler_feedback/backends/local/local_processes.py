"""Functions for processes of this machine: identify them, signal them, and end the descendants of a shim.

A pid alone does not identify a process: within one boot, pid and start time together do (field 22 of /proc/PID/stat, in
clock ticks since boot). Standard library only, and little of it: the shim imports this file by its folder in a bare
interpreter, whose start-up time adds to a gang's. process_trees.py has what only the controller needs.
"""

from __future__ import annotations

import ctypes
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PROC = "/proc"

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class Stat:
    """State of a process, from /proc/PID/stat. start_time: in clock ticks since boot."""

    __slots__ = ("parent", "pid", "start_time", "state")

    def __init__(self, pid: int, state: str, parent: int, start_time: int) -> None:
        self.pid = pid
        self.state = state
        self.parent = parent
        self.start_time = start_time

    @property
    def gone(self) -> bool:
        """Whether the process no longer runs: it is a zombie (Z) or dead (X, x)."""
        return self.state in ("Z", "X", "x")


def parse_stat(text: bytes) -> Stat:
    """Parse a line of /proc/PID/stat (proc_pid_stat(5)). The name may have spaces, brackets and line ends.

    Raises ValueError for malformed text.
    """
    pid, opened, _ = text.partition(b" (")
    _, closed, rest = text.rpartition(b")")
    fields = rest.split()
    if not opened or not closed or len(fields) < 20:
        raise ValueError(f"not a line of /proc/PID/stat: {text[:80]!r}")
    # The manual counts fields from 1: state is 3, ppid 4, starttime 22; `fields` begins with the third.
    return Stat(int(pid), fields[0].decode(), int(fields[1]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """Return the current state of the process; None if there is no process with this pid."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return parse_stat(os.read(descriptor, 4096))
    except OSError:  # ESRCH: it ended between open and read
        return None
    finally:
        os.close(descriptor)


def start_time(pid: int) -> int | None:
    """Return the start time of the process, in clock ticks since boot; None if there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_time


def is_alive(pid: int, start_time: int) -> bool:
    """Return whether the process with this pid and start time still runs. A zombie does not run."""
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and not stat.gone


_boot_id = ""


def boot_id() -> str:
    """Return the kernel's id of this boot; pids and start times of another boot are meaningless."""
    global _boot_id
    if not _boot_id:
        with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            _boot_id = file.read().strip()
    return _boot_id


def send_signal(pid: int, start_time: int, number: int) -> bool:
    """Signal the process with this pid and start time. Return False if it has ended or may not be signalled.

    A pidfd refers to the process before its start time is compared, so that no later process with its pid is signalled.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_alive(pid, start_time):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def all_pids() -> list[int]:
    """Return the pids of all visible processes."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdigit())


def kill_descendants(number: int = signal.SIGKILL) -> None:
    """Send a signal to every descendant of the calling process, to each as soon as it is found.

    Processes that are forked during the call may be missed. So the shim repeats the call until wait(2) reports that no
    child is left. A pid cannot belong to another process in the short time between its reading and the signal, because
    the kernel uses all other pids first.
    """
    family = {os.getpid()}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is None or stat.parent not in family:
            continue
        family.add(pid)
        if not stat.gone:
            try:
                os.kill(pid, number)
            except OSError:  # it ended, or became another user's (set-user-ID); the caller repeats the pass
                pass


def become_subreaper() -> None:
    """Make the calling process the new parent of its orphaned descendants, instead of init (prctl(2), Linux 3.4)."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"PR_SET_CHILD_SUBREAPER: {os.strerror(number)}")


def die_with_parent(parent: int) -> bool:
    """Make the kernel kill this process when its parent ends. Return False if the parent has already ended."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent


def settle(parent: int, log: int, directory: str, cgroup: str | None) -> bool:
    """Prepare a forked child of the shim: start a session, set output, folder and cgroup.

    Afterwards the kernel kills the child when the shim ends. Return False if the shim has already ended. Raises OSError
    if the folder cannot be entered.
    """
    os.setsid()
    if not die_with_parent(parent):
        return False
    if cgroup is not None:
        try:
            join_cgroup(cgroup)
        except OSError as error:  # without the cgroup, the subreaper ends it
            os.write(2, f"{cgroup}: {error.strerror}\n".encode(errors="replace"))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(directory)
    return True


def run_when_idle(cgroup: str | None) -> None:
    """Let the calling process run only while no other process needs the processor (SCHED_IDLE, sched(7)).

    Linux compares processes within a group only: a session (autogroup, the default of Debian), or a cgroup. So the
    share of the process's own group becomes the least one, too. cgroup: its folder.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    shares = [(f"{PROC}/self/autogroup", "19")]
    if cgroup is not None:
        shares += [(f"{cgroup}/cpu.idle", "1"), (f"{cgroup}/cpu.weight", "1")]
    for path, value in shares:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(value)
        except OSError:  # this kernel does not group so
            continue


def become(program: str, command: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace the calling child process by the program, with default signal handling. Raises OSError on failure."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them, and exec inherits that
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execve(program, command, environment)


# --- control groups, version 2 ---------------------------------------------------------------------------------------


def parse_own_cgroup(mountinfo: str, membership: str) -> str | None:
    """Return the folder of this process's cgroup (v2), from the texts of /proc/self/mountinfo and /proc/self/cgroup.

    None if no cgroup v2 hierarchy is mounted, or if the mount does not contain the cgroup. See
    proc_pid_mountinfo(5).
    """
    own = next((line[3:] for line in membership.split("\n") if line.startswith("0::")), None)
    if own is None or own.startswith("/.."):
        return None
    for line in mountinfo.split("\n"):
        before, separator, after = line.partition(" - ")
        if not separator or after.split(" ", 1)[0] != "cgroup2":
            continue
        root, mount_point = (_unescape(field) for field in before.split(" ")[3:5])
        if root == "/":
            return (mount_point + own).rstrip("/")
        if own == root or own.startswith(root + "/"):
            return (mount_point + own[len(root) :]).rstrip("/")
    return None


def _unescape(field: str) -> str:
    """Decode the octal codes that mountinfo uses for space, tab, line end and backslash."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def own_cgroup() -> str | None:
    """Return the folder of this process's cgroup (v2); None if there is none."""
    try:
        with open(f"{PROC}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mountinfo = file.read()
        with open(f"{PROC}/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            membership = file.read()
    except OSError:
        return None
    return parse_own_cgroup(mountinfo, membership)


def create_cgroup(folder: str) -> bool:
    """Make a cgroup that can be killed as a whole (cgroup.kill, Linux 5.14); return False if that is not allowed."""
    try:
        os.mkdir(folder)
    except OSError:
        return False
    if os.access(f"{folder}/cgroup.kill", os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK):
        return True
    remove_cgroup(folder)
    return False


def join_cgroup(folder: str) -> None:
    """Move the calling process into the cgroup; its later children start in it."""
    descriptor = os.open(f"{folder}/cgroup.procs", os.O_WRONLY)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def kill_cgroup(folder: str) -> None:
    """Kill all processes in the cgroup and its sub-cgroups, also those that are forked during the call."""
    try:
        descriptor = os.open(f"{folder}/cgroup.kill", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"1")
    except OSError:
        pass
    finally:
        os.close(descriptor)


def cgroup_occupied(folder: str) -> bool:
    """Return whether the cgroup or one of its sub-cgroups still contains a process (cgroup.events, 'populated')."""
    try:
        with open(f"{folder}/cgroup.events", encoding="ascii") as file:
            return "populated 1" in file.read()
    except OSError:
        return False


def remove_cgroup(folder: str) -> None:
    """Remove the cgroup and its sub-cgroups, except those that still contain processes."""
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(path)
        except OSError:
            pass


# --- this process ----------------------------------------------------------------------------------------------------


def exit_code(status: int) -> int:
    """Return the exit code for a status of wait(2), as a shell does: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def close_descriptors() -> None:
    """Close all inherited descriptors except 0, 1 and 2."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass


def describe(error: BaseException) -> str:
    """Return the error as one line of text, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__
