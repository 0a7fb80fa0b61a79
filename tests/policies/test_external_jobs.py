"""External jobs: pending ones decide whether it pays to use a slow node."""

from __future__ import annotations

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_event, decode_state, encode_event, encode_state
from scheduler_feedback.core.events import (
    AttemptEnded,
    CancelRequested,
    Event,
    Hosted,
    HostWaits,
    NodeSeen,
    PolicySet,
    Tick,
)
from scheduler_feedback.core.job import HostedWait, JobKind, JobSpec, Slot
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.core.verdict import Cause, Kind, Verdict

SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND
NARROW, WIDE, LONG = HostedWait("batch", 3), HostedWait("batch", 6, 2000.0), HostedWait("batch", 6, 50_000.0)


def verdict(slowdown: float = 1.6) -> Verdict:
    return Verdict(
        "v-1", Kind.STRAGGLER, "slurm-1", 0, 0, "n0", Cause.COMPUTE, 0.99, slowdown, 0.1, 0.1 * slowdown,
        BEGAN, BEGAN + 5 * SECOND, lasts_seconds=1800.0,
    )  # fmt: skip


def run_with_demand(*events: Event) -> tuple[State, cycle.Outcome]:
    """Start a gang of six on n0 to n2, of four nodes of two slots, where n0 is slow. Then report the pending jobs."""
    state = State()
    spec = JobSpec("train", ("x",), 6, kind=JobKind.EXTERNAL, restartable=True, time_limit_seconds=2000.0)
    placement = tuple(Slot(f"n{number}", slot) for number in range(3) for slot in range(2))
    nodes = [NodeSeen(f"n{number}", 2, queues=("batch",)) for number in range(4)]
    cycle.run(state, [PolicySet(Policy()), *nodes, Hosted("slurm-1", 0, spec, placement)], BEGAN)
    return state, cycle.run(state, [*events, verdict()], BEGAN + 5 * SECOND)


@pytest.mark.parametrize(
    ("waiting", "found"),
    [
        ((), NodeState.QUARANTINE),
        ((NARROW,), NodeState.SUSPECT),
        ((HostedWait("other", 3),), NodeState.QUARANTINE),  # no queue uses the node
        ((WIDE,), NodeState.SUSPECT),  # would wait for healthy nodes as long as its time limit
        ((LONG,), NodeState.QUARANTINE),  # would lose more on a slow node
        ((LONG, NARROW), NodeState.SUSPECT),
    ],
)
def test_a_slow_node_stays_in_use_while_external_jobs_wait_for_it(
    waiting: tuple[HostedWait, ...], found: NodeState
) -> None:
    state, outcome = run_with_demand(HostWaits(waiting))
    assert [type(action) for action in outcome.actions] == [StopGang], "the gang itself moves away"
    assert state.nodes["n0"].state is found


def test_a_slow_node_follows_the_external_queue_in_and_out_of_use() -> None:
    state, _ = run_with_demand(HostWaits(()))
    node = state.nodes["n0"]
    assert node.state is NodeState.QUARANTINE
    cycle.run(state, [HostWaits((NARROW,))], BEGAN + 6 * SECOND)
    cycle.run(state, [Tick()], BEGAN + 7 * SECOND)
    assert node.state is NodeState.SUSPECT
    assert "pending jobs need its slots" in node.reason
    assert node.backoff == 1


def test_a_slow_node_stays_quarantined_if_external_jobs_start_elsewhere() -> None:
    state, _ = run_with_demand(HostWaits(()))
    cycle.run(state, [AttemptEnded("slurm-1", 0, (), all_exited_with=0)], BEGAN + 6 * SECOND)
    cycle.run(state, [CancelRequested("slurm-1"), HostWaits((HostedWait("batch", 2),))], BEGAN + 7 * SECOND)
    cycle.run(state, [Tick()], BEGAN + 8 * SECOND)
    assert state.nodes["n0"].state is NodeState.QUARANTINE
    cycle.run(state, [HostWaits((HostedWait("batch", 7),))], BEGAN + 9 * SECOND)
    cycle.run(state, [Tick()], BEGAN + 10 * SECOND)
    assert state.nodes["n0"].state is NodeState.SUSPECT


def test_free_slots_that_external_jobs_will_get_are_no_target() -> None:
    state, outcome = run_with_demand(HostWaits((HostedWait("batch", 2),)))
    assert outcome.actions == []
    assert next(iter(state.open_decisions.values())).choice == "target"
    outcome = cycle.run(state, [HostWaits(())], BEGAN + 6 * SECOND)
    assert [type(action) for action in outcome.actions] == [StopGang], "no external job is pending any more"


def test_a_move_gains_less_if_external_jobs_get_the_slow_slots() -> None:
    gains = []
    for waiting in ((), (NARROW,)):
        state, _ = run_with_demand(HostWaits(waiting))
        gains.append(state.decisions[0].predicted_gain_seconds + state.decisions[0].cost_seconds)
    assert gains[1] == pytest.approx(gains[0] * 4 / 6), "two of its six slots are slow"


def test_the_external_queue_survives_a_restart() -> None:
    event = HostWaits((NARROW, WIDE))
    assert decode_event(encode_event(event)) == event
    state, _ = run_with_demand(event)
    assert decode_state(encode_state(state)).host_waits == event.waiting
