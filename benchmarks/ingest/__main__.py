"""Cost of receiving agents' frames in the controller: ``python -m benchmarks.ingest --json``.

Agents on nodes of eight H100 and eight NICs send a frame a second to the controller's own subscription, over real
sockets with TLS, from separate processes; their ranks report steps. The controller's side is the product's feed, fleet
and detectors in one process, which is measured whole: ``cpu_cores`` is its CPU time over the wall time, and a frame's
age runs from its creation by the agent to the end of the detector tick that judged it. A last run has one agent in ten
slow, silent, malformed or flooding, and measures the effect on the others.

If the machine can't make that many frames a second next to the controller, ``--interval`` makes each agent send fewer;
then compare ``cpu_us_a_frame``.

Exits 1 if a bound of the largest size is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZES = (1_000, 10_000)
WARM_SECONDS = 20.0
SECONDS = 60.0
AGENTS_A_PROCESS = 5_000
MISBEHAVING_SHARE = 0.1

BOUNDS = {"cpu_cores": 1.0, "frame_age_seconds_p99": 2.0, "rss_mib": 1228.8, "kb_a_stream": 100.0}
"""Bounds for 10,000 agents."""

Figures = dict[str, object]


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Return a CA, a certificate for 127.0.0.1 and its key. Raises RuntimeError if there is no openssl."""
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
    folder: Path, agents: int, misbehaving: int, seed: int, files: tuple[Path, Path], interval_seconds: float = 1.0
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the agents' processes and announce them in folder/agents."""
    (folder / "agents").mkdir()
    running: list[subprocess.Popen[str]] = []
    bad: list[str] = []
    try:
        starts = range(0, agents, AGENTS_A_PROCESS)
        for first in starts:
            count = min(AGENTS_A_PROCESS, agents - first)
            share = misbehaving * count // agents
            command = [sys.executable, "-m", "benchmarks.ingest.generator"]
            command += [str(number) for number in (first, count, agents, share, seed)] + [str(file) for file in files]
            command.append(str(interval_seconds))
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
    """Return the processors for the generators and for the controller: it gets the last one, if there are two."""
    every = sorted(os.sched_getaffinity(0))
    return (set(every[:-1]), set(every[-1:])) if len(every) > 1 else (set(every), set(every))


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Return a process's CPU time: fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5))."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    agents: int, misbehaving: int, warm_seconds: float, seconds: float, seed: int, interval_seconds: float
) -> Figures:
    """Measure one controller with this many agents, some of which misbehave."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-ingest-") as name:
        folder = Path(name)
        ca_file, certificate, key = certificates(folder)
        with generators(folder, agents, misbehaving, seed, (certificate, key), interval_seconds) as running:
            bad = len(json.loads((folder / "misbehaving").read_text()))
            command = [sys.executable, "-m", "benchmarks.ingest.controller", name, str(ca_file), str(agents - bad)]
            begun, before = time.monotonic(), sum(map(cpu_seconds, running))
            command += [str(warm_seconds), str(seconds)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
                os.sched_setaffinity(controller.pid, processor_sets()[1])
                printed, _ = controller.communicate()
            if controller.returncode:
                raise RuntimeError(f"the controller ended with status {controller.returncode}")
            wall, cpu = time.monotonic() - begun, sum(map(cpu_seconds, running)) - before
        figures: Figures = json.loads(printed.splitlines()[-1])
        return {
            **figures,
            "interval_seconds": interval_seconds,
            "misbehaving": bad,
            "generators_cpu_cores": round(cpu / wall, 3),
        }


def missed(figures: Figures) -> list[str]:
    """Return the missed bounds as sentences."""
    return [
        f"{key} is {figures[key]}, at most {bound}" for key, bound in BOUNDS.items() if float(str(figures[key])) > bound
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="Example: python -m benchmarks.ingest --agents 1000 --seconds 20 --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--agents", type=int, action="append", help="sizes (default 1000 and 10000)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time (default {SECONDS:.0f})")
    parser.add_argument("--warm", type=float, default=WARM_SECONDS, help=f"before it (default {WARM_SECONDS:.0f})")
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between an agent's frames (default 1); use more if the "
        "machine's other processors can't make the frames in time"
    )  # fmt: skip
    parser.add_argument("--no-misbehaving", action="store_true", help="leave out the run with bad agents")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sizes = arguments.agents or list(SIZES)
    report: dict[str, object] = {}
    for agents in sizes:
        report[str(agents)] = measure(agents, 0, arguments.warm, arguments.seconds, arguments.seed, arguments.interval)
        print(f"{agents} agents: {report[str(agents)]}", file=sys.stderr)
    if not arguments.no_misbehaving:
        agents = min(sizes)
        bad = int(agents * MISBEHAVING_SHARE)
        found = measure(agents, bad, arguments.warm, arguments.seconds, arguments.seed, arguments.interval)
        report["misbehaving"] = found
        print(f"{agents} agents, {bad} misbehaving: {found}", file=sys.stderr)
    largest = report[str(max(sizes))]
    assert isinstance(largest, dict)
    wrong = missed(largest)
    report["machine"] = {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
    }
    if arguments.json:
        print(json.dumps({**report, "missed": wrong}, indent=2))
    for line in wrong:
        print(f"MISSED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
