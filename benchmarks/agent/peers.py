"""Peer exporters for comparison: nvitop-exporter from PyPI and Debian's prometheus-node-exporter, on the fake node."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.agent.hardware import Hardware
from benchmarks.agent.programs import Program
from tests.ports import held_port

NVITOP_EXPORTER = "nvitop-exporter==1.7.2"
"""Release of nvitop-exporter that is measured. Change this line to measure a newer one."""


def nvitop_program(cache: Path) -> Path:
    """Return nvitop-exporter, installed in a virtual environment at the first call. Raises RuntimeError if that
    fails."""
    folder = cache / NVITOP_EXPORTER.replace("==", "-")
    program = folder / "bin" / "nvitop-exporter"
    if not program.exists():
        print(f"installing {NVITOP_EXPORTER} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        made = subprocess.run(
            [folder / "bin" / "pip", "install", "--quiet", NVITOP_EXPORTER], capture_output=True, text=True
        )
        if made.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeError(f"{NVITOP_EXPORTER} can't be installed: {made.stderr.strip()[-400:]}")
    return program


def nvitop_exporter(hardware: Hardware, cache: Path, log: Path, *, processes: bool = True) -> Program:
    port = held_port()
    command = [str(nvitop_program(cache)), "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"]
    environment = {**hardware.environment_of(processes), "LD_LIBRARY_PATH": str(hardware.library.parent)}
    return Program("nvitop-exporter", command, port, log, environment)


def node_exporter(hardware: Hardware, log: Path) -> Program:
    """Return node_exporter as a program to measure. Raises RuntimeError if it is not installed."""
    found = shutil.which("prometheus-node-exporter")
    if found is None:
        raise RuntimeError("prometheus-node-exporter is absent: apt-get install prometheus-node-exporter")
    port = held_port()
    command = [
        found,
        f"--path.sysfs={hardware.root}",
        "--collector.disable-defaults",
        "--collector.infiniband",
        "--web.disable-exporter-metrics",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    return Program("node_exporter", command, port, log)
