"""Attacks of a tenant on the agent of its node: ``python -m benchmarks.attack.attacks_node --json [NAME...]``.

Each attack runs against a real agent, as another user if the benchmark runs as root. Other clients must not be
affected: a scraper of /metrics, a rank of another tenant that reports steps, and a rank of the same job that
registers repeatedly. They are measured with and without the attack, in the same run. Attackers get only spare CPU
time (SCHED_IDLE), so that they slow down the others only through the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypedDict
from urllib.parse import urlparse

from agent.sources.proc.proc import read_process_stat
from benchmarks.attack.node_attackers import GANG, PROGRAMS, answer, connect, message, ring_file, send
from gangwatch import steps
from gangwatch.state_folder import StateFolder

REPOSITORY = Path(__file__).parents[2]

NODE = "n"
TENANT_UID = 65534
SECONDS = 6.0
START_SECONDS = 3.0
SCRAPES_A_SECOND, REGISTRATIONS_A_SECOND, STEPS_A_SECOND = 20, 8, 200


class Result(TypedDict):
    """Result of one attack.

    p99_ms_of_others: latency of scrapes of /metrics. registration_p99_ms: latency of an honest rank's registration.

    Names with _quiet are the same figures before the attack. lost: steps of the honest rank that were not counted,
    and registrations that were refused or too slow. wrong_actions: ranks that the agent publishes under the honest
    job's name but that do not belong to it. survived: the agent is the same process, and responds.
    """

    name: str
    survived: bool
    rss_growth_mib: float
    p99_ms_of_others: float
    p99_ms_of_others_quiet: float
    registration_p99_ms: float
    registration_p99_ms_quiet: float
    lost: int
    wrong_actions: int
    exposition_bytes: int
    refused: dict[str, int]


class Site:
    """A real agent in its own folder, with a step socket that every user may use. It runs inside the ``with`` block."""

    def __enter__(self) -> Site:
        self.folder = Path(tempfile.mkdtemp(prefix="gwa", dir="/tmp"))  # a socket's path may have 107 bytes
        self.folder.chmod(0o711)
        run = self.folder / "run"
        run.mkdir()
        run.chmod(0o711)
        self.socket = str(run / f"{NODE}.sock")
        self.state = StateFolder(self.folder / "state")
        config = self.folder / "gangwatch.toml"
        config.write_text(f'[agent]\nstep_socket = "{run}/{{node}}.sock"\nkubelet_socket = ""\n')
        self._log = (self.folder / "agent.log").open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gangwatch", "agent", "--state", str(self.state.path), "--node", NODE),
                *("--config", str(config), "--listen", "127.0.0.1:0"),
            ],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + 30
        while not (found := self.state.agents()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the agent does not start: {(self.folder / 'agent.log').read_text()}")
            time.sleep(0.05)
        self.url = urlparse(found[NODE].url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def metrics(self) -> str:
        """Return the text of /metrics. Raises OSError or http.client.HTTPException."""
        client = http.client.HTTPConnection(str(self.url.hostname), self.url.port, timeout=10)
        try:
            client.request("GET", "/metrics")
            reply = client.getresponse()
            body = reply.read()
            if reply.status != 200:
                raise http.client.HTTPException(f"status {reply.status}")
            return body.decode()
        finally:
            client.close()

    def resident_mib(self) -> float:
        """Return the agent's resident memory, including shared pages."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        return int(found[1]) / 1024 if found else 0.0

    def attest(self, pid: int, rank: int) -> None:
        """Write a rank file, so that the agent attests a process as a rank of the honest job."""
        stat = read_process_stat("/proc", pid)
        assert stat is not None
        folder = self.state.path / "ranks" / NODE
        folder.mkdir(parents=True, exist_ok=True)
        content = {"gang": GANG, "attempt": 1, "rank": rank, "pid": stat.pid, "start_time": stat.start_time}
        (folder / f"{GANG}.1.{rank}.json").write_text(json.dumps(content))


def reporting_rank() -> None:
    """Run an honest rank that reports steps. At a line of input it stops and prints their number."""
    reporter = steps.reporter()
    deadline = time.monotonic() + 20
    while reporter.status != "registered" and time.monotonic() < deadline:
        time.sleep(0.01)
    print(reporter.status, flush=True)
    written = 0
    while not select.select([sys.stdin], [], [], 1 / STEPS_A_SECOND)[0]:
        reporter.report(written, 0.001)
        written += 1
    sys.stdin.readline()
    print(written, flush=True)
    sys.stdin.readline()


def registering_rank() -> None:
    """Run an honest rank that registers at each line of input, and prints the duration in ms and the agent's
    response."""
    for _ in sys.stdin:
        descriptor = ring_file()
        began = time.perf_counter()
        try:
            with connect(os.environ["GANGWATCH_SOCKET"]) as client:
                send(client, message(gang=GANG, rank=0, attempt=1), [descriptor])
                said = answer(client)
        except OSError as error:
            said = str(error)
        os.close(descriptor)
        print(f"{(time.perf_counter() - began) * 1e3} {said}", flush=True)


HONEST: dict[str, Callable[[], None]] = {"coming": registering_rank, "reporting": reporting_rank}


