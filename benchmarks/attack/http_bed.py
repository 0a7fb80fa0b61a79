"""Real daemons for the HTTP attacks, and honest clients whose requests are measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

START_SECONDS = 60.0
"""Maximum seconds until a daemon has started, or responds while it is attacked. A shared machine may be slow."""

NODE = "node-0"
"""Name of the node of every test cluster in this module."""

TENANT_UID = 65_534
"""User id of nobody. Attackers run as this user if the benchmark may change users."""

_PREAMBLE = """
import http.client, json, os, random, resource, select, socket, ssl, struct, sys, threading, time
"".encode("idna")
user = int(sys.argv.pop(1))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
if user and os.geteuid() == 0:
    os.setgroups([]); os.setgid(user); os.setuid(user)
"""
"""First lines of every attacker's program. They change the user after the imports, which that user may not be able to
read."""


class BedError(Exception):
    """A daemon did not start, or did not respond to an honest client."""


@dataclass(slots=True)
class Daemon:
    """One process of the product under attack."""

    process: subprocess.Popen[bytes]
    """Process of the daemon."""

    url: str
    """URL of the daemon."""

    folder: Path
    """State folder of the daemon."""

    token: str = ""
    """Token from the daemon's state folder."""

    waits: list[float] = field(default_factory=list)
    """Seconds of each honest request in the current measurement."""

    failures: list[str] = field(default_factory=list)
    """Honest requests that got no response, or were refused."""

    @property
    def port(self) -> int:
        """Return the port at which the daemon listens."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def alive(self) -> bool:
        """Return whether the daemon still runs and was not restarted."""
        return self.process.poll() is None

    def rss_mib(self) -> float:
        """Return the daemon's resident memory in MiB; 0 once the process has ended."""
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        except OSError:
            pass
        return 0.0

    def descriptors(self) -> int:
        """Return the number of files that the daemon has opened."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def ask(self, method: str, path: str, body: Any = None, token: bool = True, seconds: float = 20.0) -> Any:
        """Send one request on a new connection. Raises BedError unless it succeeds."""
        headers = {"Authorization": f"Bearer {self.token}"} if token and self.token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BedError(f"{method} {path}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status >= 300:
            raise BedError(f"{method} {path}: {response.status} {content[:200]!r}")
        return json.loads(content) if "json" in (response.headers["content-type"] or "") else content

    def honest(self, method: str, path: str, body: Any = None, token: bool = True, seconds: float = 20.0) -> None:
        """Send a request as an honest client, and record its duration or its failure."""
        begun = time.perf_counter()
        try:
            self.ask(method, path, body, token, seconds)
        except BedError as error:
            self.failures.append(str(error))
        self.waits.append(time.perf_counter() - begun)

    def measured(self, honest: Callable[[Daemon], None], until: Callable[[], bool]) -> list[float]:
        """Repeat the honest request, at least once, until `until` returns True. Return the duration of each in
        seconds."""
        self.waits = []
        while not self.waits or not until():
            honest(self)
        return self.waits


def write(daemon: Daemon) -> None:
    """Send an operator's command to the controller, as an honest client."""
    daemon.honest("POST", f"/api/nodes/{NODE}/release", {"by": "operator"})


def scrape(daemon: Daemon) -> None:
    """Scrape the agent's /metrics, as an honest client."""
    daemon.honest("GET", "/metrics", token=False)
    time.sleep(0.02)


def percentile(waits: Sequence[float], share: float) -> float:
    """Return a percentile of the durations in milliseconds. waits: durations in seconds. share: 0 to 1."""
    return 1000 * float(np.quantile(waits, share))


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Return a function that returns true once `seconds` have passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


# --- starting --------------------------------------------------------------------------------------------------------


