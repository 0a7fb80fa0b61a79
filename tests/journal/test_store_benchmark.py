"""The store's benchmark at a small size: written data can be read after a kill, and from the beginning."""

from __future__ import annotations

from benchmarks.store import SNAPSHOT_CYCLES, measure


def test_what_was_written_comes_back() -> None:
    figures = measure(3000)
    assert figures["restarted_alike"] and figures["replayed_alike"]
    assert figures["replayed_events"] == figures["events"]
    snapshots, cycles, restart_cycles = (figures[name] for name in ("snapshots", "cycles", "restart_cycles"))
    assert isinstance(snapshots, int) and isinstance(cycles, int) and isinstance(restart_cycles, int)
    assert snapshots == cycles // SNAPSHOT_CYCLES > 2, "old cycles were compacted"
    assert restart_cycles == cycles % SNAPSHOT_CYCLES, "a restart replays the cycles after the newest snapshot"
