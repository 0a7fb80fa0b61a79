"""The fault of the demonstration: a separate process that takes run time away from whatever runs in one slot.

It stops and continues (SIGSTOP, SIGCONT) the processes of one slot of one node, found through the same rank files that
agents read. The controller is not told. Standard library only; every act is a JSON line on standard output, so that the
report can say when the fault began and ended.

Signals go through a pidfd, and the start time in the rank file is compared first: a process that merely inherited the
number is never touched. Whatever was stopped is continued before the program ends, whichever way it ends but SIGKILL.
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
    """How long a process is held and let go in turn, each drawn uniformly from its range; seconds."""

    held: tuple[float, float] = (0.12, 0.32)
    free: tuple[float, float] = (0.10, 0.25)

    def pauses(self, source: random.Random) -> Iterator[tuple[float, float]]:
        """Endless pairs of (held, free) seconds."""
        while True:
            yield source.uniform(*self.held), source.uniform(*self.free)


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Clock ticks since boot at which the process started (field 22 of /proc/PID/stat); None where it is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def processes_of(ranks_folder: Path, slot: int) -> list[tuple[int, int]]:
    """(pid, start time) of every rank that stands in the slot now."""
    found: list[tuple[int, int]] = []
    for path in sorted(ranks_folder.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            continue  # removed or replaced while we looked: the next round sees it
        if record.get("slot") == slot:
            found.append((int(record["pid"]), int(record["start_time"])))
    return found


def send(pid: int, started: int, what: signal.Signals) -> bool:
    """Send a signal to exactly this process; False where it is gone."""
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
    """A signal asked the program to end."""


def disturb(ranks_folder: Path, slot: int, seed: int, pattern: Pattern, seconds: float) -> None:
    """Hold and release the slot's processes in turn for `seconds`, or until a signal ends it."""
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
