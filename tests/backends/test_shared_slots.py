"""Two jobs on one CPU slot for real: processes of both run at once, and a pair that interferes is separated.

The jobs run on one processor and count their steps in a file. The test reads the counts, as an agent reports steps.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_feedback import cycle
from scheduler_feedback.backends.local.local_backend import LocalBackend, LocalNode
from scheduler_feedback.controller.reports.latencies import Latencies
from scheduler_feedback.controller.reports.shared_speeds import TRIAL_NS, SharedSpeeds
from scheduler_feedback.core.events import CancelRequested, Event, Submitted
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Order, Policy, Sharing, State
from scheduler_feedback.core.telemetry.steps.step_ring import Requests
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.sharing.pair_speeds import workload_of
from tests.backends.local_gangs import python

STEP = """
import os, time
os.sched_setaffinity(0, {%(cpu)d})
steps = 0
while True:
    begun = time.process_time()
    while time.process_time() - begun < %(busy)f: pass
    time.sleep(%(idle)f)
    steps += 1
    with open(%(path)r, "w") as file: file.write(f"{steps} {time.monotonic()}")
"""


class OneSlot:
    """A controller's cycle on a local backend with one slot for two jobs."""

    def __init__(self, folder: Path, policy: Policy, slots: int = 1) -> None:
        self.folder = folder
        self.backend = LocalBackend(folder / "state", [LocalNode("n0", slots, jobs_per_slot=2)])
        self.state = State(policy=policy)
        self.cycle(*self.backend.nodes())

    def cycle(self, *events: Event) -> cycle.Outcome:
        outcome = cycle.run(self.state, events, time.time_ns())
        for action in outcome.actions:
            self.backend.apply(action)
        return outcome

    def submit(self, job_id: str, busy: float, idle: float, **spec: Any) -> None:
        path = str(self.folder / f"{job_id}.steps")
        program = STEP % {"cpu": min(os.sched_getaffinity(0)), "busy": busy, "idle": idle, "path": path}
        traits = {"shareable": True, "restartable": True, "preemptible": True, "grace_seconds": 5.0} | spec
        self.cycle(Submitted(job_id, JobSpec(job_id, python(program), 1, **traits)))

    def observe(self) -> None:
        jobs = self.state.jobs.values()
        self.cycle(*self.backend.observe([(one.job_id, one.attempt) for one in jobs if one.state.holds_slots]))

    def until(self, holds: Callable[[], bool], seconds: float = 40.0) -> float:
        """Observe until the condition holds, and return after how many seconds it did."""
        began = time.monotonic()
        while not holds():
            states = {one.job_id: one.state for one in self.state.jobs.values()}
            assert time.monotonic() - began < seconds, (states, self.state.pair_speeds)
            time.sleep(0.05)
            self.observe()
        return time.monotonic() - began

    def runs(self, *job_ids: str) -> bool:
        return all(self.state.jobs[one].state is JobState.RUNNING for one in job_ids)

    def steps(self, job_id: str) -> int:
        path = self.folder / f"{job_id}.steps"
        while path.exists():
            if words := path.read_text().split():  # it is empty for a moment at each step
                return int(words[0])
        return 0

    def rate(self, job_id: str, seconds: float = 2.0) -> float:
        """Return the job's steps per second."""
        before = self.steps(job_id)
        time.sleep(seconds)
        return (self.steps(job_id) - before) / seconds

    def scheduler_of(self, job_id: str) -> int:
        pid = self.state.jobs[job_id].ranks[0].pid
        assert pid is not None
        return os.sched_getscheduler(pid)


@pytest.fixture
def one_slot(tmp_path: Path) -> Iterator[Callable[[Policy], OneSlot]]:
    made: list[OneSlot] = []

    def make(policy: Policy, slots: int = 1) -> OneSlot:
        made.append(OneSlot(tmp_path, policy, slots))
        return made[-1]

    yield make
    for one in made:
        one.cycle(*(CancelRequested(job_id) for job_id in one.state.jobs))
        one.until(lambda: not any(job.state.holds_slots for job in one.state.jobs.values()))  # noqa: B023


