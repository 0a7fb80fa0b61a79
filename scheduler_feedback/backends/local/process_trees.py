"""Search for the processes that a dead shim has left, with psutil. Only the controller uses it.

The shim itself has no psutil: it runs in a bare interpreter. See local_processes.py, whose `Stat` has the start time in
clock ticks. psutil's public creation time is derived from the wall clock and changes if the clock is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psutil

from scheduler_feedback.backends.local.local_processes import Stat, read_stat


def with_environment(variables: Mapping[str, str]) -> list[Stat]:
    """Return running processes whose readable initial environment has all of these variables."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):  # it ended, or is another user's
            continue
        if variables.items() <= environment.items():
            found.append(process.pid)
    return _running(found)


def descendants(ancestors: Iterable[int]) -> list[Stat]:
    """Return the running descendants of these processes, without the processes themselves."""
    own, found = set(ancestors), dict[int, None]()
    for pid in own:
        try:
            found.update(dict.fromkeys(child.pid for child in psutil.Process(pid).children(recursive=True)))
        except psutil.Error:  # it ended
            continue
    return _running(pid for pid in found if pid not in own)


def _running(pids: Iterable[int]) -> list[Stat]:
    return [stat for pid in pids if (stat := read_stat(pid)) is not None and not stat.gone]
