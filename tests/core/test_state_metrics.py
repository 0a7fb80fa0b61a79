"""Metrics of the scheduler's state: each value counted by hand, on a cluster with many problems."""

from __future__ import annotations

import math

import pytest

from agent.schema.catalog import BY_NAME
from agent.schema.sample import Sample, expanded
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state import Decision, Policy, Queue, State
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.core.verdict import Cause, Kind, Verdict

SECOND = 1_000_000_000
NOW_NS = 1000 * SECOND


def job(name: str, state: JobState, slots: list[Slot], queue: str = "default", attempt: int = 1) -> Job:
    spec = JobSpec(name, ("x",), max(len(slots), 1), queue=queue)
    ranks = [RankRecord(rank, slot) for rank, slot in enumerate(slots)]
    return Job(name, spec, state, 0, attempt=attempt, ranks=ranks)


def verdict(name: str, gang: str, slowdown: float) -> Verdict:
    return Verdict(name, Kind.STRAGGLER, gang, 1, 0, "a", Cause.GPU, 0.97, slowdown, 1.0, slowdown, 0, 1)


def cluster_with_problems() -> State:
    """Return a cluster of six nodes.

    A healthy node with one free slot; a quarantined node that still runs a job; an absent node; a suspect node whose
    only slot is held by one job and reserved for another; a node with a reservation; and an idle node.
    """
    nodes = [
        Node("a", 4, rack="r1", spine="s1", rail="l1"),
        Node("b", 4, state=NodeState.QUARANTINE),
        Node("c", 4, present=False),
        Node("d", 1, state=NodeState.SUSPECT),
        Node("e", 2),
        Node("f", 3),
    ]
    waits = job("waits", JobState.PENDING, [Slot("e", 0)], attempt=1)  # the node of its last attempt
    waits.claim, waits.expected_start_ns = [Slot("d", 0), Slot("e", 1)], NOW_NS + 90 * SECOND
    late = job("late", JobState.PENDING, [], attempt=0)
    late.expected_start_ns = NOW_NS - 5 * SECOND
    seen = job("seen", JobState.RUNNING, [Slot("a", 3)], attempt=2)
    seen.ranks, seen.first_step_ns = [], 1
    jobs = [
        job("run", JobState.RUNNING, [Slot("a", 0), Slot("a", 1), Slot("a", 2)], "prod"),
        job("again", JobState.RUNNING, [Slot("b", 0), Slot("b", 1)], "other", attempt=2),
        job("stop", JobState.STOPPING, [Slot("d", 0)], "prod"),
        job("done", JobState.COMPLETED, [Slot("e", 0)]),
        waits,
        late,
        seen,
    ]
    verdicts = [
        verdict("v1", "run", 2.0),
        verdict("v2", "run", 4.0),
        verdict("v3", "waits", 3.0),
        verdict("v4", "again", math.inf),
        verdict("v5", "stop", 3.0),
    ]
    return State(
        policy=Policy(queues=(Queue("prod", quota=4), Queue("spare"))),
        now_ns=NOW_NS,
        jobs={one.job_id: one for one in jobs},
        nodes={one.name: one for one in nodes},
        verdicts={one.verdict_id: one for one in verdicts},
        decisions=[
            Decision("d1", "run", "v1", 0, True, 10.0, 2.0, 1.0, 3.0),
            Decision("d2", "run", "v1", 0, False, 5.0, 2.0, 1.0, None),
            Decision("d3", "run", "v1", 0, False, 2.0, 2.0, 1.0, 7.0),
        ],
        counts={"verdicts/straggler/gpu": 2, "abstentions/hang": 1, "decisions/migrate/applied": 4},
        queue_use={"prod": 12.5},
        reserved_for="waits",
        reserved_slots=[Slot("d", 0), Slot("e", 0)],
    )


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return list(expanded(measure(cluster_with_problems())))


def by_label(samples: list[Sample], metric: str, label: str) -> dict[str, float]:
    found = [(dict(labels)[label], value) for name, labels, value in samples if name == metric]
    assert len(dict(found)) == len(found), "no duplicate series"
    return dict(found)


def alone(samples: list[Sample], metric: str) -> float:
    [value] = [value for name, labels, value in samples if name == metric and not labels]
    return value


