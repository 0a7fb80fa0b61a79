"""Restart of a controller that lost its Lease: the same process executes its program again, and is a standby.

Nothing in memory survives: no thread, connection, request or timer of the old term. See decision 140.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn

from agent.schema.errors import GangwatchError
from agent.schema.sample import Sample
from gangwatch.daemons.controller_daemon import StopRequest
from gangwatch.state_folder import StateFolder

LOST_LEASES = "gangwatch_lost_leases_total"
"""Metric: number of times that this process lost the Lease."""

STOP_SECONDS = 10.0
"""Time that a controller has to stop before its program is executed again anyway. It stops within about two seconds
unless a thread hangs. The journal is as after a kill then, which each start handles."""

_VARIABLE = "GANGWATCH_LOST_LEASES"
"""Environment variable with which the count is passed on."""

_log = logging.getLogger("gangwatch.kubernetes")


def lost_leases() -> int:
    """Return how many times this process has lost the Lease."""
    text = os.environ.get(_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def measures() -> list[Sample]:
    """Return the number of lost Leases. Any thread may call it."""
    return [(LOST_LEASES, (), float(lost_leases()))]


def stop_and_restart(state: StateFolder, stop: StopRequest) -> None:
    """Stop the controller because its Lease is lost. If that takes more than STOP_SECONDS, restart without it."""
    stop.restart()
    timer = threading.Timer(STOP_SECONDS, _restart_hung, (state, stop))
    timer.daemon = True
    timer.start()


def _restart_hung(state: StateFolder, stop: StopRequest) -> None:
    if stop.made:
        return  # the process ends
    _log.error("the controller did not stop within %.0f s after it lost the Lease", STOP_SECONDS)
    try:
        restart(state)
    except GangwatchError as error:
        _log.error("%s", error)
        os._exit(1)


def restart(state: StateFolder) -> NoReturn:
    """Execute this program again in this process, with the same command line.

    Raises GangwatchError if that is not possible, for example because Python was removed during an upgrade.
    """
    os.environ[_VARIABLE] = str(lost_leases() + 1)
    (state.path / "controller.json").unlink(missing_ok=True)  # a restart does not change pid and start time
    _log.warning("starts again as a standby")
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        raise GangwatchError(f"the controller cannot be started again with {sys.executable}: {error}") from error
