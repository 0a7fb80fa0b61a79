"""The demo's sequence: start a cluster, submit jobs, disturb one rank, wait for the reactions, stop everything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gangwatch.controller_client import Client
from gangwatch.demo.listener import Listener
from gangwatch.demo.play import (
    HEAD_RANKS,
    NODES,
    SLOTS,
    TRAINING_RANKS,
    DemoError,
    Play,
    Schedule,
    plain_environment,
    training_command,
)

Say = Callable[[str], None]

CONFIGURATION = """\
# Written by `gangwatch demo`: minutes of production shortened to seconds, nothing else changed.
[cluster]
nodes = {nodes}
slots = {slots}
gpus = false

[controller]
port = 0

[policy]
quarantine_seconds = {quarantine}
suspect_seconds = {quarantine}
probation_seconds = 5
"""


class Conductor:
    """One run of the demo. ``perform`` returns the record of the run and always stops everything that it started."""

    def __init__(self, folder: Path, seed: int, schedule: Schedule, say: Say) -> None:
        self.folder = folder
        self.schedule = schedule
        self.say = say
        self.play = Play(folder / "state", seed)
        self.listener = Listener()
        self.client = Client(self.play.state_folder)
        self.audience = Client(self.play.state_folder)  # for the screen: a client is for one thread
        self._disturber: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    # --- cluster ---

    def up(self) -> None:
        """Start four agents and a controller with `gangwatch up`."""
        configuration = self.folder / "gangwatch.toml"
        configuration.write_text(CONFIGURATION.format(nodes=NODES, slots=SLOTS, quarantine=self.schedule.after + 2))
        self._gangwatch("up", "--state", str(self.play.state_folder), "--config", str(configuration))
        for path in sorted((self.play.state_folder / "agents").glob("*.json")):
            self.listener.listen(json.loads(path.read_text())["url"])

    def down(self) -> None:
        """Stop the disturbance, all jobs, the agents and the controller."""
        self.end_disturbance()
        self.listener.close()
        self._gangwatch("down", "--state", str(self.play.state_folder))

    def _gangwatch(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "gangwatch", *arguments]
        done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise DemoError(f"gangwatch {arguments[0]} exited with {done.returncode}: {done.stderr.strip()[-800:]}")

    # --- jobs ---

    def submit(self, name: str, ranks: int, steps: int, time_limit: float, **more: Any) -> str:
        """Submit a training job with this name. Store its id in the record of the run and return it."""
        work = self.folder / name
        work.mkdir(parents=True, exist_ok=True)
        specification = {
            "name": name,
            "command": training_command(steps, self.play.seed, self.play.pace_seconds, work),
            "ranks": ranks,
            "time_limit_seconds": time_limit,
            "working_directory": str(work),
            "environment": plain_environment(),
        } | more
        job_id: str = self.client.post("/api/jobs", specification)["job"]
        self.play.job_ids[name] = job_id
        return job_id

    def cancel(self, name: str) -> None:
        self.client.post(f"/api/jobs/{self.play.job_ids[name]}/cancel", {})

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/jobs/{self.play.job_ids[name]}")
        return found

    def state_of(self, name: str) -> str:
        return str(self.job(name)["state"])

    def node_state(self, node: str) -> str:
        for row in self.client.get("/api/nodes"):
            if row["node"] == node:
                return str(row["state"])
        raise DemoError(f"the controller no longer lists node {node}")

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition is true. Raise DemoError after `seconds`. what: description of the condition, for
        the error."""
        if not self.happened(condition, seconds):
            raise DemoError(f"timed out after {seconds:.0f} s, waiting until {what}")

    def happened(self, condition: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def steps_done(self, name: str, attempt: int | None = None) -> int:
        """Return the number of the job's steps that agents have reported, each counted once. attempt: None for all
        attempts."""
        gang = self.play.job_ids[name]
        return len({s.step for s in self.listener.steps() if s.gang == gang and attempt in (None, s.attempt)})

    # --- the fault ---

    def begin_disturbance(self) -> None:
        """Start the process that slows one rank of the training; the seed selects the rank."""
        training = self.job("training")
        rank = training["ranks"][self.play.seed % len(training["ranks"])]
        self.play.target = {"job": training["job"], "rank": rank["rank"], "node": rank["node"], "slot": rank["slot"]}
        command = [sys.executable, "-P", "-m", "gangwatch.demo.disturbance"]
        command += ["--ranks-folder", str(self.play.state_folder / "ranks" / rank["node"])]
        command += ["--slot", str(rank["slot"]), "--seed", str(self.play.seed)]
        self._disturber = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment())
        self._reader = threading.Thread(target=self._read_disturbance, args=(self._disturber,), daemon=True)
        self._reader.start()
        self.wait_until("the disturbance begins", lambda: bool(self.play.disturbance_lines), 10)

    def _read_disturbance(self, disturber: subprocess.Popen[str]) -> None:
        assert disturber.stdout is not None
        for line in disturber.stdout:
            self.play.disturbance_lines.append(json.loads(line))

    def end_disturbance(self) -> None:
        """Stop the disturbance process if it runs. The process continues (SIGCONT) all ranks before it exits."""
        if self._disturber is None:
            return
        self._disturber.send_signal(signal.SIGTERM)
        self._disturber.wait(timeout=10)
        if self._reader is not None:
            self._reader.join(timeout=10)
        if self._disturber.stdout is not None:
            self._disturber.stdout.close()
        self._disturber = None

    # --- sequence ---

    def perform(self, disturbed: bool) -> Play:
        """Run the whole demo and return its record. All processes are stopped when this function returns or raises."""
        try:
            self.up()
            self._open()
            if disturbed:
                self._fault()
            else:
                self.say("no disturbance: gangwatch must report no verdict")
                time.sleep(self.schedule.after)
            self._close()
        finally:
            self.down()
        return self.play

    def _open(self) -> None:
        """Run the first part: start two jobs, queue a gang of six ranks, and measure undisturbed step times."""
        schedule, play = self.schedule, self.play
        limit = 4 * play.steps * play.step_seconds  # users overestimate run times
        self.submit(
            "training", TRAINING_RANKS, play.steps, limit, restartable=True, restart_cost_seconds=3.0, grace_seconds=5.0
        )
        self.wait_until("the training runs", lambda: self.state_of("training") == "running", 30)
        self.submit("filler", 2, 1_000_000, limit)
        self.wait_until("the filler runs", lambda: self.state_of("filler") == "running", 30)
        self.submit("head", HEAD_RANKS, 20, 60.0)
        self.say("training (4 ranks) and filler (2 ranks) are running; head (6 ranks) is pending")
        self.wait_until("the training makes steps", lambda: self.steps_done("training") > 3, 30)
        time.sleep(schedule.warm_up)
        play.steady_from_ns = time.time_ns()
        time.sleep(schedule.steady)

    def _fault(self) -> None:
        """Run the second part: slow down one rank, and wait for the verdict, the move and the backfilled job.

        Then end the fault and wait until the node is healthy again.
        """
        schedule, play = self.schedule, self.play
        self.begin_disturbance()
        assert play.target is not None
        self.say(f"a separate process now slows rank {play.target['rank']}")
        moved = self.happened(lambda: self.job("training")["attempt"] > 1, schedule.detect_at_most)
        if not moved:
            self.say("gangwatch did not move the job in time; the demo ends here")
            self.end_disturbance()
            return
        self.say("gangwatch reported the rank and moves the training; now submitting short (2 ranks) to backfill")
        self.cancel("filler")
        self.submit("short", 2, self.steps_in(schedule.after + 6), schedule.after * 3)
        self.wait_until("the training makes steps again", lambda: self.steps_done("training", 2) > 0, 40)
        self.wait_until("short is backfilled", lambda: self.state_of("short") in ("running", "completed"), 30)
        time.sleep(2.0)
        play.after_from_ns = time.time_ns()
        time.sleep(schedule.after / 2)
        self.say("stopping the disturbance")
        self.end_disturbance()
        time.sleep(schedule.after / 2)
        play.after_until_ns = time.time_ns()
        node = play.target["node"]
        if self.happened(lambda: self.node_state(node) == "healthy", 60):
            self.say(f"{node} passed its probe and its probation: healthy again")

    def steps_in(self, seconds: float) -> int:
        """Return how many steps the training makes in `seconds`, by the step time that was measured before."""
        return max(10, round(seconds / self.play.step_seconds))

    def _close(self) -> None:
        """Run the last part: wait until the training and then the head of the queue have ended."""
        if self.state_of("filler") == "running":
            self.cancel("filler")
        self.wait_until("the training ends", lambda: self.state_of("training") in ENDED, 180)
        self.wait_until("the head of the queue has run", lambda: self.state_of("head") in ENDED, 60)
        failed = [name for name in ("training", "head") if self.state_of(name) != "completed"]
        if failed:
            raise DemoError(f"{failed[0]} ended as {self.state_of(failed[0])}: {self.job(failed[0]).get('reason', '')}")


ENDED = ("completed", "failed", "cancelled")
