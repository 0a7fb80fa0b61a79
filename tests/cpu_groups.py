"""CPU time of the tests by file, with that of every process that they started, also of daemons that outlive them.

Each file has its own control group of cgroup v1's cpuacct (https://docs.kernel.org/admin-guide/cgroup-v1/cpuacct.html),
which processes inherit. Without root or cgroup v1 there are no groups, and the CPU time of daemons is not counted.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CPUACCT = Path("/sys/fs/cgroup/cpuacct")

VARIABLE = "GANGWATCH_TEST_GROUPS"
"""Environment variable with the folder of the groups."""


@contextlib.contextmanager
def groups() -> Iterator[Path | None]:
    """Create a folder for the groups, and remove it at the end; None if that is not possible here."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(path for _, names, path in (line.split(":", 2) for line in lines) if "cpuacct" in names.split(","))
        folder = CPUACCT / own.lstrip("/") / f"gangwatch-tests-{os.getpid()}"
        folder.mkdir()
    except (OSError, StopIteration, ValueError):
        yield None
        return
    try:
        yield folder
    finally:
        for group in (*(one for one in folder.iterdir() if one.is_dir()), folder):
            with contextlib.suppress(OSError):  # it has ended, or its processes have
                for process in (group / "cgroup.procs").read_text().split():
                    (folder.parent / "cgroup.procs").write_text(process)
                group.rmdir()


def enter(folder: Path, file: str) -> None:
    """Move this process into the group of a test file. file: path from the root of the project."""
    group = folder / file.replace(os.sep, ":")
    with contextlib.suppress(OSError):  # only a figure would be missing
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))


def seconds(folder: Path) -> Counter[str]:
    """Return the CPU time in seconds by test file."""
    found: Counter[str] = Counter()
    for usage in folder.glob("*/cpuacct.usage"):
        found[usage.parent.name.replace(":", os.sep)] = int(usage.read_text()) / 1e9  # type: ignore[assignment]
    return found
