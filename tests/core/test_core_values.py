"""Small values of the core: job states, reported node states, versions, and cycle contexts."""

from __future__ import annotations

import ast
import inspect
import itertools
from types import ModuleType

import msgspec
import pytest

from scheduler_feedback.core import actions, cluster, job, state
from scheduler_feedback.core.cluster import Limit, Node
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.events import NodeCommand, NodeCommanded, NodeSeen, Tick, as_seen
from scheduler_feedback.core.formats import KINDS, Feature, Formats, version_key
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext

SECOND = 1_000_000_000


def test_every_job_state_is_pending_or_holds_slots_or_has_ended() -> None:
    of_state = {state: (state.holds_slots, state.ended) for state in JobState}
    assert of_state == {
        JobState.PENDING: (False, False),
        JobState.STARTING: (True, False),
        JobState.RUNNING: (True, False),
        JobState.STOPPING: (True, False),
        JobState.COMPLETED: (False, True),
        JobState.FAILED: (False, True),
        JobState.CANCELLED: (False, True),
    }


def test_stop_time_includes_grace_and_checkpoint_command() -> None:
    spec = JobSpec("a", ("x",), 1, grace_seconds=30.0, checkpoint_timeout_seconds=60.0)
    assert spec.stop_seconds == 30.0
    assert msgspec.structs.replace(spec, checkpoint_command=("save",)).stop_seconds == 90.0


@pytest.mark.parametrize("present", [True, False])
def test_as_seen_returns_the_last_report_of_the_backend(present: bool) -> None:
    seen = NodeSeen(
        "n1", 8, ("gpu-0",), "machine", present, "H100", "spine", "rack", "rail", "island", 4, ("large",), ("prod",),
        (Limit("wide", 1, 2),), (("cpu", 64_000),),
    )  # fmt: skip
    reported = {name: getattr(seen, name) for name in seen.__struct_fields__ if name != "node"}
    assert as_seen(Node(seen.node, **reported)) == seen
    assert len(set(map(str, reported.values()))) == len(reported), "swapped fields would otherwise be equal"


# --- formats ---------------------------------------------------------------------------------------------------------


def test_releases_are_compared_by_their_numbers() -> None:
    rising = ["0.1.0", "0.2", "0.9.1", "0.10.0", "1.0rc1", "1.0.1"]
    assert sorted(rising, key=version_key) == rising
    assert version_key("0.2") == version_key("0.2.0") == version_key("0.2.0rc1") == (0, 2)
    assert version_key("0.10.3.dev1") == (0, 10, 3)
    assert version_key("0.2rc1.7") == (0, 2), "text after a candidate's number is not part of the version"
    with pytest.raises(ValueError, match="'next' is no release"):
        version_key("next")


def test_newest_release_is_the_highest_number() -> None:
    formats = Formats({Tick: "0.9.0", NodeSeen: "0.10.0"}, [Feature("Tick.x", "0.2.0", Tick)])
    assert formats.newest == "0.10.0"
    assert Formats({}).newest == "0.1.0"


def test_used_by_lists_only_features_in_the_values() -> None:
    drains = Feature("NodeCommanded.drain", "0.3.0", NodeCommanded, lambda event: event.drain)
    formats = Formats({**KINDS, NodeSeen: "0.2.0"}, [drains])
    plain = NodeCommanded("n1", NodeCommand.MAINTENANCE)
    assert formats.used_by([plain, Tick()]) == {}, "features of the first release are not listed"
    assert formats.used_by([plain, msgspec.structs.replace(plain, drain=True), NodeSeen("n1", 2)]) == {
        "NodeCommanded.drain": "0.3.0", "NodeSeen": "0.2.0",
    }  # fmt: skip


# --- cycle context ---------------------------------------------------------------------------------------------------


def test_decision_is_recorded_and_counted_with_its_outcome() -> None:
    context = CycleContext(State(counts={"decisions/migrate/frozen": 2}), 7 * SECOND)
    context.decide("j-1", "migrate", "moves", (("a", "b"),))
    context.decide("j-1", "migrate", "would move", outcome="frozen")
    context.record("j-2", "waits", "waits")
    reported = [(one.wall_ns, one.subject, one.kind, one.text, one.applied, one.detail) for one in context.entries]
    assert reported == [
        (7 * SECOND, "j-1", "migrate", "moves", True, (("a", "b"),)),
        (7 * SECOND, "j-1", "migrate", "would move", False, ()),
        (7 * SECOND, "j-2", "waits", "waits", True, ()),
    ]
    assert context.state.counts == {"decisions/migrate/frozen": 3, "decisions/migrate/applied": 1}


def test_action_ids_are_unique_across_cycles() -> None:
    state = State(action_count=41)
    context = CycleContext(state, 0)
    assert [context.action_id(), context.action_id(), CycleContext(state, 1).action_id()] == [
        "a-000042",
        "a-000043",
        "a-000044",
    ]


def test_after_adds_seconds_to_now() -> None:
    assert CycleContext(State(), 5 * SECOND).after(1.5) == 6_500_000_000
    assert CycleContext(State(), 5 * SECOND).after(-5) == 0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.42, "0.4 s"), (9.9, "9.9 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"), (7140, "119 min"),
        (7200, "2.0 h"), (9000, "2.5 h"),
    ],
)  # fmt: skip
def test_span_uses_a_suitable_unit(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


@pytest.mark.parametrize("module", [actions, cluster, job, state])
def test_every_field_is_documented_beside_it(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    for one in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, after in itertools.zip_longest(one.body, one.body[1:]):
            if isinstance(field, ast.AnnAssign):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert documented, f"{one.name}.{ast.unparse(field.target)}"
