"""The product under test: one `gangwatch up` with a real controller and an agent for each virtual node."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND_SECONDS = 120.0
START_SECONDS = 60.0
_OWN_BOOT_ID = 'mount --bind /proc "$1" && mount --bind "$2" "$1/sys/kernel/random/boot_id" && shift 2 && exec "$@"'
ENDED = ("completed", "failed", "cancelled", "timed_out")
"""States of a job that has ended."""


class ClusterError(Exception):
    """Error: the product could not be started or did not respond. The message contains its output."""


@dataclass(slots=True)
class Cluster:
    """A controller and agents that only observe. Use it as a context: leaving it stops all of them."""

    folder: Path
    """Folder of state, configuration and logs."""
    nodes: int
    """Number of virtual nodes."""
    slots: int
    """Slots of each node."""
    leaves: int = 1
    """Number of leaf switches, for the topology file; 1 writes none."""
    prepare: Callable[[], None] | None = None
    """Called in each new process before its program, to move it into a control group."""
    port: int = field(default=0, init=False)
    _agents: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        own = {"HOME": str(self.folder), "GANGWATCH_STATE": str(self.folder / "state"), "PYTHONPATH": str(CHECKOUT)}
        return kept | own

    def command(self, *arguments: str) -> str:
        """Run `gangwatch ARGUMENTS` and return its output. Raises ClusterError if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "gangwatch", *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            preexec_fn=self.prepare,
        )
        if done.returncode != 0:
            raise ClusterError(f"`gangwatch {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def __enter__(self) -> Cluster:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        lines = ["[cluster]", "gpus = false", "[controller]", f"port = {self.port}", 'mode = "observe"']
        if self.leaves > 1:
            topology = self.folder / "topology.conf"
            members = [
                [f"node-{n}" for n in range(self.nodes) if n % self.leaves == leaf] for leaf in range(self.leaves)
            ]
            rows = [f"SwitchName=leaf{leaf} Nodes={','.join(names)}" for leaf, names in enumerate(members)]
            topology.write_text("\n".join([*rows, "SwitchName=spine Switches=leaf[0-1]"]) + "\n")
            lines.append(f'topology_file = "{topology}"')
        config = self.folder / "gangwatch.toml"
        config.write_text("\n".join(lines) + "\n")
        try:
            self._start_agents(config)
            self.command("up", "--config", str(config), "--nodes", str(self.nodes), "--slots", str(self.slots))
        except BaseException:
            self._down()
            raise
        return self

    def _start_agents(self, config: Path) -> None:
        """Start an agent for each node, as on a machine of its own: its /proc has another boot id. `up` adopts them."""
        state = self.folder / "state"
        for index in range(self.nodes):
            proc, boot_id = self.folder / f"proc-{index}", self.folder / f"boot-id-{index}"
            proc.mkdir()
            boot_id.write_text(f"{uuid.uuid4()}\n")
            agent = [sys.executable, "-P", "-m", "gangwatch", "agent", "--state", str(state), "--config", str(config)]
            agent += ["--node", f"node-{index}", "--slots", str(self.slots), "--position", str(index)]
            agent += ["--proc-root", str(proc)]
            with (self.folder / f"agent-{index}.log").open("wb") as log:
                agent_process = subprocess.Popen(
                    ["unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_BOOT_ID, "sh", str(proc),
                     str(boot_id), *agent],
                    cwd=self.folder,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=self.prepare,
                    start_new_session=True,
                )  # fmt: skip
            self._agents.append(agent_process)
        until = time.monotonic() + START_SECONDS
        while not all((state / "agents" / f"node-{index}.json").exists() for index in range(self.nodes)):
            if time.monotonic() > until:
                logs = [(self.folder / f"agent-{index}.log").read_text()[-200:] for index in range(self.nodes)]
                raise ClusterError(f"an agent did not start in {START_SECONDS:.0f} s: {' '.join(logs).strip()}")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._down()

    def _down(self) -> None:
        try:
            self.command("down")
        finally:
            for agent in self._agents:
                try:
                    agent.wait(timeout=10)
                except subprocess.TimeoutExpired:  # `down` does not know an agent that did not start completely
                    agent.kill()
                    agent.wait()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request and return its document. Raises ClusterError."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if method == "POST":
            headers["Authorization"] = f"Bearer {(self.folder / 'state' / 'token').read_text().strip()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"{method} {path}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status >= 400:
            raise ClusterError(f"{method} {path}: {response.status} {content[:500]!r}")
        return json.loads(content)

    def submit(self, ranks: int, command: Sequence[str], environment: dict[str, str]) -> str:
        """Submit a job and return its id."""
        options = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        said = self.command("submit", "--json", "--ranks", str(ranks), "--grace", "1s", *options, "--", *command)
        return str(json.loads(said)["job"])

    def job(self, job: str) -> dict[str, Any]:
        """Return the document of a job."""
        found: dict[str, Any] = self.ask("GET", f"/api/jobs/{job}")
        return found

    def cancel(self, job: str, seconds: float = 20.0) -> None:
        """Cancel a job if it has not ended, and wait until it has."""
        if self.job(job)["state"] in ENDED:
            return
        self.command("cancel", job)
        until = time.monotonic() + seconds
        while self.job(job)["state"] not in ENDED:
            if time.monotonic() > until:
                raise ClusterError(f"{job} has not ended {seconds:.0f} s after it was cancelled")
            time.sleep(0.1)

    def verdicts(self) -> list[dict[str, Any]]:
        """Return the documents of all verdicts, past ones included."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/verdicts")
        return found
