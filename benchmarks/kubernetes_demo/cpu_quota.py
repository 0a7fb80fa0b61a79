"""The demo's fault: a CPU quota on the control group of a pod, which the controller has no information about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
_LOOK_SECONDS = 0.2


def group_of(uid: str) -> Path | None:
    """Return the control group of the pod, of version 1 (cpu) or 2; None if there is none."""
    for hierarchy in (GROUPS / "cpu", GROUPS):
        for cluster in hierarchy.glob("gangwatch-cluster/*/kubepods"):
            for folder in (cluster, cluster / "burstable", cluster / "besteffort"):
                if (found := folder / f"pod{uid}").is_dir():
                    return found
    return None


def use_seconds(group: Path) -> float:
    """Return the CPU seconds that the control group has used."""
    for folder in (group, Path(str(group).replace("/cpu/", "/cpuacct/", 1))):  # version 1: perhaps separate hierarchies
        if (folder / "cpuacct.usage").exists():
            return int((folder / "cpuacct.usage").read_text()) / 1e9
    fields = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(fields["usage_usec"]) / 1e6


def limit(group: Path, quota_us: int | None) -> None:
    """Let the control group run for `quota_us` in each period of 100 ms; None removes the limit."""
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
    else:
        (group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {PERIOD_US}")


class CpuQuota:
    """Slows one pod on a node, and each pod that comes to the node after it, until it is ended.

    pods: returns the uids of the pods that the fault may slow. lines: record of what was done and when (wall time).
    """

    def __init__(self, first: str, pods: Callable[[], set[str]], share: float, lines: list[dict[str, Any]]) -> None:
        self._first, self._pods, self._lines = first, pods, lines
        self._spared = pods() - {first}
        self._quota_us = max(1000, round(share * PERIOD_US))  # the kernel's least quota is 1 ms
        self._limited: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fault", daemon=True)

    def begin(self) -> None:
        self._say("began", pod=self._first, quota_us=self._quota_us)
        self._slow({self._first})
        self._thread.start()

    def end(self) -> None:
        """Remove all limits."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        for uid in self._limited:
            if (group := group_of(uid)) is not None:
                limit(group, None)
        self._say("ended")

    def _work(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._slow(self._pods() - self._spared)

    def _slow(self, uids: set[str]) -> None:
        for uid in uids - self._limited:
            if (group := group_of(uid)) is not None:
                limit(group, self._quota_us)
                self._limited.add(uid)
                self._say("holds", pod=uid)

    def _say(self, act: str, **detail: Any) -> None:
        self._lines.append({"act": act, "wall_ns": time.time_ns(), **detail})
