"""Power budget: limits of running gangs, starts within the budget, and their reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_feedback.core.events import FreezeSet, PolicySet, PowerSeen, SpeedMeasured, Tick
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState, Slot
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Cell, Mode, Policy, Queue, Sharing, Sizes
from scheduler_feedback.core.state_copy import frozen
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.cycle import explain, next_wake_ns, why_waits
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.limits import HOLD_SECONDS, wanted_limits
from tests.cluster.cycle_world import SECOND, World
from tests.policies.test_sharing import SHARED

LEAST, MOST, IDLE = 100.0, 240.0, 30.0


class PowerWorld(World):
    """Cluster whose agents set the wanted limits when the test calls ``confirm``."""

    def confirm(self) -> None:
        """Let every agent report the limits that the scheduler wants."""
        index = index_of(self.state)
        for node, limits in wanted_limits(self.state, account_of(self.state, index), index).items():
            slots = tuple(SlotPower(LEAST, MOST, limit, IDLE) for limit in limits)
            if slots != self.state.power[node]:
                self.cycle(PowerSeen(node, slots))
        self.running()

    def committed(self) -> float:
        return account_of(self.state, index_of(self.state)).committed_watts

    def limit(self, job_id: str) -> float:
        return self.state.jobs[job_id].power_limit_watts


def world_of(budget: float, nodes: int = 2, **changes: object) -> PowerWorld:
    """Return idle nodes with four GPUs each, whose agents have set their lowest limits."""
    world = PowerWorld(
        {f"n{number}": 4 for number in range(nodes)},
        Policy(power_budget_watts=budget, **changes),  # type: ignore[arg-type]
    )
    for node in world.nodes:
        world.cycle(PowerSeen(node, (SlotPower(LEAST, MOST, MOST, IDLE),) * 4))
    world.confirm()
    return world


def test_a_gang_alone_gets_the_highest_limit_that_fits() -> None:
    world = world_of(1000.0)
    job = world.submit(4, 1000.0)
    assert world.limit(job) == 220.0, "4 x 220 W and 4 idle GPUs with 30 W each are 1,000 W"
    assert world.committed() == 1000.0
    assert "its GPUs are limited to 220 W each, because the cluster's power budget is 1000 W" in explain_text(
        world, job
    )
    assert "its agents have not confirmed the limit yet" not in explain_text(world, job), "a rise needs no wait"


def explain_text(world: World, job: str) -> str:
    found = explain(world.state, job)
    assert found is not None
    return found.why


@pytest.mark.parametrize("sizes", list(Sizes))
def test_an_elastic_gang_gets_only_the_ranks_that_the_budget_allows(sizes: Sizes) -> None:
    """600 W are 240 W for eight idle GPUs, and 70 W more for each of five busy ones."""
    world = world_of(600.0, sizes=sizes)
    job = world.submit(
        8, 10_000.0, min_ranks=2, max_ranks=8, restartable=True, grace_seconds=1.0, restart_cost_seconds=1.0
    )
    world.confirm()
    for _ in range(20):
        world.advance(60.0)
        world.confirm()
    found = world.state.jobs[job]
    assert (found.state, found.attempt) == (JobState.RUNNING, 1), [one.text for one in world.entries]
    assert 2 <= len(found.ranks) <= 5
    assert not any("budget of 600 W is left" in one.text for one in world.entries)
    assert world.job_state(world.submit(8, 10.0)) is JobState.PENDING


def test_an_elastic_gang_moves_with_the_ranks_that_a_lower_budget_allows() -> None:
    world = world_of(2000.0)
    job = world.state.jobs[world.submit(8, 1000.0, min_ranks=2, max_ranks=8, restartable=True)]
    world.confirm()
    assert (len(job.ranks), index_of(world.state).most_ranks_instead(job)) == (8, None)
    world.cycle(PolicySet(replace(world.state.policy, power_budget_watts=600.0)))
    assert index_of(world.state).most_ranks_instead(job) == 5
    world.cycle(PolicySet(replace(world.state.policy, power_budget_watts=310.0)))
    assert index_of(world.state).most_ranks_instead(job) == 2, "never fewer than its fewest"


def test_a_probe_that_waits_for_power_reserves_no_slots() -> None:
    """75 W are left, which would be enough for the probe, but a gang of the queue waits for 280 W."""
    world = world_of(715.0, nodes=3)
    first, second = world.submit(4, 1000.0), world.submit(4, 1000.0)
    for _ in range(3):
        world.confirm()
        world.advance(1.0)
    waiting = world.state.jobs[second]
    assert (world.limit(first), waiting.state, len(waiting.claim)) == (LEAST, JobState.PENDING, 4)
    busy = {rank.slot.node for rank in world.state.jobs[first].ranks} | {slot.node for slot in waiting.claim}
    node = next(world.state.nodes[name] for name in world.nodes if name not in busy)
    spec = JobSpec("probe", ("probe",), 1, kind=JobKind.PROBE, pinned_node=node.name)
    index_of(world.state).add_probe(node, Job("probe", spec, JobState.PENDING, world.state.now_ns))
    world.submit(1, 10.0)
    probe = world.state.jobs["probe"]
    assert (probe.state, len(probe.claim)) == (JobState.PENDING, 0)


def test_readers_get_the_same_explanations_as_the_cycle() -> None:
    """`gangwatch explain` reads a copy of the state."""
    world = world_of(1000.0)
    first = world.submit(4, 1000.0)
    world.confirm()
    second = world.submit(4, 1000.0)
    found = {job: explain(world.state, job) for job in (first, second)}
    assert "power budget" in str(found[first]) and "it needs 280 W more" in str(found[second])
    copied = frozen(world.state)
    assert {job: explain(copied, job) for job in (first, second)} == found


def test_a_start_waits_until_the_limits_of_others_are_confirmed_to_be_lower() -> None:
    world = world_of(1000.0)
    first = world.submit(4, 1000.0)
    world.confirm()
    second = world.submit(4, 1000.0)
    assert world.job_state(second) is JobState.PENDING
    assert "power budget of 1000 W" in why_waits(world.state, world.state.jobs[second])
    assert world.limit(first) < 220.0, "its limit is lowered at once"
    assert world.committed() <= 1000.0, "the first gang's GPUs count with the old limit"
    world.confirm()
    assert world.job_state(second) is JobState.RUNNING
    assert world.committed() <= 1000.0
    world.confirm()
    assert world.limit(first) + world.limit(second) == 240.0
    assert world.committed() <= 1000.0


def test_limits_rise_when_a_gang_ends_but_not_right_after_a_change() -> None:
    world = world_of(1000.0)
    first, second = world.submit(4, 1000.0), world.submit(4, 50.0)
    world.confirm()
    world.confirm()
    assert world.limit(first) == 120.0
    world.advance(10.0)
    world.end(second, 0)
    world.confirm()
    assert world.limit(first) == 120.0, f"it has changed less than {HOLD_SECONDS} s ago"
    wake_ns = next_wake_ns(world.state, world.now_ns)
    assert wake_ns is not None
    world.now_ns = wake_ns
    world.cycle()
    assert world.limit(first) == 220.0


def test_a_gang_that_exceeds_the_budget_alone_waits_with_the_reason() -> None:
    world = world_of(700.0)
    large, small = world.submit(8, 1000.0), world.submit(2, 1000.0)
    assert "even with the lowest power limits" in why_waits(world.state, world.state.jobs[large])
    assert world.job_state(small) is JobState.STARTING
    world.cycle(PolicySet(Policy(power_budget_watts=900.0), "ann"))
    assert "even with the lowest" not in why_waits(world.state, world.state.jobs[large])


def test_the_idle_power_of_all_other_gpus_counts_for_a_gang_alone() -> None:
    world = world_of(900.0, nodes=3)
    assert "even with the lowest power limits" in why_waits(world.state, world.state.jobs[world.submit(8, 1000.0)])
    fits = world_of(920.0, nodes=3)
    assert fits.job_state(fits.submit(8, 1000.0)) is JobState.STARTING


def fixed_world(budget: float) -> tuple[PowerWorld, str]:
    """Return a node whose GPUs have fixed limits and run a gang, and an idle one with settable limits."""
    world = PowerWorld({"n0": 4, "n1": 4}, Policy(power_budget_watts=budget))
    fixed = SlotPower(MOST, MOST, MOST, IDLE, settable=False)
    world.cycle(PowerSeen("n0", (fixed,) * 4), PowerSeen("n1", (SlotPower(LEAST, MOST, LEAST, IDLE),) * 4))
    return world, world.submit(4, 1000.0)


def test_a_start_needs_the_lowest_limit_without_the_idle_power() -> None:
    world, _ = fixed_world(4 * MOST + 4 * IDLE + 75.0)
    assert world.job_state(world.submit(1, 1000.0)) is JobState.STARTING
    assert world.job_state(world.submit(1, 1000.0)) is JobState.PENDING


def test_gangs_wait_for_power_in_order() -> None:
    world, first = fixed_world(4 * MOST + 4 * IDLE + 120.0)
    large, small = world.submit(3, 1000.0), world.submit(1, 1000.0)
    assert [world.job_state(one) for one in (large, small)] == [JobState.PENDING] * 2
    assert "(210 W of that for jobs ahead of it)" in why_waits(world.state, world.state.jobs[small])
    world.end(first, 0)
    world.confirm()
    assert [world.job_state(one) for one in (large, small)] == [JobState.RUNNING] * 2


def test_a_gang_leaves_power_only_to_gangs_ahead_of_it() -> None:
    """It was left to all that waited, until the next event (benchmarks.invariants, seed 4800008)."""
    world, _ = fixed_world(4 * MOST + 4 * IDLE + 120.0)
    large, urgent = world.submit(3, 1000.0), world.submit(1, 1000.0, priority=1)
    assert [world.job_state(one) for one in (large, urgent)] == [JobState.PENDING, JobState.STARTING]


def test_no_gang_starts_on_gpus_of_unknown_power() -> None:
    world = PowerWorld({"n0": 2}, Policy(power_budget_watts=1000.0))
    world.state.nodes["n0"].devices = ("GPU-0", "GPU-1")
    job = world.submit(2, 100.0)
    assert "the power of the GPUs of n0 is not known" in why_waits(world.state, world.state.jobs[job])
    world.cycle(PowerSeen("n0", (SlotPower(LEAST, MOST, LEAST, IDLE),) * 2))
    assert world.job_state(job) is JobState.STARTING


def test_gpus_whose_agent_sets_no_limits_count_with_their_present_limit() -> None:
    world = PowerWorld({"n0": 2, "n1": 2}, Policy(power_budget_watts=800.0))
    fixed = SlotPower(MOST, MOST, MOST, IDLE, settable=False)
    world.cycle(PowerSeen("n0", (fixed, fixed)), PowerSeen("n1", (SlotPower(LEAST, MOST, LEAST, IDLE),) * 2))
    job = world.submit(4, 100.0)
    assert world.job_state(job) is JobState.STARTING
    assert world.limit(job) == 160.0, "2 x 240 W and 2 x 160 W"
    assert wanted_limits(world.state, account_of(world.state, index_of(world.state)), index_of(world.state)) == {
        "n0": (0.0, 0.0), "n1": (160.0, 160.0)
    }  # fmt: skip


@pytest.mark.parametrize("policy", [Policy(), Policy(power_budget_watts=1.0, mode=Mode.OBSERVE)])
def test_without_a_budget_nothing_is_limited(policy: Policy) -> None:
    world = world_of(1000.0)
    job = world.submit(4, 100.0)
    assert world.state.jobs[job].speed < 1.0
    world.cycle(PolicySet(policy, "ann"))
    assert world.limit(job) == 0.0
    assert world.state.jobs[job].speed == pytest.approx(1.0)
    assert explain_text(world, job).endswith("since 0 s") or "limited" not in explain_text(world, job)


def test_a_power_verdict_on_a_limited_gpu_accuses_no_node_and_raises_the_limit() -> None:
    world = world_of(1000.0)
    first, second = world.submit(4, 1000.0), world.submit(4, 1000.0)
    for _ in range(2):
        world.confirm()
    assert (world.limit(first), world.limit(second)) == (120.0, 120.0)
    world.advance(40.0)
    world.cycle(world.verdict(first, 1, cause=Cause.POWER))
    assert not world.state.verdicts
    assert world.state.nodes["n0"].state.value == "healthy"
    assert "slowed by our own power limit of 120 W" in world.state.refused_verdicts[0].why
    assert (world.limit(first), world.limit(second)) == (120.0, 100.0), "it rises when the other one is confirmed"
    assert world.committed() == 960.0
    world.confirm()
    world.confirm()
    assert (world.limit(first), world.limit(second)) == (140.0, 100.0)
    assert "power-floor" in world.entry_kinds(first)


def test_a_power_verdict_stays_if_the_limit_is_not_ours_or_not_in_force() -> None:
    world = world_of(1000.0)
    job = world.submit(4, 1000.0)
    world.confirm()
    world.cycle(PowerSeen("n0", (SlotPower(LEAST, MOST, MOST, IDLE),) * 4))
    world.cycle(world.verdict(job, 1, cause=Cause.POWER))
    assert world.state.verdicts, "the GPU reports its highest limit: something else lowers its clock"
    other = world_of(2000.0)
    job = other.submit(4, 1000.0)
    other.confirm()
    other.cycle(other.verdict(job, 1, cause=Cause.POWER))
    assert other.state.verdicts, "its limit is the highest one"


def test_the_sensitivity_of_a_class_is_learnt_from_speeds_at_two_limits() -> None:
    world = world_of(1000.0)
    deaf = world.submit(4, 5000.0, workload="lookups", user="ann")
    eager = world.submit(4, 5000.0, workload="bert", user="ann")
    for _ in range(2):
        world.confirm()
    assert world.limit(deaf) == world.limit(eager) == 120.0
    for job in (deaf, eager):
        world.advance(100.0)
        world.cycle(SpeedMeasured(job, 1, 10.0, 20.0, "steps"))
    world.cycle(PolicySet(Policy(power_budget_watts=1400.0), "ann"))
    world.confirm()
    world.advance(100.0)
    world.cycle(SpeedMeasured(deaf, 1, 10.0, 20.0, "steps"), SpeedMeasured(eager, 1, 18.0, 20.0, "steps"))
    world.cycle(PolicySet(Policy(power_budget_watts=1100.0), "ann"))
    assert world.limit(deaf) < 120.0 < world.limit(eager), "watts go to the gang that gains from them"


def test_a_speed_that_was_measured_at_two_limits_is_not_learnt() -> None:
    world = world_of(1000.0)
    first = world.submit(4, 5000.0, workload="bert")
    world.confirm()
    world.submit(4, 5000.0)
    world.advance(10.0)
    world.cycle(SpeedMeasured(first, 1, 10.0, 20.0, "steps"))
    assert not world.state.power_rates
    assert not world.state.speeds
    world.advance(20.0)
    world.cycle(SpeedMeasured(first, 1, 10.0, 20.0, "steps"))
    assert world.state.power_rates


def test_jobs_that_share_slots_have_one_limit() -> None:
    world = PowerWorld({"n0": 1}, Policy(power_budget_watts=200.0, sharing=Sharing.GANDIVA), jobs_per_slot=2)
    world.cycle(PowerSeen("n0", (SlotPower(LEAST, MOST, LEAST, IDLE),)))
    one = world.submit(1, 500.0, **SHARED)
    world.running()
    other = world.submit(1, 500.0, **SHARED)
    assert index_of(world.state).sharers[Slot("n0", 0)] == (one, other)
    assert world.limit(one) == world.limit(other) == 200.0
    assert world.committed() == 200.0


def test_a_freeze_keeps_the_limits() -> None:
    world = world_of(1000.0)
    job = world.submit(4, 5000.0)
    world.cycle(FreezeSet(True, "ann"))
    world.cycle(PolicySet(Policy(power_budget_watts=600.0), "ann"))
    assert world.limit(job) == 220.0
    world.cycle(FreezeSet(False, "ann"))
    assert world.limit(job) == 120.0
    assert world.now_ns > SECOND


def test_no_job_leaves_cells_for_one_that_the_power_budget_never_allows_there() -> None:
    """benchmarks.invariants, seed 8500027: the other job was stopped in vain, and its slots reserved in each cycle.

    The limits of the GPUs of n1 cannot be lowered, so four of them need 960 W.
    """
    world = world_of(1000.0, queues=tuple(Queue(name, cells={Cell.NODE: 1}) for name in "ab"))
    other = world.submit(4, 1000.0, queue="b")
    guest = world.submit(2, 1000.0, queue="b", restartable=True, preemptible=True)
    for _ in range(3):
        world.confirm()
    assert (world.nodes_of(other), world.nodes_of(guest)) == ({"n0"}, {"n1"})
    world.cycle(PowerSeen("n1", (SlotPower(MOST, MOST, MOST, IDLE, settable=False),) * 4))
    owner = world.submit(4, 1000.0, queue="a")
    for _ in range(3):
        world.cycle(Tick())
    assert world.state.jobs[guest].stop_reason is None
    assert world.job_state(owner) is JobState.PENDING and not world.state.jobs[owner].claim
