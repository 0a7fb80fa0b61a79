"""Scheduling index: each method that changes the state updates the index, and no other code changes these fields."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import scheduler_feedback
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import (
    Job,
    JobKind,
    JobSpec,
    JobState,
    RankRecord,
    Slot,
    StepTimes,
    StopReason,
    TimeShift,
)
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import Estimates, MeasuredMemory, Order, Policy, Sharing
from scheduler_feedback.core.verdict import Kind
from scheduler_feedback.policies.index.scheduling_index import (
    JOB_FIELDS,
    NODE_FIELDS,
    STATE_FIELDS,
    SchedulingIndex,
    index_of,
)
from tests.cluster.cycle_world import SECOND, World
from tests.cluster.scheduling_rules import check_index

# --- each method -----------------------------------------------------------------------------------------------------

_MOVABLE = JobSpec(
    "m", ("train",), 2, restartable=True, preemptible=True, min_ranks=1, max_ranks=4, exact_seconds=1000.0
)


def world_of() -> World:
    """Return two racks with three running gangs and two pending ones."""
    policy = Policy(order=Order.SRTF, estimates=Estimates.EXACT, uplink_slowdown=0.1, min_run_seconds=5.0)
    world = World({f"n{i}": 2 for i in range(4)}, policy, racks=2)
    for ranks in (3, 2, 1, 8, 4):
        world.submit(ranks, 1000.0, exact_seconds=1000.0 + ranks, restartable=True, preemptible=True)
    world.running()
    world.advance(10.0)
    assert [job.state for job in world.state.jobs.values()] == [JobState.RUNNING] * 3 + [JobState.PENDING] * 2
    _ = index_of(world.state).plan
    return world


def check(world: World) -> None:
    index_of(world.state).settle()  # as in each cycle after changes of nodes
    check_index(world.state)


def _verdict(world: World, index: SchedulingIndex) -> None:
    index.add_verdict(world.verdict("j-000001", kind=Kind.INTERFERENCE, aggressor="j-000002", slowdown=2.0))


def _remove_verdict(world: World, index: SchedulingIndex) -> None:
    _verdict(world, index)
    check(world)
    index.remove_verdict(next(iter(world.state.verdicts.values())))


def _remove_node(world: World, index: SchedulingIndex) -> None:
    index.report_node(NodeSeen("n9", 2, rack="r9"))
    index.set_node_state(world.state.nodes["n9"], NodeState.SUSPECT, world.now_ns + SECOND)
    check(world)
    index.remove_node(world.state.nodes["n9"])


def _recover_node(world: World, index: SchedulingIndex) -> None:
    node, job = world.state.nodes["n0"], world.state.jobs["j-000002"]
    index.set_node_state(node, NodeState.SUSPECT, None)
    index.set_slowdown(node, 2.0)
    index.move(job, excluded=("n0",))
    check(world)
    index.recover_node(node)


def _report_node(world: World, index: SchedulingIndex) -> None:
    index.report_node(NodeSeen("n0", 4, rack="r1", gpu_type="H200"))
    check(world)
    index.report_node(NodeSeen("n0", 4, present=False))


def _run(world: World, index: SchedulingIndex) -> None:
    job = world.state.jobs["j-000003"]
    index.run(job, [RankRecord(0, Slot("n3", 1), 7, 7)])
    index.move(job)
    index.request_stop(job, "a-000099", world.now_ns + SECOND)
    check(world)
    index.run(job, [RankRecord(0, Slot("n3", 0), 7, 7)])


def _run_external(world: World, index: SchedulingIndex) -> None:
    spec = JobSpec("e", (), 1, kind=JobKind.EXTERNAL)
    job = Job("e-1", spec, JobState.RUNNING, world.now_ns)
    index.run_external(job, spec, 1, [Slot("n3", 0)], world.now_ns)
    check(world)
    index.end(job, JobState.COMPLETED, "")
    check(world)
    index.run_external(job, spec, 2, [Slot("n3", 1)], world.now_ns)


def _overdue(world: World, index: SchedulingIndex) -> None:
    index.set_policy(replace(world.state.policy, starvation_share=0.5))
    check(world)
    index.set_overdue(world.state.jobs["j-000005"])


def _demote(world: World, index: SchedulingIndex) -> None:
    index.set_policy(replace(world.state.policy, order=Order.LAS, preempt=True, las_thresholds=(20.0, 30_000.0)))
    check(world)
    index.demote([world.state.jobs["j-000001"]])
    assert world.state.jobs["j-000001"].level == 1


def _take_turns(world: World, index: SchedulingIndex) -> None:
    index.set_policy(replace(world.state.policy, order=Order.LAS, preempt=True))
    index.take_turns([world.state.jobs["j-000005"]], [world.state.jobs["j-000001"]])


def _appraise(world: World, index: SchedulingIndex) -> None:
    index.set_policy(replace(world.state.policy, order=Order.FAIR))
    job = world.state.jobs["j-000004"]
    job.urgency = 0.0
    index = index_of(world.state)
    index.set_policy(replace(world.state.policy))
    index.appraise(job, index.line.places[job.job_id].key, 0.1)


def _leave_attempt(world: World, index: SchedulingIndex) -> None:
    job = world.state.jobs["j-000001"]
    index.leave_attempt(job, job.ranks, world.now_ns, 10 * SECOND, 500.0)
    index.requeue(job, "")


def _request_stop(world: World, index: SchedulingIndex) -> None:
    job = world.state.jobs["j-000001"]
    index.stop(job, StopReason.PREEMPT, "")
    check(world)
    index.request_stop(job, "a-000099", world.now_ns + SECOND)


def _forget(world: World, index: SchedulingIndex) -> None:
    index.end(world.state.jobs["j-000004"], JobState.CANCELLED, "")
    index.forget_ended(0)
    assert "j-000004" not in world.state.jobs


def _plan_memory(world: World, index: SchedulingIndex) -> None:
    index.set_policy(replace(world.state.policy, sharing=Sharing.GANDIVA, learnt_memory=True))
    spec = JobSpec("s", ("train",), 1, shareable=True)
    for number, state in enumerate((JobState.PENDING, JobState.RUNNING)):
        job = Job(f"j-00000{8 + number}", spec, state, world.now_ns)
        job.ranks = [RankRecord(0, Slot("n3", 1))] if state is JobState.RUNNING else []
        index.add_job(job)
        world.state.memory[f"job {job.job_id}"] = [MeasuredMemory(1, {job.job_id: 1000}, 1)]
        check(world)
        index.plan_memory(job)
        assert job.learnt_mib > 1000


CHANGES: dict[str, Callable[[World, SchedulingIndex], None]] = {
    "set_policy": lambda world, index: index.set_policy(Policy(order=Order.SJF)),
    "add_verdict": _verdict,
    "remove_verdict": _remove_verdict,
    "report_node": _report_node,
    "set_node_state": lambda w, i: i.set_node_state(w.state.nodes["n3"], NodeState.SUSPECT, w.now_ns + SECOND),
    "recover_node": _recover_node,
    "set_until": lambda world, index: (
        index.set_node_state(world.state.nodes["n3"], NodeState.PROBATION, None),
        index.set_until(world.state.nodes["n3"], world.now_ns + 5 * SECOND),
    )[0],
    "set_slowdown": lambda world, index: (
        index.set_node_state(world.state.nodes["n3"], NodeState.SUSPECT, None),
        index.set_slowdown(world.state.nodes["n3"], 3.0),
    )[0],
    "set_spare": lambda world, index: index.set_spare(world.state.nodes["n3"], True),
    "remove_node": _remove_node,
    "add_job": lambda world, index: index.add_job(Job("j-000009", _MOVABLE, JobState.PENDING, world.now_ns)),
    "add_probe": lambda world, index: index.add_probe(
        world.state.nodes["n3"], Job("probe", JobSpec("p", ("p",), 2, kind=JobKind.PROBE), JobState.PENDING, 1)
    ),
    "set_overdue": _overdue,
    "relax": lambda world, index: index.relax(world.state.jobs["j-000005"]),
    "await_type": lambda world, index: index.await_type(
        world.state.jobs["j-000005"], "fast", world.now_ns + 50 * SECOND
    ),
    "appraise": _appraise,
    "demote": _demote,
    "take_turns": _take_turns,
    "reserve": lambda world, index: index.reserve(world.state.jobs["j-000005"], [Slot("n3", 0), Slot("n3", 1)]),
    "start": lambda world, index: index.start(world.state.jobs["j-000005"], [Slot("n3", 1)], "a-000099", 0.25),
    "share_again": lambda world, index: index.share_again(world.state.jobs["j-000001"], (), 0.5),
    "measure_memory": lambda world, index: (
        _plan_memory(world, index),
        index.measure_memory(world.state.jobs["j-000009"], 5000),
    )[0],
    "plan_memory": _plan_memory,
    "keep_alone": lambda world, index: (
        index.keep_alone(world.state.jobs["j-000001"]),
        _leave_attempt(world, index),
    )[0],
    "run": _run,
    "run_external": _run_external,
    "correct_speed": lambda world, index: index.correct_speed(world.state.jobs["j-000001"], 0.5),
    "set_power_limit": lambda world, index: index.set_power_limit(world.state.jobs["j-000001"], 300.0, 0.5),
    "set_power_floor": lambda world, index: index.set_power_floor(world.state.jobs["j-000001"], 300.0),
    "report_power": lambda world, index: (
        index.set_policy(replace(world.state.policy, power_budget_watts=700.0)),
        index.report_power("n0", (SlotPower(300.0, 700.0, 300.0, 50.0),) * 2, True),
        index.report_power("n1", (SlotPower(300.0, 700.0, 300.0, 50.0),) * 2, True),
    )[0],
    "report_steps": lambda world, index: index.report_steps(
        world.state.jobs["j-000001"], StepTimes(1.0, 0.6, 0.4, 0, SECOND, ("r0",))
    ),
    "shift_steps": lambda world, index: index.shift_steps(world.state.jobs["j-000001"], TimeShift(SECOND, 0)),
    "report_progress": lambda world, index: index.report_progress(world.state.jobs["j-000001"], 700.0),
    "stop": lambda world, index: index.stop(world.state.jobs["j-000001"], StopReason.PREEMPT, ""),
    "cancel": lambda world, index: index.cancel(world.state.jobs["j-000001"], ""),
    "move": lambda world, index: index.move(world.state.jobs["j-000001"], [Slot("n3", 1)], excluded=("n0",)),
    "request_stop": _request_stop,
    "repeat_stop": lambda world, index: (
        _request_stop(world, index),
        index.repeat_stop(world.state.jobs["j-000001"], world.now_ns + 7 * SECOND),
    )[0],
    "leave_attempt": _leave_attempt,
    "requeue": lambda world, index: index.requeue(world.state.jobs["j-000001"], "", world.now_ns + SECOND),
    "end": lambda world, index: index.end(world.state.jobs["j-000001"], JobState.FAILED, ""),
    "forget_ended": _forget,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_state_updates_the_index(name: str) -> None:
    world = world_of()
    check(world)
    CHANGES[name](world, index_of(world.state))
    check(world)


def test_every_method_that_changes_the_state_is_tested() -> None:
    own = {name for name, member in vars(SchedulingIndex).items() if inspect.isfunction(member) and name[0] != "_"}
    assert own - {"evaluate_all", "mark_evaluated"} == set(CHANGES)


def test_a_direct_assignment_is_noticed() -> None:
    world = world_of()
    world.state.jobs["j-000003"].claim = [Slot("n3", 0)]
    with pytest.raises(AssertionError, match="claims is"):
        check_index(world.state)


# --- no other code ---------------------------------------------------------------------------------------------------

PRODUCT = Path(scheduler_feedback.__file__).parent

ALLOWED = {
    "policies/queue/order/las.py": "called by the index alone",
    "policies/queue/order/fair.py": "called by the index alone",
    "journal/recovery.py": "corrects a state that a replay contradicts, and drops the index",
}
"""Modules that assign such fields outside of the index, with the reason."""

_DICTS = frozenset({"jobs", "nodes", "verdicts"})
_CHANGING = frozenset({"pop", "popitem", "clear", "update", "setdefault"})


def assigned(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each assignment to an attribute of an object other than self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if not isinstance(node.value, ast.Attribute):
                continue
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            if not (isinstance(node.func.value, ast.Attribute) and node.func.value.attr in _DICTS):
                continue
            target = node.func.value
        else:
            continue
        if not (isinstance(target.value, ast.Name) and target.value.id == "self"):
            yield target.lineno, target.attr


def places() -> Iterator[tuple[str, list[str]]]:
    """Yield each module that decides or stores state, with its assignments to fields on which the index depends."""
    fields = JOB_FIELDS | NODE_FIELDS | STATE_FIELDS
    for path in sorted(PRODUCT.rglob("*.py")):
        name = path.relative_to(PRODUCT).as_posix()
        if name.startswith(("policies/", "journal/", "controller/", "api/")) or name == "cycle.py":
            found = [
                f"{name}:{line}: {field}" for line, field in assigned(ast.parse(path.read_text())) if field in fields
            ]
            if found:
                yield name, found


def test_only_the_index_assigns_the_fields_on_which_it_depends() -> None:
    outside = {name: found for name, found in places() if not name.startswith("policies/index/")}
    assert outside.keys() == ALLOWED.keys(), sorted(
        place for name, found in outside.items() if name not in ALLOWED for place in found
    )


def test_the_rules_that_assign_such_fields_are_called_by_the_index_alone() -> None:
    for path in sorted((PRODUCT / "policies").rglob("*.py")):
        called = {
            ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        }
        ruled = called & {"las.enter", "las.demote", "las.take_turns", "fair.appraise", "appraise"}
        assert not ruled or path.name == "scheduling_index.py", (path, ruled)


@pytest.mark.parametrize(
    "line",
    [
        "job.state = JobState.PENDING",
        "job.claim, job.failure = [], ''",
        "state.jobs[name] = job",
        "del state.nodes[name]",
        "state.verdicts.pop(name)",
        "node.slowdown += 1",
        "for job.level in (1, 2): pass",
    ],
)
def test_every_form_of_an_assignment_is_found(line: str) -> None:
    assert any(field in JOB_FIELDS | NODE_FIELDS | STATE_FIELDS for _, field in assigned(ast.parse(line)))
