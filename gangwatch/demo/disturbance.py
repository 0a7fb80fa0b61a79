"""The demo's fault: a separate process that slows the processes in one slot.

It stops and continues (SIGSTOP, SIGCONT) the processes of one slot of one node. It finds them through the rank files,
as agents do, and does not contact the controller. It prints each stop and continuation as a JSON line on standard
output, from which the report takes the begin and end of the fault.

Signals are sent through a pidfd, after a comparison with the start time in the rank file, so a process that reuses
the pid is never signalled. Unless it is killed with SIGKILL, the program continues all stopped processes before it
exits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of the disturbance: a rank is stopped for a random time (`held`), then runs for a random time (`free`).

    Each field is a range in seconds from which the times are drawn uniformly.
    """

    held: tuple[float, float] = (0.12, 0.32)
    free: tuple[float, float] = (0.10, 0.25)

    def pauses(self, source: random.Random) -> Iterator[tuple[float, float]]:
        """Yield endless random pairs: seconds to stop a rank, seconds to let it run."""
        while True:
            yield source.uniform(*self.held), source.uniform(*self.free)


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the process's start time in clock ticks since boot (field 22 of /proc/PID/stat); None if it has exited."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def processes_of(ranks_folder: Path, slot: int) -> list[tuple[int, int]]:
    """Return (pid, start time) of every rank in the slot."""
    found: list[tuple[int, int]] = []
    for path in sorted(ranks_folder.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            continue  # removed or replaced during the read: the next round reads it
        if record.get("slot") == slot:
            found.append((int(record["pid"]), int(record["start_time"])))
    return found


def send(pid: int, started: int, what: signal.Signals) -> bool:
    """Send a signal to the process with this pid and start time; return False if the process has exited."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(descriptor, what)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def say(act: str, **detail: object) -> None:
    line = {"act": act, "wall_ns": time.time_ns(), **detail}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class _EndedError(Exception):
    """Exception that a signal handler raises to end the program."""


def disturb(ranks_folder: Path, slot: int, seed: int, pattern: Pattern, seconds: float) -> None:
    """Alternately stop and continue the slot's processes for `seconds`, or until a signal arrives."""
    source = random.Random(seed)
    until = time.monotonic() + seconds
    held: list[tuple[int, int]] = []
    said: set[tuple[int, int]] = set()
    say("began", slot=slot, folder=ranks_folder.name)
    try:
        for hold, free in pattern.pauses(source):
            if time.monotonic() >= until:
                break
            held = [
                (pid, started)
                for pid, started in processes_of(ranks_folder, slot)
                if send(pid, started, signal.SIGSTOP)
            ]
            for process in held:
                if process not in said:
                    said.add(process)
                    say("holds", pid=process[0])
            time.sleep(hold)
            for pid, started in held:
                send(pid, started, signal.SIGCONT)
            held = []
            time.sleep(free)
    finally:
        for pid, started in held:
            send(pid, started, signal.SIGCONT)
        say("ended")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-folder", type=Path, required=True, help="STATE/ranks/NODE")
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args(arguments)

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _EndedError

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    with contextlib.suppress(_EndedError):
        disturb(given.ranks_folder, given.slot, given.seed, Pattern(), given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