@dataclass
class Others:
    """Honest clients, which an attack must not delay. Durations of their requests are in milliseconds."""

    site: Site
    rank: subprocess.Popen[str]
    scrapes: list[float] = field(default_factory=list)
    registrations: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    most_bytes: int = 0
    most_mib: float = 0.0

    def watch(self, seconds: float) -> None:
        """For `seconds`, scrape the agent, register a rank repeatedly, and measure the agent's memory."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._repeat, args=(until, call, rate))
            for call, rate in ((self._scrape, SCRAPES_A_SECOND), (self._register, REGISTRATIONS_A_SECOND))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, until: float, call: Callable[[], None], rate: float) -> None:
        due = time.monotonic()
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                call()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{call.__name__}: {error}")
            due = max(due + 1 / rate, time.monotonic())

    def _scrape(self) -> None:
        began = time.perf_counter()
        text = self.site.metrics()
        self.scrapes.append((time.perf_counter() - began) * 1e3)
        self.most_bytes = max(self.most_bytes, len(text))
        self.most_mib = max(self.most_mib, self.site.resident_mib())

    def _register(self) -> None:
        wake(self.rank)
        took_ms, _, said = line_of(self.rank).partition(" ")
        # The agent may not have noticed the end of this rank's previous connection yet.
        if said and "reported by process" not in said:
            self.failed.append(f"_register: {said}")
        self.registrations.append(float(took_ms))


def p99(times: list[float]) -> float:
    """Return the 99th percentile: the maximum if there are fewer than 100 values, NaN without values."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else float("nan")


@contextlib.contextmanager
def honest_rank(site: Site, name: str, rank: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process as an attested rank of the honest job. name: its program in HONEST."""
    environment = {**os.environ, "GANGWATCH_SOCKET": site.socket, "GANGWATCH_JOB": GANG, "RANK": str(rank)}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attack.attacks_node", "--honest", name],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        site.attest(process.pid, rank)
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wake(process: subprocess.Popen[str]) -> None:
    """Send an empty line to the process, which starts its next action."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _values(text: str, metric: str, **labels: str) -> dict[str, float]:
    """Return the values of a metric's series that have these labels, by the series' label text."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(metric + "{") and all(f'{name}="{value}"' in line for name, value in labels.items()):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    return found


def run(name: str, seconds: float = SECONDS) -> Result:
    """Run one attack on a new agent: `seconds` without the attack, then `seconds` with it."""
    count = PROGRAMS[name][1]
    with Site() as site, honest_rank(site, "reporting", 1) as reporting, honest_rank(site, "coming", 0) as coming:
        registered = line_of(reporting)
        quiet = Others(site, coming)
        quiet.watch(1.0)  # warm up until every path has been used once
        quiet = Others(site, coming)
        quiet.watch(seconds)
        before_mib = site.resident_mib()

        hurt = Others(site, coming)
        # Attackers start before the clock, and wait until it begins, so that their start is not measured.
        begin = time.monotonic() + START_SECONDS
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(attacker(name, site.socket, begin, begin + seconds))
            time.sleep(max(0.0, begin - time.monotonic()))
            hurt.watch(seconds)
        wake(reporting)
        written = int(line_of(reporting) or -1)
        time.sleep(2.5)
        try:
            text = site.metrics()
        except (OSError, http.client.HTTPException):
            text = ""
        counted = sum(_values(text, "gangwatch_rank_steps_total", gang=GANG, rank="1").values())
        wrong = [series for series in _values(text, "gangwatch_rank_steps_total", gang=GANG) if not _ours(series)]
        refused = _values(text, "gangwatch_step_reporters_refused_total")
        return {
            "name": name,
            "survived": site.process.poll() is None and bool(text) and registered == "registered",
            "rss_growth_mib": round(max(0.0, hurt.most_mib - before_mib), 1),
            "p99_ms_of_others": round(p99(hurt.scrapes), 2),
            "p99_ms_of_others_quiet": round(p99(quiet.scrapes), 2),
            "registration_p99_ms": round(p99(hurt.registrations), 2),
            "registration_p99_ms_quiet": round(p99(quiet.registrations), 2),
            "lost": max(0, written - int(counted)) + len(hurt.failed),
            "wrong_actions": len(wrong),
            "exposition_bytes": hurt.most_bytes,
            "refused": {_label(series): int(value) for series, value in refused.items() if value},
        }


def _ours(series: str) -> bool:
    return 'attempt="1"' in series and ('rank="0"' in series or 'rank="1"' in series)


def _label(series: str) -> str:
    found = re.search(r'reason="(\w+)"', series)
    return found[1] if found else ""


@contextlib.contextmanager
def attacker(name: str, path: str, begin: float, until: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that attacks from `begin` to `until`. If this process runs as root, the attacker is user nobody."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.attack.attacks_node",
        "--attacker",
        name,
        path,
        repr(begin),
        repr(until),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=REPOSITORY) as process:
        try:
            yield process
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(1.0, until - time.monotonic() + 5))
        finally:
            process.kill()


def _attack(name: str, path: str, begin: float, until: float) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(TENANT_UID)
        os.setuid(TENANT_UID)
    time.sleep(max(0.0, begin - time.monotonic()))
    with contextlib.suppress(OSError, TimeoutError):
        PROGRAMS[name][0](path, until)


ATTACKS: tuple[tuple[str, Callable[[], Result]], ...] = tuple(
    (f"node_{name.replace('-', '_')}", functools.partial(run, name)) for name in PROGRAMS
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="length of each measurement, without and with the attack"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--attacker", nargs=4, metavar=("NAME", "PATH", "BEGIN", "UNTIL"), help=argparse.SUPPRESS)
    parser.add_argument("--honest", choices=tuple(HONEST), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.honest:
        HONEST[options.honest]()
        return 0
    if options.attacker:
        name, path, begin, until = options.attacker
        _attack(name, path, float(begin), float(until))
        return 0
    for name in options.names:
        if name not in PROGRAMS:
            parser.error(f"unknown attack {name!r}; known: {', '.join(PROGRAMS)}")
    results = []
    for name in options.names or PROGRAMS:
        results.append(run(name, options.seconds))
        if not options.json:
            print(results[-1], flush=True)
    if options.json:
        print(json.dumps({"attacks": results}, indent=2))
    return 0 if all(one["survived"] and not one["wrong_actions"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
