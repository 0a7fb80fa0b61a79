"""One test day: starts a cluster, runs users and faults on it, checks all observations, and stops it."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.cluster import AbsentError, Cluster, RefusedError
from benchmarks.ordinary.inbox import Inbox
from benchmarks.ordinary.kinds import KINDS
from benchmarks.ordinary.oracle.facts import Daemon, Facts, Failure, Submission
from benchmarks.ordinary.oracle.oracle import Oracle
from benchmarks.ordinary.processes import ProcessTable
from benchmarks.ordinary.troubles import Troubles
from benchmarks.ordinary.users import Users, first_policy
from benchmarks.ordinary.witnesses import Witnesses

LOOK_SECONDS = 0.5
ANSWER_SECONDS = 20.0
"""Fair seconds without a response after which an undisturbed controller has failed."""

DRAIN_SECONDS = 150.0
"""Fair seconds in which all jobs must end after the last submission."""

LONG_SECONDS = 60.0
"""Longest planned run time, in seconds, of jobs that may end on their own when the day ends. Longer jobs are cancelled,
because two of them in sequence would not end in time."""

_SECONDS = re.compile(r'"seconds": ([\d.]+)')

BUG = re.compile(r"level=critical|this is a bug|Traceback \(most recent")
"""Pattern of log lines in which a daemon reports its own bug."""

LEAST_STARTS = 10
"""Minimum number of job starts per minute of a valid day. Only checked if the day is longer than RATE_MINUTES."""

RATE_MINUTES = 3.0


@dataclass(slots=True)
class Report:
    """Summary of one day."""

    seed: int
    minutes: float
    jobs: int = 0
    checks: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    activities: dict[str, int] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    starts_a_minute: float = 0.0
    fair_share: float = 0.0
    cluster: dict[str, Any] = field(default_factory=dict)
    latest: list[str] = field(default_factory=list)
    kept: str = ""


class Day:
    """One day on its own cluster.

    checkout: source tree of the gangwatch that runs. only: activities to run; empty for all.
    """

    def __init__(
        self,
        folder: Path,
        checkout: Path,
        minutes: float,
        seed: int,
        torch: str | None,
        only: frozenset[str] = frozenset(),
    ) -> None:
        source = random.Random(seed)
        self.folder, self.minutes, self.seed, self.only = folder, minutes, seed, only
        self.clock = FairClock(folder)
        mark = uuid.UUID(int=source.getrandbits(128)).hex + f"-{os.getpid()}"
        nodes, slots = source.choice([(1, 4), (2, 2), (2, 3), (3, 2), (3, 3), (4, 2), (2, 4)])
        self.cluster = Cluster(folder, checkout, mark, nodes, slots, self.clock)
        self.cluster.write_config(first_policy(source, nodes * slots))
        self.facts, self.inbox = Facts(), Inbox()
        self.oracle = Oracle(self.facts)
        self.users = Users(self.cluster, self.facts, self.inbox, seed, torch, only)
        self.troubles = Troubles(self.cluster, self.facts, self.inbox, self.users, seed)
        self.table = ProcessTable(mark, self.cluster.state, self.clock)
        self.witnesses = Witnesses(folder / "truth")
        self.random = random.Random(seed + 2)
        self.report = Report(seed, minutes)
        self.failures: list[Failure] = []
        self.lived_minutes = 0.0
        self._answered = 0.0
        self._logged: dict[str, int] = {}
        self._seen_attempts: dict[str, int] = {}

    # --- the day -----------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Run the whole day. All processes are stopped at the end, also after a failure."""
        self.report.cluster = {"nodes": self.cluster.nodes, "slots": self.cluster.slots, **self.cluster.config}
        began = time.monotonic()
        try:
            said = self.cluster.up()
            if said.code != 0:
                self._fail("up", "cluster", f"`gangwatch up` exited with {said.code}: {said.err.strip()[-800:]}")
            else:
                self.inbox.policy_changed(self.cluster.config)
                self._answered = self.clock.now().fair
                said = self.cluster.command("config", "--config", str(self.cluster.config_file))
                self.troubles.restarts_hangs = re.search(r"restart_on_hang\s*=\s*true", said.out) is not None
                self._live(began)
        except KeyboardInterrupt:
            self._fail("interrupted", "harness", "interrupted")
        except RefusedError as error:
            self._fail("api", "controller", str(error))
        except Exception:
            self._fail("harness", "harness", traceback.format_exc()[-2000:])
        finally:
            self._close()
        self._sum_up((time.monotonic() - began) / 60)
        return self.report

    def _live(self, began: float) -> None:
        until = began + 60 * self.minutes
        pause = min(60.0, max(15.0, 60 * self.minutes / 8))
        threads = [
            threading.Thread(target=self.users.live, args=(until,), name="users", daemon=True),
            threading.Thread(target=self.troubles.trouble_daemons, args=(until, pause), name="daemons", daemon=True),
            threading.Thread(target=self.troubles.trouble_ranks, args=(until,), name="ranks", daemon=True),
            threading.Thread(target=self._read_on, args=(until,), name="readers", daemon=True),
        ]
        if self.only:  # troubles have names as activities have
            wanted = {"users", "readers"} | (self.only & {"daemons", "ranks"})
            threads = [thread for thread in threads if thread.name in wanted]
        for thread in threads:
            thread.start()
        while time.monotonic() < until and not self.failures:
            self._observe()
            time.sleep(LOOK_SECONDS)
        self.users.stopped = self.troubles.stopped = True
        for thread in threads:
            while thread.is_alive() and not self.failures:
                self._observe()
                thread.join(LOOK_SECONDS)
        self.clock.resume()
        self.lived_minutes = (time.monotonic() - began) / 60
        if not self.failures:
            self._drain()

    def _observe(self) -> None:
        """Read the API and the processes once, and check them."""
        now = self.clock.now()
        self.failures += self.inbox.take(self.facts, now.wall)
        self.failures += [Failure("harness", "harness", text, now.wall) for text in self.users.errors]
        try:
            reading = self.cluster.read()
        except AbsentError as error:
            reading = None
            if not self.clock.paused and self.clock.now().fair - self._answered > ANSWER_SECONDS:
                self._fail("no_answer", "controller", f"no answer for {ANSWER_SECONDS:g} fair seconds: {error}")
        self.table.scan()
        self._check_daemons()
        self._check_logs()
        self.witnesses.read(self.facts.lives)
        self.facts.table = self.table.table({key: life.pid for key, life in self.facts.lives.items()})
        self.failures += self.inbox.take(self.facts, now.wall)
        if reading is not None:
            self._answered = self.clock.now().fair
            self.facts.reading = reading
            self.facts.readings.append(reading)
            self._count(reading.jobs)
            self.failures += self.oracle.judge(self.clock.now())
        else:
            from benchmarks.ordinary.oracle.daemons import nothing_ended

            self.failures += [
                Failure(doubt.check, doubt.subject, doubt.text, now.wall) for doubt in nothing_ended(self.facts, now)
            ]

    def _check_logs(self) -> None:
        """Report a failure for each daemon that logged a bug."""
        for file in (self.cluster.state / "log").glob("*.log"):
            with file.open("rb") as log:
                log.seek(self._logged.get(file.name, 0))
                lines = log.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._logged[file.name] = self._logged.get(file.name, 0) + len(lines)
            for line in lines.decode(errors="replace").splitlines():
                if BUG.search(line):
                    self.inbox.complaint("bug_logged", file.stem, line[:1500])

    def _check_daemons(self) -> None:
        live = self.table.daemons()
        for pid, (name, created) in live.items():
            self.facts.daemons.setdefault(pid, Daemon(name, pid, created))
        for pid, daemon in list(self.facts.daemons.items()):
            if pid not in live and daemon.pid > 0:
                if daemon.touched is not None:
                    del self.facts.daemons[pid]
                else:
                    daemon.pid = -pid

    def _count(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Count those events that no user has requested: preemptions, and resizes of elastic gangs."""
        for job in jobs.values():
            owner = self.facts.owner_of.get(job["job"])
            if owner is None or job["attempt"] < 2:
                continue
            if owner.request.get("preemptible") and job["attempt"] > self._seen_attempts.get(job["job"], 1):
                self.users.done["preempted"] += 1
            if owner.request.get("max_ranks") and job["attempt"] > self._seen_attempts.get(job["job"], 1):
                self.users.done["resized"] += 1
            self._seen_attempts[job["job"]] = job["attempt"]

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self, until: float) -> None:
        """Read command line and page repeatedly until the time `until`, to compare them with the API."""
        try:
            while time.monotonic() < until and not self.failures and not self.users.stopped:
                try:
                    self._read_once()
                except AbsentError:
                    time.sleep(0.5)
                time.sleep(self.random.uniform(0.2, 1.5))
        except Exception as error:
            self.users.errors.append(f"the harness itself: readers: {error!r}")
            raise

    def _read_once(self) -> None:
        jobs = list(self.facts.reading.jobs) if self.facts.reading is not None else []
        kind = self.random.choice(["command", "command", "page", "page", "page", "words"])
        if kind == "command":
            said, statement = self.cluster.statement_by_command(self.random.choice(["jobs", "nodes", "queue", "top"]))
            self._took(said.arguments, said.code, said.err)
            self.users.done["read_command_line"] += 1
        elif kind == "page":
            path = self.random.choice(["/", "/jobs", "/nodes", *[f"/jobs/{job}" for job in jobs[-6:]]])
            try:
                statement = self.cluster.statement_by_page(path)
            except RefusedError as error:
                self.inbox.complaint("page", path, str(error))
                return
            self.users.done["read_page"] += 1
        else:
            job = self.random.choice(jobs[-8:]) if jobs else ""
            arguments = self.random.choice([("explain", job), ("story", job), ("jobs",), ("queue",), ("nodes",)])
            if arguments[-1]:
                said = self.cluster.command(*arguments)
                self._took(said.arguments, said.code, said.err)
                self.users.done["read_words"] += 1
            return
        if statement is not None:
            self.inbox.stated(statement)

    def _took(self, arguments: tuple[str, ...], code: int, err: str) -> None:
        """Check the exit code of a command that only reads. It may fail only while the test keeps a daemon down."""
        if code == 0 or (code == 3 and "Traceback" not in err):
            return  # the readings themselves judge a missing response
        self.inbox.complaint(
            "command", arguments[0], f"`gangwatch {' '.join(arguments)}` exited with {code}: {err[-800:]}"
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Undo all restrictions, and cancel pending jobs. Then check that all jobs end."""
        self.users.stopped = False
        users = self.users
        users.errors.clear()
        users.attempt("thaw", users.thaw)
        for name in [queue["name"] for queue in self.cluster.config["queues"] if queue.get("limit") == 0]:
            users.attempt("unhold", partial(users.open_queue, name))
        for name, node in (self.facts.reading.nodes if self.facts.reading is not None else {}).items():
            if node["state"] != "healthy":
                users.attempt("release", partial(users.operate, "release", name))
        began = self.clock.now().fair
        asked: set[str] = set()
        while not self.failures:
            self._observe()
            active = users.mine("pending", "starting", "running", "stopping")
            if not active:
                return
            for job in active:
                # Cancel half of the pending jobs and every endless job; the other half must still
                # run.
                if job not in asked and (hash_of(job) % 2 == 0 or endless(self.facts.owner_of[job])):
                    asked.add(job)
                    users.attempt("cancel", partial(users.cancel, job))
            if self.clock.now().fair - began > DRAIN_SECONDS:
                self._fail("drain", ", ".join(active[:8]), f"{len(active)} jobs have not ended: {self._states(active)}")
            time.sleep(LOOK_SECONDS)

    def _states(self, names: list[str]) -> list[str]:
        jobs = self.facts.reading.jobs if self.facts.reading is not None else {}
        return [f"{name} {jobs[name]['state']} ({jobs[name]['waiting_because']})" for name in names[:8] if name in jobs]

    def _fail(self, check: str, subject: str, text: str) -> None:
        self.failures.append(Failure(check, subject, text, time.time()))

    def _close(self) -> None:
        self.users.stopped = self.troubles.stopped = True
        try:
            self.table.scan()
            said = self.cluster.down()
            if said.code != 0 and not self.failures:
                self._fail("down", "cluster", f"`gangwatch down` exited with {said.code}: {said.err.strip()[-800:]}")
            self.table.scan()
            left = self.table.left()
            if left and not self.failures:
                self._fail("left_behind", "cluster", f"after `gangwatch down` there are still {left}")
            self.table.kill_left()
        finally:
            self.clock.close()

    def _sum_up(self, minutes: float) -> None:
        report = self.report
        report.minutes = round(minutes, 2)
        self.lived_minutes = self.lived_minutes or minutes
        report.jobs = len(self.facts.owner_of)
        report.checks = self.oracle.checks
        report.checked = dict(self.oracle.checked)
        self.users.done["verdicts_right"] = sum(one.found is not None for one in self.facts.disturbances)
        report.activities = {kind: self.users.done[kind] for kind in KINDS} | {
            f"evidence_{name}": count for name, count in sorted(self.witnesses.counts.items())
        }
        attempts = len({(life.job, life.attempt) for life in self.facts.lives.values()})
        report.starts_a_minute = round(attempts / max(self.lived_minutes, 1e-9), 1)
        if not self.failures and not self.only and minutes > RATE_MINUTES and report.starts_a_minute < LEAST_STARTS:
            self._fail("rate", "harness", f"{report.starts_a_minute} jobs started a minute, fewer than {LEAST_STARTS}")
        report.fair_share = round(self.clock.share(), 3)
        for failure in self.failures:
            report.failures.append(
                {
                    "check": failure.check,
                    "subject": failure.subject,
                    "text": failure.text,
                    "minute": round((failure.wall - time.time()) / 60 + minutes, 2),
                }
            )
        if self.failures:
            report.latest = list(self.users.latest)
            report.kept = str(self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def endless(job: Submission) -> bool:
    """Return whether the job would not end soon: it has no end, waits for another job, or runs for a long time."""
    seconds = _SECONDS.search(job.command)
    if seconds is not None and float(seconds[1]) > LONG_SECONDS:
        return True
    return "null" in job.command or '"steps": 100000' in job.command or bool(job.request.get("after"))


def hash_of(text: str) -> int:
    """Return a hash of the text that does not depend on the process."""
    return sum(text.encode())


def revision(checkout: Path) -> tuple[str, bool]:
    """Return the commit of a checkout, and whether its files are unchanged since that commit."""
    commit = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    status = subprocess.run(["git", "-C", str(checkout), "status", "--porcelain"], capture_output=True, text=True)
    return commit.stdout.strip() or "unknown", commit.returncode == 0 and not status.stdout.strip()


def python_with_torch() -> str | None:
    """Return an interpreter that can import PyTorch: this one, or the system's."""
    for interpreter in (sys.executable, "/usr/bin/python3"):
        if Path(interpreter).exists():
            tried = subprocess.run([interpreter, "-c", "import torch"], capture_output=True)
            if tried.returncode == 0:
                return interpreter
    return None
