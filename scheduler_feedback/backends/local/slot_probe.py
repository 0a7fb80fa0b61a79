"""Probe of a node in quarantine: measures for which share of the time a process on a slot is suspended.

It runs as a job of gangwatch on the node (``python -I -S slot_probe.py --seconds 2``), does fixed work in a loop and
prints one JSON document. It exits with 0 if the slot is sound, 1 if it is not or cannot be measured, 2 for bad
arguments.

Its wall time has four parts: run time (CLOCK_PROCESS_CPUTIME_ID), waiting for a processor (run-queue wait, second field
of /proc/self/schedstat), time that the hypervisor took from its processor (steal, /proc/stat), and the rest. It never
sleeps and reads no disk. So during the rest it was suspended by a signal, a tracer or a freezer. The probe fails if
this share of the run is too large. A busy machine and a bandwidth limit cause run-queue wait, and a busy host causes
steal; neither fails a node. Steal is only known by processor; the probe uses the largest value of its allowed
processors, which favours the node.

It does not judge devices or the processor's speed: `iterations_per_cpu_second` is printed for comparison.
"""

from __future__ import annotations

import os
import sys
import time

MAX_SUSPENDED_SHARE = 0.1
"""Maximum share of the wall time for which the probe may be stopped. At 0.1 a gang is 11 % slower. Other
unexplained time is small in comparison: below 0.0002 of 2 s on an idle machine, with six busy processes on two
processors, and with half the processor taken by a bandwidth limit (measured on Linux 6.18)."""

_CHUNK_ITERATIONS = 20_000  # about a millisecond: much shorter than the run, much longer than a clock reading


class Unmeasurable(Exception):  # noqa: N818  (a result, not a failure of the program)
    """Error: the kernel does not provide a value that the probe needs."""


def parse_schedstat(text: str) -> int:
    """Return the run-queue wait in /proc/PID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst).

    Raises Unmeasurable if the kernel does not count it: then all values are zero although the process has run.
    """
    fields = text.split()
    if len(fields) != 3 or fields[0] == fields[2] == "0":
        raise Unmeasurable(f"/proc/self/schedstat has {text.strip()!r}")
    return int(fields[1])


def parse_steal(text: str, processors: set[int]) -> dict[int, int]:
    """Return the clock ticks that the hypervisor took from each of these processors, from /proc/stat (field 8)."""
    steal = {}
    for line in text.split("\n"):
        fields = line.split()
        if fields and fields[0].startswith("cpu") and fields[0][3:].isdigit() and len(fields) > 8:
            processor = int(fields[0][3:])
            if processor in processors:
                steal[processor] = int(fields[8])
    return steal


def suspended_share(wall_seconds: float, cpu_seconds: float, waited_seconds: float, stolen_seconds: float) -> float:
    """Return the share of the wall time, 0 to 1, without run time, run-queue wait and steal."""
    return min(1.0, max(0.0, (wall_seconds - cpu_seconds - waited_seconds - stolen_seconds) / wall_seconds))


def measure(seconds: float) -> dict[str, float]:
    """Compute for this many seconds, and return the parts of the elapsed time. Raises Unmeasurable."""
    processors = os.sched_getaffinity(0)
    tick_seconds = 1 / os.sysconf("SC_CLK_TCK")
    _work(_CHUNK_ITERATIONS)  # so that first accesses to memory are not measured
    steal_before, waited_before = _steal(processors), _waited_ns()
    cpu_before, wall_before = time.process_time_ns(), time.monotonic_ns()
    iterations = 0
    while (wall_ns := time.monotonic_ns() - wall_before) < seconds * 1e9:
        _work(_CHUNK_ITERATIONS)
        iterations += _CHUNK_ITERATIONS
    cpu_ns = time.process_time_ns() - cpu_before
    waited_ns = _waited_ns() - waited_before
    steal_after = _steal(processors)
    stolen_ticks = max((steal_after[each] - steal_before.get(each, 0) for each in steal_after), default=0)
    wall_seconds, cpu_seconds, waited_seconds = wall_ns / 1e9, cpu_ns / 1e9, waited_ns / 1e9
    stolen_seconds = stolen_ticks * tick_seconds
    return {
        "wall_seconds": wall_seconds,
        "cpu_seconds": cpu_seconds,
        "runqueue_wait_seconds": waited_seconds,
        "stolen_seconds": stolen_seconds,
        "suspended_share": suspended_share(wall_seconds, cpu_seconds, waited_seconds, stolen_seconds),
        "iterations_per_cpu_second": iterations / cpu_seconds if cpu_ns else 0.0,
    }


def _work(iterations: int) -> int:
    value = 1
    for _ in range(iterations):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return value


def _waited_ns() -> int:
    with open("/proc/self/schedstat", encoding="ascii") as file:
        return parse_schedstat(file.read())


def _steal(processors: set[int]) -> dict[int, int]:
    with open("/proc/stat", encoding="ascii") as file:
        return parse_steal(file.read(), processors)


def main() -> int:
    arguments = sys.argv[1:]
    try:
        if len(arguments) != 2 or arguments[0] != "--seconds":
            raise ValueError
        seconds = float(arguments[1])
        if not 0 < seconds < float("inf"):
            raise ValueError
    except ValueError:
        sys.stderr.write("usage: probe.py --seconds SECONDS\n")
        return 2
    try:
        measured = measure(seconds)
    except (Unmeasurable, OSError) as error:
        document: dict[str, object] = {"passed": False, "reason": f"cannot be measured: {error}"}
    else:
        share = measured["suspended_share"]
        passed = share < MAX_SUSPENDED_SHARE
        verdict = "below" if passed else "not below"
        document = {
            "passed": passed,
            "reason": f"suspended for {share:.1%} of the time, {verdict} {MAX_SUSPENDED_SHARE:.0%}",
            **measured,
        }
    import json  # after the measurement, so that its start-up is not measured

    sys.stdout.write(json.dumps(document) + "\n")
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