def test_names_and_labels_are_in_the_catalogue_and_no_series_is_a_duplicate(samples: list[Sample]) -> None:
    for name, labels, _ in samples:
        # Every metric may also have the label 'node'.
        used, known = [key for key, _ in labels], BY_NAME[name].labels
        assert [key for key in used if key != "node"] == [key for key in known if key != "node"], name
    assert len({(name, labels) for name, labels, _ in samples}) == len(samples)


def test_slots_are_used_free_or_out_of_use(samples: list[Sample]) -> None:
    assert by_label(samples, "gangwatch_slots", "use") == {"used": 7.0, "free": 5.0, "unavailable": 6.0}
    assert alone(samples, "gangwatch_slots_fragmented") == 2.0, (
        "the free slots of a and e: b is out of use, c is absent, f is empty"
    )
    assert by_label(samples, "gangwatch_nodes", "state") == {
        "healthy": 3.0, "suspect": 1.0, "quarantine": 1.0, "probation": 0.0, "maintenance": 0.0, "absent": 1.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_node_state", "node") == dict.fromkeys("abcdef", 1.0)
    [place] = [
        dict(labels) for name, labels, _ in samples if name == "gangwatch_node_place_info" and ("node", "a") in labels
    ]
    assert place == {"node": "a", "gpu_type": "", "island": "", "rack": "r1", "rail": "l1", "spine": "s1"}


def test_lost_slots_are_counted_once_by_their_worst_reason(samples: list[Sample]) -> None:
    assert by_label(samples, "gangwatch_verdict_lost_slots", "verdict") == {
        "v1": 1.5, "v2": 2.25, "v3": 0.0, "v4": 2.0, "v5": 0.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_lost_slots", "reason") == {
        "accused": 4.25,  # run loses by the worse of its two verdicts, and again loses all
        "idle": 5.0,
        "restart": 3.0,  # again, which has made no step yet, and stop
        "unavailable": 6.0,
    }


def test_gangs_are_exported_until_they_end(samples: list[Sample]) -> None:
    assert by_label(samples, "gangwatch_gangs", "state") == {
        "pending": 2.0, "starting": 0.0, "running": 3.0, "stopping": 1.0, "completed": 1.0, "failed": 0.0,
        "cancelled": 0.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_gang_attempts_total", "gang") == {
        "run": 1.0, "again": 2.0, "stop": 1.0, "waits": 1.0, "late": 0.0, "seen": 2.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_gang_wait_seconds_ahead", "gang") == {"waits": 90.0, "late": 0.0}


def test_queues_count_running_jobs_and_wait_times_of_pending_ones(samples: list[Sample]) -> None:
    assert by_label(samples, "gangwatch_queue_slots", "queue") == {
        "default": 0.0, "other": 2.0, "prod": 4.0, "spare": 0.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_queue_gangs_waiting", "queue") == {
        "default": 2.0, "other": 0.0, "prod": 0.0, "spare": 0.0,
    }  # fmt: skip
    assert by_label(samples, "gangwatch_queue_quota_slots", "queue") == {"prod": 4.0}
    assert by_label(samples, "gangwatch_queue_used_slot_seconds", "queue") == {"prod": 12.5, "spare": 0.0}
    assert by_label(samples, "gangwatch_reserved_slots", "gang") == {"waits": 2.0}


def test_moves_made_and_moves_in_shadow_mode_are_scored_separately(samples: list[Sample]) -> None:
    gain = by_label(samples, "gangwatch_migration_expected_gain_seconds", "outcome")
    assert gain == {"applied": 10.0, "observed": 7.0}
    assert by_label(samples, "gangwatch_migration_outcome_seconds", "outcome") == {"applied": 3.0, "observed": 7.0}
    assert by_label(samples, "gangwatch_verdicts_total", "cause") == {"gpu": 2.0}
    assert by_label(samples, "gangwatch_abstentions_total", "detector") == {"hang": 1.0}
    assert by_label(samples, "gangwatch_decisions_total", "kind") == {"migrate": 4.0}


def test_frozen_is_exported() -> None:
    for frozen in (False, True):
        state = cluster_with_problems()
        state.frozen = frozen
        assert alone(list(expanded(measure(state))), "gangwatch_frozen") == float(frozen)