def measured(world: OneSlot, *job_ids: str, alone: dict[str, float]) -> None:
    """Measure both jobs as the controller does, with the step times that they really have."""
    seconds = dict(alone)
    speeds = SharedSpeeds(lambda job_id: seconds.get(job_id))
    state = world.state
    shared = {one: 1 / max(world.rate(one), 0.01) for one in job_ids}
    # The step times alone were measured before: the clock of the measurement is set, nothing waits for it.
    for one in job_ids:
        job = state.jobs[one]
        speeds._alone[one_kind(job)] = alone[one]
    assert index_of(state).partners(job_ids[0]) == [job_ids[1]]
    seconds.update(shared)
    assert speeds.measure(state, 0) == []
    found = speeds.measure(state, TRIAL_NS + 60 * 10**9)
    assert [one.job_id for one in found] == sorted(job_ids)
    world.cycle(*found)


def one_kind(job: Any) -> tuple[str, int, str]:
    return (workload_of(job.spec), len(job.ranks), "")


@pytest.mark.serial
def test_two_busy_jobs_share_a_processor_and_are_separated(one_slot: Callable[[Policy], OneSlot]) -> None:
    # On an idle processor both together reach 1.0. The bound leaves room for other load while the jobs run alone.
    world = one_slot(Policy(sharing=Sharing.GANDIVA, separate_below=1.9))
    world.submit("j-1", busy=0.01, idle=0.0)
    world.until(lambda: world.runs("j-1") and world.steps("j-1") > 5)
    alone = world.rate("j-1")
    world.submit("j-2", busy=0.01, idle=0.0)
    world.until(lambda: world.runs("j-1", "j-2") and world.steps("j-2") > 5)
    assert world.state.jobs["j-1"].ranks[0].slot == world.state.jobs["j-2"].ranks[0].slot
    pid = world.state.jobs["j-2"].ranks[0].pid
    measured(world, "j-1", "j-2", alone={"j-1": 1 / alone, "j-2": 1 / alone})
    took = world.until(lambda: world.state.jobs["j-2"].state is JobState.PENDING)
    assert took < 30 and world.runs("j-1")
    assert not Path(f"/proc/{pid}").exists(), "the process of the guest has ended"
    assert all(speed < 1 for row in world.state.pair_speeds.values() for speed in row.values())


@pytest.mark.serial
def test_jobs_that_wait_most_of_the_time_stay_together(one_slot: Callable[[Policy], OneSlot]) -> None:
    world = one_slot(Policy(sharing=Sharing.GANDIVA, separate_below=1.0))
    alone = {}
    world.submit("j-1", busy=0.005, idle=0.03)
    world.until(lambda: world.runs("j-1") and world.steps("j-1") > 5)
    alone["j-1"] = alone["j-2"] = 1 / world.rate("j-1")
    world.submit("j-2", busy=0.005, idle=0.03)
    world.until(lambda: world.runs("j-1", "j-2") and world.steps("j-2") > 5)
    measured(world, "j-1", "j-2", alone=alone)
    world.observe()
    assert world.runs("j-1", "j-2")


@pytest.mark.serial
def test_an_opportunistic_job_hardly_slows_its_host(one_slot: Callable[[Policy], OneSlot]) -> None:
    world = one_slot(Policy(sharing=Sharing.ANTMAN))
    world.submit("j-1", busy=0.01, idle=0.0)
    world.until(lambda: world.runs("j-1") and world.steps("j-1") > 5)
    alone = world.rate("j-1")
    world.submit("j-2", busy=0.01, idle=0.0, opportunistic=True)
    world.until(lambda: world.runs("j-1", "j-2"))
    assert (world.scheduler_of("j-1"), world.scheduler_of("j-2")) == (os.SCHED_OTHER, os.SCHED_IDLE)
    beside = world.rate("j-1", 4.0)
    # Equal shares would be 0.5, also with SCHED_IDLE alone if the kernel groups sessions. The rest is for other load.
    assert beside > 0.75 * alone, f"{beside:.1f} steps a second beside the opportunistic job, {alone:.1f} alone"


SERVE = """
import json, os, sys, time
os.sched_setaffinity(0, {%(cpu)d})
ends, seconds = [], []
while True:
    time.sleep(0.03)
    begun = time.monotonic()
    work = time.process_time()
    while time.process_time() - work < (0.5 if os.path.exists(%(surge)r) else 0.004): pass
    ends.append(time.monotonic_ns())
    seconds.append(time.monotonic() - begun)
    with open(%(path)r + ".new", "w") as file: json.dump([ends[-40:], seconds[-40:]], file)
    os.replace(%(path)r + ".new", %(path)r)
"""


