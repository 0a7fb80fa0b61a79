"""Checks that no daemon ends unexpectedly."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ordinary.oracle.facts import Doubt, Facts, Instant


def nothing_ended(facts: Facts, _now: Instant) -> Iterator[Doubt]:
    """Check that every daemon still runs. facts.daemons does not contain daemons that the test has stopped."""
    for daemon in facts.daemons.values():
        if daemon.pid < 0 and daemon.touched is None:
            yield Doubt("daemon_ended", daemon.name, f"{daemon.name} (pid {-daemon.pid}) ended unexpectedly")
