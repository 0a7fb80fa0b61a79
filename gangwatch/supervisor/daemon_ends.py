"""Record of each daemon's last unexpected end, and the message when no controller is running."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgspec

from gangwatch.state_folder import StateFolder, SupervisorRecord, write_atomically

CONTROLLER = "controller"

MOST_WORDS = 300


class DaemonEnd(msgspec.Struct, frozen=True):
    """The latest unexpected end of one daemon: when and how its process ended. Times are wall time in ns."""

    pid: int
    ended_ns: int
    next_start_ns: int
    exit_code: int | None = None
    """Exit code of the daemon; negative for a signal, as in os.waitstatus_to_exitcode.
    None if an earlier supervisor started the process."""
    words: str = ""
    """The last line that the daemon wrote on stderr; '' for none."""
    in_a_row: int = 1
    """Number of unexpected ends in a row. If the daemon has run for more than 10 s (the longest restart delay), its
    next end counts as the first again."""

    @property
    def reason(self) -> str:
        """Return how the daemon ended (exit code or signal), and its last line on stderr."""
        if self.exit_code is None:
            how = "ended"
        elif self.exit_code < 0:
            how = f"killed by {signal_name(-self.exit_code)}"
        else:
            how = f"exit code {self.exit_code}"
        return f"{how}: {self.words}" if self.words else how


def signal_name(number: int) -> str:
    """Return the name of a signal (SIGKILL for 9), or "signal N" if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _file(state: StateFolder) -> Path:
    return state.path / "daemon-ends.json"


def read_ends(state: StateFolder) -> dict[str, DaemonEnd]:
    """Return the last unexpected end of each daemon, by daemon name; empty if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(_file(state).read_bytes(), type=dict[str, DaemonEnd])
    except (OSError, msgspec.DecodeError):
        return {}


def write_end(state: StateFolder, name: str, end: DaemonEnd) -> None:
    """Store the daemon's latest unexpected end. Raises OSError if the state folder can't be written."""
    write_atomically(_file(state), msgspec.json.encode({**read_ends(state), name: end}))


def forget_ends(state: StateFolder) -> None:
    """Delete the record of unexpected ends, after the daemons were stopped on purpose."""
    _file(state).unlink(missing_ok=True)


def why_no_controller(state: StateFolder) -> str:
    """Return a sentence: why no controller of this state folder is reachable, and what the user can do."""
    left = state.supervisor_left()
    end = read_ends(state).get(CONTROLLER)
    if left is None:
        return f"no controller is running for {state}: start one with `gangwatch up`"
    if not left.alive():
        ended = f"; the controller ended {_ago(end.ended_ns)}: {end.reason}" if end is not None else ""
        return (
            f"no controller is running for {state}, and its supervisor has ended{ended}: start both with `gangwatch up`"
        )
    if end is None or _pid_of(left) not in (None, end.pid):
        again = f" again (it ended {_ago(end.ended_ns)}: {end.reason})" if end is not None else ""
        return f"the controller of {state} is starting{again}: try again in a moment"
    wait_s = max(0.0, (end.next_start_ns - time.time_ns()) / 1e9)
    often = f", {end.in_a_row} times in a row" if end.in_a_row > 1 else ""
    return (
        f"the controller of {state} is being restarted (ended {_ago(end.ended_ns)}{often}: {end.reason}; "
        f"next attempt in {wait_s:.0f} s). Running jobs continue. See {state.log_file(CONTROLLER)}"
    )


def _pid_of(left: SupervisorRecord) -> int | None:
    """Return the pid of the supervisor's controller process; None if this process has ended."""
    record = left.daemons.get(CONTROLLER)
    return record.pid if record is not None and record.alive() else None


def _ago(wall_ns: int) -> str:
    seconds = max(0.0, (time.time_ns() - wall_ns) / 1e9)
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
