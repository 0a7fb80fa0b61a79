"""Faults that the test causes: of daemons, of the machine and of single ranks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.ordinary.cluster import AbsentError, Cluster, RefusedError
from benchmarks.ordinary.inbox import Inbox
from benchmarks.ordinary.oracle.facts import Disturbance, Facts, Outage
from benchmarks.ordinary.users import Users

SPIN = Path(__file__).with_name("programs") / "spin.py"

BACK_SECONDS = 60.0
"""Maximum fair seconds until a daemon responds again after the test ended or continued it."""

HANG_SECONDS = 70.0
"""Maximum fair seconds until a hang is reported. The detector needs forty (docs/explanation/detection.md), and the
agent samples a stopped rank once a second."""

SLOW_SECONDS = 60.0
"""Maximum fair seconds until a rank is reported that is stopped for half of the time."""

RESTART_SECONDS = 45.0
"""Maximum fair seconds until a restartable gang is restarted after its hang was reported."""

WARM_SECONDS = 25.0
"""Seconds for which a training runs before it is disturbed, so that detectors learn what is normal."""


class Troubles:
    """Threads that kill and stop daemons, overload the machine, and disturb ranks.

    restarts_hangs: whether the policy restarts gangs that hang.
    """

    def __init__(self, cluster: Cluster, facts: Facts, inbox: Inbox, users: Users, seed: int) -> None:
        self.random = random.Random(seed + 1)
        self.cluster, self.facts, self.inbox, self.users = cluster, facts, inbox, users
        self.stopped = False
        self.restarts_hangs = False

    # --- daemons and the machine -------------------------------------------------------------------------------------

    def trouble_daemons(self, until: float, pause_seconds: float) -> None:
        """Disturb a daemon or the machine at intervals, until the time `until`."""
        kinds = [self._kill_controller, self._kill_agent, self._kill_supervisor, self._stop_daemon, self._busy]
        bag: list[Callable[[], None]] = []
        try:
            self._sleep(self.random.uniform(0.3, 1.0) * pause_seconds)
            while time.monotonic() < until and not self.stopped:
                bag = bag or self.random.sample(kinds, len(kinds))
                bag.pop()()
                self._sleep(self.random.expovariate(1 / pause_seconds))
        except Exception as error:
            self.users.errors.append(f"the harness itself: troubles: {error!r}")
            raise

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopped:
            time.sleep(0.2)

    def _daemons(self, name: str) -> list[int]:
        return [pid for pid, one in self.facts.daemons.items() if one.name.startswith(name) and pid == one.pid]

    def _end(self, pid: int, number: signal.Signals) -> bool:
        daemon = self.facts.daemons.get(pid)
        if daemon is None:
            return False
        daemon.touched = time.time()
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _back(self, what: str) -> None:
        """Wait until all daemons respond again. Record a failure if this takes too long. what: the fault, for
        messages."""
        began = self.cluster.clock.machine()
        while self.cluster.clock.machine() - began < BACK_SECONDS and not self.stopped:
            try:
                self.cluster.ask("GET", "/readyz", seconds=5.0)
                self._sleep(1.0)
                self.cluster.clock.resume()
                return
            except (AbsentError, RefusedError):
                time.sleep(0.2)
        self.cluster.clock.resume()
        if not self.stopped:
            self.inbox.complaint("daemon_back", what, f"not back {BACK_SECONDS:g} fair seconds after {what}")

    def _kill_controller(self) -> None:
        with self.cluster.config_lock:  # with an invalid file a controller could not start again
            for pid in self._daemons("controller")[:1]:
                self.cluster.clock.pause()
                self.users.say("kill_controller", f"SIGKILL to the controller, pid {pid}")
                self._end(pid, signal.SIGKILL)
                self._sleep(0.5)
                self._back("SIGKILL to the controller")

    def _kill_agent(self) -> None:
        agents = self._daemons("agent")
        if agents:
            with self.cluster.config_lock:  # with an invalid file an agent could not start again
                pid = self.random.choice(agents)
                self.users.say("kill_agent", f"SIGKILL to {self.facts.daemons[pid].name}, pid {pid}")
                now = time.time()
                self.inbox.silenced(Outage(self.facts.daemons[pid].name.removeprefix("agent "), now, now + 2.0))
                self._end(pid, signal.SIGKILL)
                self._sleep(2.0)

    def _kill_supervisor(self) -> None:
        """Kill the supervisor. All other daemons continue; `gangwatch up` then starts a supervisor that adopts them."""
        for pid in self._daemons("supervisor")[:1]:
            self.users.say("kill_supervisor", f"SIGKILL to the supervisor, pid {pid}")
            self._end(pid, signal.SIGKILL)
            self._sleep(self.random.uniform(0.5, 5.0))
            said = self.cluster.up()
            if said.code != 0:
                self.inbox.complaint("up", "supervisor", f"`up` after SIGKILL to the supervisor: {said.err[-600:]}")

    def _stop_daemon(self) -> None:
        """Stop a daemon with SIGSTOP for up to a minute."""
        name = self.random.choice(["controller", "agent", "supervisor"])
        pids = self._daemons(name)
        if not pids:
            return
        pid, seconds = self.random.choice(pids), self.random.choice([3.0, 10.0, 20.0, 60.0])
        self.users.say("stop_daemon", f"SIGSTOP to {self.facts.daemons[pid].name}, pid {pid}, for {seconds:g} s")
        if name == "controller":
            self.cluster.clock.pause()
        if name == "agent":
            now, node = time.time(), self.facts.daemons[pid].name.removeprefix("agent ")
            self.inbox.silenced(Outage(node, now, now + seconds))
        try:
            os.kill(pid, signal.SIGSTOP)
            self._sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        if name == "controller":
            self._back("SIGCONT to the controller")

    def _busy(self) -> None:
        """Run more computing programs than there are CPUs for a while."""
        seconds = self.random.choice([5.0, 15.0])
        self.users.say("machine_busy", f"for {seconds:g} s")
        many = (os.cpu_count() or 1) + 1
        spinning = [self._spin(seconds) for _ in range(many)]
        self._sleep(seconds)
        for process in spinning:
            process.kill()
            process.wait()

    def _spin(self, seconds: float, *processor: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-I", "-S", str(SPIN), str(seconds), *processor])

    # --- ranks -------------------------------------------------------------------------------------------------------

    def trouble_ranks(self, until: float) -> None:
        """Run one training after another, wait until its warm-up is over, and disturb one of its ranks."""
        kinds = ["stopped", "held", "killed", "outspun"]
        bag: list[str] = []
        try:
            while time.monotonic() < until - 30 and not self.stopped:
                bag = bag or self.random.sample(kinds, len(kinds))
                try:
                    self._trouble_rank(bag.pop(), until)
                except AbsentError:
                    self._sleep(2.0)
                except RefusedError as error:
                    if error.status not in (404, 409):
                        raise
                self._sleep(self.random.uniform(2, 10))
        except Exception as error:
            self.users.errors.append(f"the harness itself: ranks: {error!r}")
            raise

    def _trouble_rank(self, kind: str, until: float) -> None:
        ranks = min(4, self.cluster.nodes * self.cluster.slots)
        rank = self.random.randrange(ranks)
        plan = {"steps": 100_000, "compute_seconds": 0.012, "rest_seconds": 0.12, "report": True, "saves_every": 0}
        if kind == "outspun":
            plan |= {"processor": 0, "pinned": rank, "compute_seconds": 0.04, "rest_seconds": 0.1}
        restartable = self.random.random() < 0.5
        more = {"restartable": restartable, "priority": 100, "time_limit_seconds": 600.0, "restart_cost_seconds": 2.0}
        job = self.users.train(f"training_{kind}", plan, ranks, **more)
        try:
            if self._warm(job, until):
                self._disturb(kind, job, rank)
        finally:
            self._cancel(job)

    def _warm(self, job: str, until: float) -> bool:
        """Wait until the job's warm-up is over, and return True; return False if this is not the case at the time
        `until`."""
        began: float | None = None
        attempt = 0
        while time.monotonic() < until and not self.stopped:
            self._sleep(0.5)
            seen = self.facts.reading.jobs.get(job) if self.facts.reading is not None else None
            if seen is None or seen["state"] != "running" or seen["attempt"] != attempt:
                began, attempt = None, seen["attempt"] if seen is not None else 0
                if seen is not None and seen["ended_ns"] is not None:
                    return False
                continue
            began = self.cluster.clock.now().fair if began is None else began
            if self.cluster.clock.now().fair - began > WARM_SECONDS and not self.cluster.clock.paused:
                return True
        return False

    def _disturb(self, kind: str, job: str, rank: int) -> None:
        seen = self.facts.reading.jobs[job] if self.facts.reading is not None else {}
        attempt = seen.get("attempt", 0)
        life = self.facts.lives.get((job, attempt, rank))
        if life is None or seen.get("state") != "running":
            return
        expected = {"stopped": HANG_SECONDS, "held": SLOW_SECONDS, "outspun": SLOW_SECONDS}.get(kind)
        now = self.cluster.clock.now()
        one = Disturbance(kind, job, attempt, rank, life.node, now.wall, now.fair, expected=expected)
        # The cooldown between two moves may keep a gang that was moved before on its nodes.
        restartable = self.facts.owner_of[job].request.get("restartable")
        one.restarts = bool(kind == "stopped" and restartable and attempt == 1 and self.restarts_hangs)
        self.inbox.disturbed(one)
        self.users.say(f"rank_{kind}", f"rank {rank} of {job}, pid {life.pid}")
        try:
            if kind == "killed":
                os.kill(life.pid, signal.SIGKILL)
                self._sleep(3.0)
            elif kind == "stopped":
                os.kill(life.pid, signal.SIGSTOP)
                self._until_found(one, HANG_SECONDS + 10 + (RESTART_SECONDS if one.restarts else 0.0))
            elif kind == "held":
                self._hold(one, life.pid)
            else:
                spinning = [self._spin(240.0, "0") for _ in range(2)]
                self._until_found(one, SLOW_SECONDS + 2)
                for process in spinning:
                    process.kill()
                    process.wait()
        except ProcessLookupError:
            pass
        finally:
            one.until = time.time()
            if kind in ("stopped", "held"):
                self._go_on(life.pid)
            short = one.expected is not None and self.cluster.clock.now().fair - one.fair < one.expected
            if one.found is None and (short or self.stopped or not self._same(one)):
                one.expected = None  # it was over before a verdict could be demanded

    def _until_found(self, one: Disturbance, seconds: float) -> None:
        while self.cluster.clock.now().fair - one.fair < seconds and not self.stopped:
            self._sleep(0.5)
            if not self._same(one) or (one.found is not None and not one.restarts):
                return

    def _same(self, one: Disturbance) -> bool:
        """Return whether the disturbed attempt still runs."""
        seen = self.facts.reading.jobs.get(one.job) if self.facts.reading is not None else None
        return seen is not None and seen["state"] == "running" and seen["attempt"] == one.attempt

    def _hold(self, one: Disturbance, pid: int) -> None:
        while self.cluster.clock.now().fair - one.fair < SLOW_SECONDS + 10 and not self.stopped:
            if one.found is not None or not self._same(one):
                return
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.12, 0.32))
            os.kill(pid, signal.SIGCONT)
            time.sleep(self.random.uniform(0.1, 0.25))

    @staticmethod
    def _go_on(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def _cancel(self, job: str) -> None:
        for _ in range(20):
            try:
                self.users.cancel(job)
                return
            except AbsentError:
                self._sleep(1.0)