def _start(arguments: Sequence[str], folder: Path, nofile: int | None) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GANGWATCH_", "XDG_"))}
    # -P as the program's own guard would: it prevents imports of modules in the current folder.
    command = [sys.executable, "-m", "gangwatch", *arguments]
    prefix = ["prlimit", f"--nofile={nofile}:{nofile}"] if nofile is not None else []
    return subprocess.Popen(
        [*prefix, *command],
        env=kept | {"HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], file: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(file.read_bytes())
            return found
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise BedError(f"{file}: the daemon has not written it; exit code {process.poll()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def controller(*options: str, jobs: int = 0, nofile: int | None = None, slots: int = 2) -> Iterator[Daemon]:
    """Run a real controller of two nodes with `slots` slots in total. jobs: number of submitted jobs, of which one
    runs."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-attack-") as name:
        folder = Path(name)
        state = folder / "state"
        arguments = ("controller", "--state", str(state), "--nodes", "2", "--slots", str(slots // 2), "--port", "0")
        process = _start([*arguments, "--no-gpus", *options], folder, nofile)
        try:
            record = _wait(process, state / "controller.json")
            daemon = Daemon(process, record["url"], state, (state / "token").read_text().strip())
            deadline = time.monotonic() + START_SECONDS
            while True:
                with contextlib.suppress(BedError):
                    daemon.ask("GET", "/readyz", seconds=5.0)
                    break
                if time.monotonic() > deadline or not daemon.alive():
                    raise BedError("the controller is not ready")
                time.sleep(0.05)
            if jobs:
                _fill(daemon, jobs, slots)
            yield daemon
            if jobs:
                with contextlib.suppress(BedError):
                    for job in daemon.ask("GET", "/api/jobs?state=running,starting"):
                        daemon.ask("POST", f"/api/jobs/{job['job']}/cancel", {})
                time.sleep(0.5)
        finally:
            _stop(process)


def _fill(daemon: Daemon, jobs: int, slots: int) -> None:
    """Submit jobs with different names, users and queues. The first one takes all slots, so that the others are
    pending."""
    common = {"command": ["sleep", "3600"], "grace_seconds": 0.1, "time_limit_seconds": 86_400}
    daemon.ask("POST", "/api/jobs", common | {"name": "head", "ranks": slots, "user": "ana"})
    left, number = jobs - 1, 0
    while left:
        size = min(left, 500)
        body = common | {"name": f"sweep-{number}", "ranks": slots, "user": f"user-{number % 20}", "array_size": size}
        daemon.ask("POST", "/api/jobs", body, seconds=START_SECONDS)
        left, number = left - size, number + 1


@contextlib.contextmanager
def agent(*options: str, nofile: int | None = None) -> Iterator[Daemon]:
    """Run a real agent of one node; yield once it has made a frame."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-attack-") as name:
        folder = Path(name)
        state = folder / "state"
        process = _start(
            ["agent", "--state", str(state), "--node", NODE, "--slots", "2", "--listen", "127.0.0.1:0", *options],
            folder,
            nofile,
        )
        try:
            record = _wait(process, state / "agents" / f"{NODE}.json")
            daemon = Daemon(process, record["url"], state)
            deadline = time.monotonic() + START_SECONDS
            while True:
                with contextlib.suppress(BedError):
                    daemon.ask("GET", "/readyz", seconds=5.0)
                    break
                if time.monotonic() > deadline or not daemon.alive():
                    raise BedError("the agent is not ready")
                time.sleep(0.05)
            yield daemon
        finally:
            _stop(process)


# --- attackers -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def attacker(program: str, *arguments: object, user: int = TENANT_UID) -> Iterator[subprocess.Popen[str]]:
    """Run an attacking Python program in a separate process, so that it does not slow down this one.

    user: user id of the attacker, if this process runs as root; 0: the same user. The output of the attacker can be
    read from the yielded process.
    """
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _PREAMBLE + program, *map(str, (user, *arguments))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait for the first line of an attacker's output, which means that the attack has begun, and return it."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def allow_descriptors() -> None:
    """Raise the limit of open files of this process and its children to the maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
