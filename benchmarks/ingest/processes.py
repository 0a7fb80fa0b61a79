"""Processes of the benchmark besides the controller: simulated agents and their certificates; assignment of CPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AGENTS_A_PROCESS = 5_000


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Create a CA, and a certificate for 127.0.0.1 with its key. Return their paths.

    Raises RuntimeError if openssl is not installed.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        raise RuntimeError("the certificate of the made-up agents is signed by openssl: install the package 'openssl'")
    ca, ca_key, certificate, key = (folder / name for name in ("ca.pem", "ca.key", "agent.pem", "agent.key"))
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for arguments in (
        ("req", "-x509", *new_key, "-subj", "/CN=ca", "-keyout", str(ca_key), "-out", str(ca)),
        ("req", "-new", *new_key[:-2], "-subj", "/CN=agent", "-keyout", str(key), "-out", str(folder / "request")),
        ("x509", "-req", "-in", str(folder / "request"), "-CA", str(ca), "-CAkey", str(ca_key), "-CAcreateserial",
         "-days", "2", "-extfile", str(folder / "names"), "-out", str(certificate)),
    ):  # fmt: skip
        subprocess.run([openssl, *arguments], check=True, capture_output=True)
    return ca, certificate, key


@contextmanager
def generators(
    folder: Path,
    agents: int,
    misbehaving: int,
    seed: int,
    files: tuple[Path, Path],
    interval_seconds: float = 1.0,
    jobs: dict[str, Any] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the processes of the simulated agents, and write their addresses to folder/agents, as real agents do.

    jobs: arguments of ``timeline.Plan``, for jobs that start and end; None: every node has one job that never ends.
    """
    (folder / "agents").mkdir()
    running: list[subprocess.Popen[str]] = []
    bad: list[str] = []
    try:
        starts = range(0, agents, AGENTS_A_PROCESS)
        for first in starts:
            count = min(AGENTS_A_PROCESS, agents - first)
            share = misbehaving * count // agents
            settings = {
                "first": first, "count": count, "nodes": agents, "misbehaving": share, "seed": seed, "jobs": jobs,
                "certificate": str(files[0]), "key": str(files[1]), "interval_seconds": interval_seconds,
            }  # fmt: skip
            command = [sys.executable, "-m", "benchmarks.ingest.generator", json.dumps(settings)]
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            os.sched_setaffinity(running[-1].pid, processor_sets()[0])
        for process in running:
            assert process.stdout is not None
            announced = json.loads(process.stdout.readline() or "null")
            if announced is None:
                raise RuntimeError("a generator did not start")
            for node, behaviour in announced["nodes"]:
                url = f"https://127.0.0.1:{announced['port']}/{node}"
                record = {"pid": process.pid, "start_time": 1, "node": node, "url": url}
                (folder / "agents" / f"{node}.json").write_text(json.dumps(record))
                bad += [node] if behaviour else []
        (folder / "misbehaving").write_text(json.dumps(bad))
        yield running
    finally:
        for process in running:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.wait(30)


def processor_sets() -> tuple[set[int], set[int]]:
    """Return the CPUs for the simulated agents and those for the controller, which gets the last CPU if there are
    two."""
    every = sorted(os.sched_getaffinity(0))
    return (set(every[:-1]), set(every[-1:])) if len(every) > 1 else (set(every), set(every))


def reader_processes(pid: int) -> list[int]:
    """Return the reader processes of a controller (scheduler_feedback/feed/reader_process.py)."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in children for child in file.read_text().split()]
    return [child for child in found if b"reader_process" in Path(f"/proc/{child}/cmdline").read_bytes()]


def shared_memory_mib(pid: int) -> float:
    """Return the process's memory in MiB, of which shared pages count in proportion (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def cpu_seconds(pid: int) -> float:
    """Return a process's CPU time: fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
