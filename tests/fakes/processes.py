"""Files in the format of /proc, for control groups and environments of processes that a test cannot create."""

from __future__ import annotations

import shutil
from pathlib import Path


class ProcTree:
    """Writer of the /proc files that an agent reads of a process. `root` replaces /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys" / "kernel" / "random").mkdir(parents=True, exist_ok=True)
        (root / "sys" / "kernel" / "random" / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")

    def add(
        self,
        pid: int,
        cgroup: str = "/",
        *,
        parent: int = 0,
        start_time: int = 100,
        environment: dict[str, str] | None = None,
        command: bytes = b"python\0train.py\0",
    ) -> None:
        """Add a process, or replace the one with that pid. start_time: ticks since boot, field 22 of stat."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        rest = ["0"] * 50
        rest[0], rest[1], rest[17], rest[19] = "S", str(parent), "1", str(start_time)
        (folder / "stat").write_text(f"{pid} (python) {' '.join(rest)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "cmdline").write_bytes(command)
        entries = [f"{key}={value}" for key, value in (environment or {}).items()]
        (folder / "environ").write_text("\0".join([*entries, ""]))

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))

    def add_gpu(self, address: str, uuid: str, minor: int) -> None:
        """Add a GPU in the format of the kernel driver's driver/nvidia/gpus."""
        folder = self.root / "driver" / "nvidia" / "gpus" / address
        folder.mkdir(parents=True)
        lines = ("Model: \t\t NVIDIA H100 80GB HBM3", f"GPU UUID: \t {uuid}", f"Bus Location: \t {address}")
        (folder / "information").write_text("\n".join((*lines, f"Device Minor: \t {minor}\n")))
