"""Fake /proc of a node: the system files that the host collector reads, without processes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

PROCESSORS = 4


class ProcTree:
    """Writer of the files. It also advances their counters."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds = 3600.0
        self._interfaces: Sequence[str] = ()

    def write(self, interfaces: Sequence[str]) -> None:
        """Write all files with the values of one hour after boot."""
        self._interfaces = interfaces
        for folder in ("net", "1/net", "pressure", "self", "sys/kernel/random"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid5(uuid.NAMESPACE_URL, str(self._root))}\n")
        (self._root / "loadavg").write_text("2.21 2.37 2.39 3/719 19737\n")
        (self._root / "meminfo").write_text(
            "MemTotal:       2113421824 kB\nMemFree:        1913421824 kB\nMemAvailable:   2013421824 kB\n"
            "Buffers:           1048576 kB\nCached:          104857600 kB\nSwapCached:              0 kB\n"
            "Active:           62914560 kB\nInactive:         52428800 kB\nShmem:             2097152 kB\n"
            "Slab:              8388608 kB\nSReclaimable:      4194304 kB\n"
        )
        (self._root / "self/mountstats").write_text(
            "device /dev/nvme0n1p2 mounted on / with fstype ext4\n"
            "device filer:/data mounted on /data with fstype nfs4 statvers=1.1\n"
            "\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp\n"
            "\tage:\t3600\n"
            "\tbytes:\t1000 2000 0 0 4096000 2048000 1000 500\n"
            "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
            "\txprt:\ttcp 0 0 1 0 0 5000 5000 0 5000 0 2 100 200\n"
            "\tper-op statistics\n"
            "\t        READ: 4000 4000 0 640000 4096000 100 12000 12400 0\n"
            "\t       WRITE: 1000 1002 2 2048000 128000 50 9000 9100 0\n"
        )
        self._write()

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._write()

    def _write(self) -> None:
        ticks = round(self._seconds * 100)
        busy, idle = ticks, ticks * (PROCESSORS - 1)
        lines = [f"cpu  {busy} 0 {ticks // 10} {idle} {ticks // 100} 0 {ticks // 50} 0 0 0"]
        lines += [
            f"cpu{index} {busy // PROCESSORS} 0 0 {idle // PROCESSORS} 0 0 0 0 0 0" for index in range(PROCESSORS)
        ]
        lines += [
            f"ctxt {ticks * 50}",
            "btime 1750000000",
            f"processes {ticks // 10}",
            "procs_running 3",
            "procs_blocked 1",
        ]
        self._replace("stat", lines)
        self._replace("uptime", [f"{self._seconds:.2f} {self._seconds * 3:.2f}"])
        self._replace("vmstat", ["nr_free_pages 478355456", f"pgmajfault {ticks // 100}", "oom_kill 0"])
        self._replace(
            "diskstats",
            [
                f" 259 0 nvme0n1 {ticks} 0 {ticks * 8} {ticks // 10} {ticks} 0 {ticks * 8} {ticks // 5} 1 {ticks} "
                f"{ticks // 2} 0 0 0 0 0 0"
            ],
        )
        total = round(self._seconds * 1e6)
        for resource in ("cpu", "io", "memory"):
            self._replace(
                f"pressure/{resource}",
                [
                    f"some avg10=0.10 avg60=0.10 avg300=0.10 total={total // 1000}",
                    f"full avg10=0.00 avg60=0.00 avg300=0.00 total={total // 5000}",
                ],
            )
        header = ["Inter-|   Receive  |  Transmit", " face |bytes packets errs drop fifo frame compressed multicast|"]
        table = [
            f"  {name}: {ticks * 100} {ticks} 0 0 0 0 0 0 {ticks * 100} {ticks} 0 0 0 0 0 0"
            for name in ("lo", *self._interfaces)
        ]
        for path in ("net/dev", "1/net/dev"):
            self._replace(path, header + table)

    def _replace(self, path: str, lines: Sequence[str]) -> None:
        """Write the file in place, because the agent keeps its descriptors open."""
        file = self._root / path
        text = ("\n".join(lines) + "\n").encode()
        with file.open("r+b" if file.exists() else "w+b") as opened:
            opened.write(text)
            opened.truncate()
