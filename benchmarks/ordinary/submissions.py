"""Submissions on a test day: jobs of every kind, by API and command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ordinary.operations import Operator
from benchmarks.ordinary.oracle.facts import ENDED, Submission
from benchmarks.ordinary.person import Activity, check_said

PROGRAMS = Path(__file__).with_name("programs")
WORK = (sys.executable, "-I", "-S", str(PROGRAMS / "work.py"))
TRAIN = (sys.executable, str(PROGRAMS / "train.py"))
TRAIN_TORCH = str(PROGRAMS / "train_torch.py")

MOST_LOG_BYTES = 1200 * 2**20
LOG_SHARE = 0.02
"""Maximum size that one job writes, as a share of the free disk space."""


class Submitter(Operator):
    """A user who submits jobs and may cancel them."""

    def _submissions(self) -> list[tuple[str, float, Activity]]:
        return [
            ("one_rank", 6.0, lambda: self._work("one_rank", {"seconds": self._seconds()})),
            ("gang", 4.0, lambda: self._work("gang", {"seconds": self._seconds()}, ranks=self._ranks())),
            ("burst", 1.5, self._burst),
            ("array", 1.2, self._array),
            ("dependency", 1.2, self._dependency),
            ("fails_with_code", 1.0, self._fails),
            ("fails_with_signal", 0.8, self._dies),
            ("cannot_start", 0.4, self._cannot_start),
            ("retries", 0.5, self._retries),
            ("hangs", 0.5, self._hangs),
            ("ignores_sigterm", 0.7, self._ignores),
            ("forks", 0.8, lambda: self._leaves("forks", "children")),
            ("setsid", 0.8, lambda: self._leaves("setsid", "detached")),
            ("long_log", 0.3, self._long_log),
            ("computes", 0.4, lambda: self._work("computes", {"seconds": 4.0, "burn": True})),
            ("training_reported", 0.4, lambda: self._train("training_reported", True)),
            ("training_silent", 0.4, lambda: self._train("training_silent", False)),
            *([("training_torch", 0.25, self._train_torch)] if self.torch else []),
            ("elastic", 0.8, self._elastic),
            ("guests", 1.2, self._guests),
            ("owner", 1.2, self._owner),
            ("borrowed", 0.5, self._borrowed),
            ("stretched", 0.5, self._stretched),
            ("one_node", 0.6, self._one_node),
            ("priority", 0.5, lambda: self._work("priority", {"seconds": self._seconds()}, self._ranks(), priority=10)),
        ]  # fmt: skip

    def _seconds(self) -> float:
        return round(min(0.2 + self.random.lognormvariate(1.2, 0.9), 40.0), 2)

    def _ranks(self) -> int:
        return self.random.choice([2, 2, 3, 3, 4, self.cluster.slots + 1, self._total() // 2, self._total()])

    def _queue(self) -> str:
        names = list(self.facts.queues)
        return self.random.choice(["default", *names]) if names else "default"

    def _work(self, kind: str, plan: dict[str, Any], ranks: int = 1, fails: bool = False, **more: Any) -> str:
        request: dict[str, Any] = {"ranks": min(ranks, self._total()), "queue": self._queue()}
        if self.random.random() < 0.7 and plan.get("seconds") is not None:
            request["time_limit_seconds"] = max(0.5, round(plan["seconds"] * self.random.uniform(0.5, 3.0), 1))
        return self.submit(kind, [*WORK, json.dumps(plan)], request | more, fails)

    def submit(
        self, kind: str, command: list[str], request: dict[str, Any], fails: bool = False, starts: bool = True
    ) -> str:
        """Submit a job by API or command line, record it, and return its id. kind: kind of activity. Raises AbsentError
        or RefusedError."""
        by_command = self.random.random() < 0.3
        asked = time.time()
        if by_command:
            job = self._submit_by_command(kind, command, request)
        else:
            body = request | {"name": kind, "command": command, "environment": self.cluster.job_environment()}
            body |= {"working_directory": str(self.cluster.folder), "user": "ordinary"}
            body["after"] = [{"job_id": job, "condition": condition} for job, condition in request.get("after", ())]
            job = str(self.cluster.ask("POST", "/api/jobs", body)["job"])
        size = int(request.get("array_size", 0))
        members = tuple(f"{job}.{index}" for index in range(size)) or (job,)
        self.inbox.submitted(Submission(job, members, request, asked, time.time(), fails, starts, " ".join(command)))
        self.say(kind, f"{job} {json.dumps(request)} {command[-1]}")
        self.done["by_command" if by_command else "by_api"] += 1
        return job

    def _submit_by_command(self, kind: str, command: list[str], request: dict[str, Any]) -> str:
        options = {
            "ranks": "--ranks", "queue": "--queue", "time_limit_seconds": "--time-limit",
            "max_retries": "--max-retries", "grace_seconds": "--grace",
            "min_ranks": "--min-ranks", "max_ranks": "--max-ranks",
            "priority": "--priority", "min_run_seconds": "--min-run", "required_level": "--level",
            "restart_cost_seconds": "--restart-cost",
        }  # fmt: skip
        arguments = ["submit", "--name", kind, "--json"]
        for key, option in options.items():
            if request.get(key) is not None:
                value = request[key]
                arguments += [option, f"{value:.3f}" if isinstance(value, float) else str(value)]
        arguments += [f"--{key}" for key in ("restartable", "preemptible") if request.get(key)]
        if request.get("array_size"):
            arguments += [
                "--array",
                f"{request['array_size']}%{request.get('array_parallel') or request['array_size']}",
            ]
        for job, condition in request.get("after", ()):
            arguments += ["--after", f"{job}:{condition}"]
        for name, value in self.cluster.job_environment().items():
            arguments += ["--env", f"{name}={value}"]
        said = self.cluster.command(*arguments, "--", *command)
        check_said(said)
        return str(json.loads(said.out)["job"])

    def _leaves(self, kind: str, how: str) -> None:
        """Submit a job whose ranks end before the child processes that they have started."""
        self._work(kind, {"seconds": self._seconds(), how: 2, "child_seconds": None}, self.random.choice([1, 2]))

    def _burst(self) -> None:
        """Submit several jobs as fast as possible, so that one scheduling cycle receives most of them."""
        for _ in range(self.random.randrange(3, 7)):
            ranks = self.random.choice([1, 1, 1, 2, 3, self.cluster.slots])
            self._work("burst", {"seconds": self._seconds()}, ranks)

    def _array(self) -> None:
        size = self.random.randrange(2, 7)
        more: dict[str, Any] = {"array_size": size, "array_parallel": self.random.choice([0, 1, 2])}
        job = self._work("array", {"seconds": self._seconds() / 2}, **more)
        if self.random.random() < 0.25:
            self.later(self.random.uniform(0.5, 6), lambda: self.cancel(job, "cancel_array"))

    def _dependency(self) -> None:
        others = self.mine("pending", "running", "starting", *ENDED)
        if not others:
            return
        other = self.random.choice(others[-8:])
        condition = self.random.choice(["ok", "failed", "ended", "started"])
        self._work("dependency", {"seconds": self._seconds() / 2}, after=[(other, condition)])

    def _fails(self) -> None:
        ranks = self.random.choice([1, 2, 3])
        plan = {"seconds": self._seconds() / 2, "code": self.random.choice([1, 2, 3, 77, 126, 255])}
        if ranks > 1 and self.random.random() < 0.5:
            plan["only_rank"] = self.random.randrange(ranks)
        self._work("fails_with_code", plan, ranks, fails=True, grace_seconds=2.0)

    def _dies(self) -> None:
        number = self.random.choice([signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
        self._work("fails_with_signal", {"seconds": self._seconds() / 2, "number": int(number)}, fails=True)

    def _cannot_start(self) -> None:
        self.submit("cannot_start", ["/nonexistent/program"], {"ranks": self.random.choice([1, 2])}, True, starts=False)

    def _retries(self) -> None:
        self._work("retries", {"seconds": 1.0, "code": 9}, fails=True, max_retries=2)

    def _hangs(self) -> None:
        """Submit a job that never ends, and cancel it later."""
        more: dict[str, Any] = {"grace_seconds": self.random.choice([0.0, 1.0, 3.0])}
        plan = {"seconds": None, "ignore": self.random.random() < 0.5}
        job = self._work("hangs", plan, self.random.choice([1, 2]), **more)
        self.later(self.random.uniform(2, 15), lambda: self.cancel(job))

    def _ignores(self) -> None:
        more: dict[str, Any] = {"grace_seconds": self.random.choice([0.5, 2.0])}
        job = self._work(
            "ignores_sigterm", {"seconds": 30.0, "ignore": True, "children": 1, "child_seconds": None}, **more
        )
        self.later(self.random.uniform(1, 10), lambda: self.cancel(job))

    def _long_log(self) -> None:
        free = os.statvfs(self.cluster.folder)
        most = min(MOST_LOG_BYTES, int(LOG_SHARE * free.f_bavail * free.f_frsize))
        total = most if self.random.random() < 0.25 else self.random.randrange(2**20, max(2**21, most // 8))
        total -= total % 100  # whole lines
        job = self._work("long_log", {"seconds": 1.0, "log_bytes": total})
        self.later(20.0, lambda: self._read_log(job, total))

    def _read_log(self, job: str, total: int) -> None:
        """Read the end of a job's log, then truncate the log, as a user does to free disk space."""
        if self._jobs().get(job, {}).get("state") != "completed":
            return
        said = self.cluster.command("logs", job, "--rank", "0", "--tail", "3")
        check_said(said)
        if total >= 300 and said.out.count("x" * 99) != 3:
            self.inbox.complaint("log", job, f"the end of its log is {said.out[-200:]!r}")
        for file in (self.cluster.state / "jobs" / job / "logs").rglob("*.log"):
            os.truncate(file, 0)
        self.say("read_log", f"{job}: {total} bytes")

    def _train(self, kind: str, report: bool) -> None:
        plan = {"steps": self.random.randrange(30, 120), "compute_seconds": 0.01, "rest_seconds": 0.1}
        plan |= {"report": report, "saves_every": self.random.choice([0, 10, 50])}
        self.train(kind, plan, self.random.choice([1, 2, 3, 4]), restartable=self.random.random() < 0.5)

    def train(self, kind: str, plan: dict[str, Any], ranks: int, **more: Any) -> str:
        """Submit a numpy training with this plan, and return its id."""
        request = {"ranks": min(ranks, self._total()), "queue": "default", "grace_seconds": 8.0} | more
        return self.submit(kind, [*TRAIN, json.dumps(plan)], request)

    def _train_torch(self) -> None:
        assert self.torch is not None
        plan = {"steps": self.random.randrange(10, 40), "rest_seconds": 0.1, "report": self.random.random() < 0.5}
        request = {"ranks": self.random.choice([1, 2]), "queue": "default"}
        self.submit("training_torch", [self.torch, TRAIN_TORCH, json.dumps(plan)], request)

    def _elastic(self) -> None:
        total = self._total()
        more: dict[str, Any] = {"min_ranks": 1, "max_ranks": total, "restartable": True, "grace_seconds": 3.0}
        more |= {"restart_cost_seconds": 1.0, "preemptible": self.random.random() < 0.5}
        plan = {"seconds": self.random.uniform(10, 30), "saves": True}
        self._work("elastic", plan, max(1, total // 2), time_limit_seconds=60.0, **more)

    def _guests(self) -> None:
        """Submit preemptible jobs that use more slots than their queue's quota."""
        if "guest" not in self.facts.queues:
            return
        more: dict[str, Any] = {"queue": "guest", "preemptible": True, "restartable": True, "grace_seconds": 2.0}
        if self.random.random() < 0.5:
            more["min_run_seconds"] = self.random.choice([0.0, 3.0, 8.0])
        plan = {"seconds": self.random.uniform(15, 40), "saves": True}
        for _ in range(self.random.choice([1, 2, 3])):
            self._work("guests", plan, self.random.choice([1, 2, self.cluster.slots, self._total() // 2 + 1]), **more)

    def _owner(self) -> None:
        """Submit a job within its queue's quota, whose slots other queues may have borrowed."""
        if "owner" not in self.facts.queues:
            return
        quota = int(self.facts.queues["owner"].get("quota") or 1)
        self._work("owner", {"seconds": self._seconds()}, self.random.randrange(1, quota + 1), queue="owner")

    def _borrowed(self) -> None:
        """Submit jobs that borrow all slots; then submit a job of the queue with the quota, and rest for a while.

        During the rest no request triggers a scheduling pass. This tests whether the scheduler starts one without a
        request when the borrowing jobs may be stopped.
        """
        if not {"guest", "owner"} <= set(self.facts.queues):
            return
        quota = int(self.facts.queues["owner"].get("quota") or 1)
        more: dict[str, Any] = {"queue": "guest", "preemptible": True, "restartable": True, "grace_seconds": 2.0}
        more["min_run_seconds"] = self.random.choice([8.0, 15.0])
        plan = {"seconds": 90.0, "saves": True}
        total = self._total()
        for ranks in self.random.choice([(total,), (total // 2, total - total // 2), (1,) * total]):
            self._work("borrowed", plan, ranks, time_limit_seconds=100.0, **more)
        time.sleep(4.0)
        self._work("owner", {"seconds": self._seconds()}, self.random.randrange(1, quota + 1), queue="owner")
        self._rest(40.0)

    def _stretched(self) -> None:
        """Submit a long elastic gang that grows into free slots, then a job that needs these slots."""
        total = self._total()
        more: dict[str, Any] = {"min_ranks": 1, "max_ranks": total, "restartable": True, "grace_seconds": 3.0}
        more |= {"restart_cost_seconds": 1.0, "queue": "default", "min_run_seconds": 0.0}
        ranks = max(1, total // 2)
        job = self._work("stretched", {"seconds": 120.0, "saves": True}, ranks, time_limit_seconds=600.0, **more)
        self._rest(12.0)
        self._work("gang", {"seconds": 10.0}, ranks, queue="default", time_limit_seconds=20.0)
        self._rest(8.0)
        self.later(20.0, lambda: self.cancel(job))

    def _one_node(self) -> None:
        ranks = self.random.randrange(1, self.cluster.slots + 1)
        self._work("one_node", {"seconds": self._seconds()}, ranks, required_level="node")
