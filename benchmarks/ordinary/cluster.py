"""Cluster of one test day. It is accessed in the same ways as by users: command line, API and page."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.oracle.facts import Reading, Statement
from benchmarks.ordinary.page import COUNTING, Page

COMMAND_SECONDS = 180.0
"""Maximum seconds for a command of the command line. No command waits for a job here."""


PAGE_SECONDS = 1.2
"""Maximum age of a page in seconds: one second, with a margin. Readers of one page share its computation."""


class AbsentError(Exception):
    """The controller did not respond."""


class RefusedError(Exception):
    """The controller refused the request. status: HTTP status of the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Said:
    """Result of one command: exit code and output."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str


@dataclass(slots=True)
class Cluster:
    """One `gangwatch up`: its folder, port and configuration.

    checkout: source tree of the gangwatch that runs. mark: value in the environment of its processes, which
    identifies them. config_lock: held while the test makes the configuration file invalid, and while a daemon reads
    it.
    """

    folder: Path
    checkout: Path
    mark: str
    nodes: int
    slots: int
    clock: FairClock
    port: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    config_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        (self.folder / "truth").mkdir()
        (self.folder / "home").mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def config_file(self) -> Path:
        return self.folder / "gangwatch.toml"

    def environment(self, daemon: bool = False) -> dict[str, str]:
        """Return the environment of a user's shell. daemon: add the mark that identifies the day's processes."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "TZ") if name in os.environ}
        kept |= {"HOME": str(self.folder / "home"), "GANGWATCH_STATE": str(self.state), "USER": "ordinary"}
        kept |= {"PYTHONPATH": str(self.checkout)}
        return kept | ({"ORDINARY_DAEMON": self.mark} if daemon else {})

    def job_environment(self) -> dict[str, str]:
        """Return the environment of the jobs of the day."""
        return {
            "ORDINARY_JOB": self.mark,
            "ORDINARY_TRUTH": str(self.folder / "truth"),
            "PYTHONPATH": str(self.checkout),
            "PATH": os.environ.get("PATH", os.defpath),
        }

    # --- command line ------------------------------------------------------------------------------------------------

    def command(self, *arguments: str, daemon: bool = False) -> Said:
        """Run `gangwatch ARGUMENTS` and return its output."""
        command = [sys.executable, "-m", "gangwatch", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(daemon),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return Said(arguments, done.returncode, done.stdout, done.stderr)

    def write_config(self, policy: dict[str, Any]) -> None:
        """Write the configuration file."""
        self.config = policy
        lines = ["[cluster]", "gpus = false", "[controller]", f"port = {self.port}", "[policy]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in policy.items() if key != "queues"]
        for queue in policy.get("queues", ()):
            lines.append("[[policy.queues]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in queue.items() if value is not None]
        self.config_file.write_text("\n".join(lines) + "\n")

    def up(self) -> Said:
        """Start all daemons that do not run."""
        sizes = ("--nodes", str(self.nodes), "--slots", str(self.slots))
        with self.config_lock:
            return self.command("up", "--config", str(self.config_file), *sizes, daemon=True)

    def down(self) -> Said:
        return self.command("down")

    # --- API ---------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, seconds: float = 15.0) -> Any:
        """Send one request and return its document. Raises AbsentError or RefusedError."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if method == "POST":
            headers["Authorization"] = f"Bearer {(self.state / 'token').read_text().strip()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise AbsentError(f"{method} {path}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status == 503:
            raise AbsentError(f"{method} {path}: {content[:200]!r}")
        if response.status >= 400:
            raise RefusedError(response.status, f"{method} {path}: {response.status} {content[:500]!r}")
        return json.loads(content) if "json" in (response.headers["content-type"] or "") else content.decode()

    def read(self) -> Reading:
        """Read jobs, nodes, queue and verdicts from the API.

        Nodes are read before and after the jobs. This is repeated until both results are equal, so that all data is
        consistent.
        """
        for _ in range(5):
            nodes = {node["node"]: node for node in self.ask("GET", "/api/nodes")}
            begun = self.clock.now()
            jobs = {job["job"]: job for job in self.ask("GET", "/api/jobs")}
            ended = self.clock.now()
            queue = self.ask("GET", "/api/queue")
            again = {node["node"]: node for node in self.ask("GET", "/api/nodes")}
            if _states(nodes) == _states(again):
                break
        verdicts = tuple(self.ask("GET", "/api/verdicts"))
        return Reading(begun, ended, jobs, again, queue, verdicts)

    # --- statements --------------------------------------------------------------------------------------------------

    def statement_by_command(self, which: str) -> tuple[Said, Statement | None]:
        """Run `gangwatch jobs|nodes|queue|top --json`. Return its result, and the parsed output if it succeeded."""
        begun = self.clock.now()
        said = self.command(which, "--json")
        ended = self.clock.now()
        if said.code != 0:
            return said, None
        document = json.loads(said.out)
        fields: dict[str, dict[str, Any]] = {}
        if which == "jobs":
            for job in document:
                fields[job["job"]] = {
                    "state": job["state"],
                    "attempt": job["attempt"],
                    "ranks_total": len(job["ranks"]),
                    "exit_codes": [rank["exit_code"] for rank in job["ranks"]],
                }
        elif which == "nodes":
            for node in document:
                state = node["state"] if node["present"] else "absent"
                fields[f"node:{node['node']}"] = {"state": state, "slots": node["slots"]}
        elif which == "queue":
            queue = document.get("queue", document)
            fields["cluster"] = {"frozen": queue["frozen"]}
            fields |= {
                job["job"]: {"state": "pending", "waiting_because": job["waiting_because"]} for job in queue["waiting"]
            }
        elif which == "top":
            for part in ("running", "ended"):
                for job in document.get(part, ()):
                    fields[job["job"]] = {"state": job["state"], "attempt": job["attempt"], "queue": job["queue"]}
            fields["cluster"] = {"frozen": document["frozen"]}
        return said, Statement(f"gangwatch {which}", begun, ended, fields)

    def statement_by_page(self, path: str) -> Statement:
        """Return the content of the page at `path`: '/jobs', '/nodes', '/' or '/jobs/JOB'.

        Raises AbsentError or RefusedError.
        """
        now = self.clock.now()
        begun = replace(now, wall=now.wall - PAGE_SECONDS)
        page = Page(self.ask("GET", path))
        ended = self.clock.now()
        fields: dict[str, dict[str, Any]] = {}
        if path.startswith("/jobs/") and page.states:
            fields[path.removeprefix("/jobs/")] = {
                "state": page.states[0],
                "times": page.times,
                "counting": page.counting,
            }
        for table in page.tables:
            if "Reason" in table.titles and "Job" in table.titles:
                for row in table.rows:
                    if row.get("Job", "").startswith("j-"):
                        said = {"state": "pending", "waiting_because": row["Reason"]}
                        fields[row["Job"].split()[0]] = said
            if "State" not in table.titles:
                continue
            for row in table.rows:
                if "Job" in row and row["Job"].startswith("j-"):
                    name = row["Job"].split()[0]
                    fields[name] = {"state": row["State"].split()[0]}
                    fields[name]["counting"] = COUNTING in row
                    if "Queue" in row:
                        fields[name]["queue"] = row["Queue"]
                elif "Node" in row:
                    fields[f"node:{row['Node'].split()[0]}"] = {"state": row["State"].split()[0]}
        return Statement(f"page {path}", begun, ended, fields)

    def wait_ready(self, seconds: float) -> bool:
        """Wait for at most `seconds` of wall time; return whether the controller responds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.ask("GET", "/readyz", seconds=5.0)
                return True
            except (AbsentError, RefusedError):
                time.sleep(0.1)
        return False


def _states(nodes: dict[str, dict[str, Any]]) -> dict[str, tuple[str, bool, int]]:
    return {name: (node["state"], node["present"], node["slots"]) for name, node in nodes.items()}
