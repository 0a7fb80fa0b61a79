"""The fake node that all measured programs read: ``python -m benchmarks.agent.hardware FOLDER``.

Eight H100 with NVSwitch (a C library with NVML's real interface), eight NICs with their counter files, and a kubelet
that gives each GPU to a pod. It is a separate process, so that its CPU time does not count as the readers'.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

GPUS = 8
NICS = 8


@dataclass(frozen=True, slots=True)
class Hardware:
    """Paths of the fake node. library: the fake NVML. root: folder of /sys and /proc. kubelet: the kubelet's socket."""

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "libnvidia-ml.so.1"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet.sock"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that make the fake NVML return this node's GPUs."""
        return {"GANGWATCH_FAKE_NVML_BOARD": "h100"}

    def environment_of(self, processes: bool) -> dict[str, str]:
        """Return the environment variables with which each GPU has one process, or none."""
        return self.environment if processes else {**self.environment, "GANGWATCH_FAKE_NVML_PROCESSES": "0"}


class HardwareProcess:
    """The running fake node. Entering the context starts it."""

    def __init__(self, folder: Path) -> None:
        self.hardware = Hardware(folder)

    def __enter__(self) -> Hardware:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.agent.hardware", str(self.hardware.folder)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"ready":
            raise RuntimeError("the fake node did not come up")
        return self.hardware

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(folder: Path) -> None:
    """Build the node and advance its counters once a second until the process is stopped."""
    from agent.sources.kubelet.pod_resources import Container, Pod
    from tests.fakes.kubelet import FakeKubelet
    from tests.fakes.nvml.build import build as build_nvml
    from tests.fakes.sysfs.tree import build as build_tree

    hardware = Hardware(folder)
    build_nvml(folder)
    tree = build_tree(hardware.root, nics=NICS, gpus=GPUS)
    pods = [
        Pod("training", f"worker-{index}", (Container("main", (("nvidia.com/gpu", _uuid(index)),)),))
        for index in range(GPUS)
    ]
    with FakeKubelet(hardware.kubelet, pods):
        print("ready", flush=True)
        while True:
            time.sleep(1.0)
            tree.advance(1.0)


def _uuid(index: int) -> str:
    """Return the UUID of one GPU of the fake node."""
    return f"GPU-00000001-0000-4000-8000-{index:012d}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