@pytest.mark.serial
def test_a_service_lends_its_slot_and_recalls_it_in_a_surge(one_slot: Callable[[Policy], OneSlot]) -> None:
    """Requests of 4 ms, with 30 ms between them, and an objective of one second. In the surge they take 500 ms."""
    world = one_slot(Policy(sharing=Sharing.MUXFLOW))
    path, surge = world.folder / "requests", world.folder / "surge"
    program = SERVE % {"cpu": min(os.sched_getaffinity(0)), "path": str(path), "surge": str(surge)}
    traits: dict[str, Any] = {"shareable": True, "grace_seconds": 5.0, "latency_objective_seconds": 1.0}
    world.cycle(Submitted("j-1", JobSpec("service", python(program), 1, **traits)))
    world.submit("j-2", busy=0.01, idle=0.0, opportunistic=True)

    def newest(job_id: str) -> Requests | None:
        if job_id != "j-1" or not path.exists():
            return None
        ends, seconds = json.loads(path.read_text())
        return Requests(np.array(ends)[:, None], np.array(seconds)[:, None])

    latencies, began_ns = Latencies(newest), time.monotonic_ns()

    def measured(holds: Callable[[], bool]) -> bool:
        """Report latencies as the controller does, ten times as often."""
        world.cycle(*latencies.measure(world.state, 10 * (time.monotonic_ns() - began_ns)))
        return holds()

    world.until(lambda: measured(lambda: world.runs("j-1", "j-2") and world.steps("j-2") > 5), 90.0)
    assert world.state.jobs["j-2"].guest_of == ("j-1",)
    assert (world.scheduler_of("j-1"), world.scheduler_of("j-2")) == (os.SCHED_OTHER, os.SCHED_IDLE)
    surge.touch()
    world.until(lambda: measured(lambda: world.state.jobs["j-2"].state is JobState.PENDING))
    assert world.runs("j-1")
    why = cycle.why_waits(world.state, world.state.jobs["j-2"])
    assert "whose latency is far below its objective" in why


@pytest.mark.serial
def test_jobs_run_in_turn_for_a_time_slice_each(one_slot: Callable[[Policy], OneSlot]) -> None:
    world = one_slot(Policy(order=Order.ROUND_ROBIN, preempt=True, slice_seconds=2.0))
    names = ("j-1", "j-2")
    for name in names:
        world.submit(name, busy=0.001, idle=0.01, restart_cost_seconds=0.1)
    turns: list[str] = []

    def both_ran_twice() -> bool:
        running = [name for name in names if world.state.jobs[name].state is JobState.RUNNING]
        assert len(running) < 2, "one at a time"
        if running and running != turns[-1:]:
            turns.extend(running)
        return len(turns) == 4

    world.until(both_ran_twice, 60.0)
    assert turns == ["j-1", "j-2", "j-1", "j-2"]
    assert all(world.state.jobs[name].preemptions >= 1 and world.state.jobs[name].retries == 0 for name in names)


@pytest.mark.serial
def test_a_guest_moves_to_a_slot_that_becomes_idle(one_slot: Callable[..., OneSlot]) -> None:
    world = one_slot(Policy(sharing=Sharing.GANDIVA, separate_below=0.5, migration_cooldown_seconds=0.0), slots=2)
    world.submit("j-0", busy=0.001, idle=0.01, shareable=False)
    world.submit("j-1", busy=0.01, idle=0.0)
    world.until(lambda: world.runs("j-0", "j-1") and world.steps("j-1") > 5)
    alone = world.rate("j-1")
    world.submit("j-2", busy=0.01, idle=0.0)
    world.until(lambda: world.runs("j-1", "j-2") and world.steps("j-2") > 5)
    measured(world, "j-1", "j-2", alone={"j-1": 1 / alone, "j-2": 1 / alone})
    world.cycle(CancelRequested("j-0"))
    world.until(lambda: world.runs("j-1", "j-2") and not world.state.jobs["j-2"].guest_of)
    slots = {world.state.jobs[one].ranks[0].slot for one in ("j-1", "j-2")}
    assert len(slots) == 2 and world.state.jobs["j-2"].attempt == 2
