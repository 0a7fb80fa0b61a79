"""Kubernetes annotations with extreme numbers or nesting, which any user can write, affect only their own object."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch
from scheduler_feedback.backends.kubernetes.attempts.pod_attempt import adopt, placement_of
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.quantities import MOST, amount, parse_quantity
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ARRAY_PARALLEL,
    ATTEMPT,
    PLACEMENT,
    RANK,
    SLOTS,
    TopologyLabels,
    attempt_of,
    lone,
    slots_written,
    wall_ns,
)
from scheduler_feedback.backends.kubernetes.published.marks import MEMORY, remembered
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.core.state import Policy
from tests.kubernetes.makers import group, node, pod, pod_body

DIGITS = "9" * 5000
"""More digits than int() accepts (sys.get_int_max_str_digits), and far fewer than an annotation may hold."""

NESTED = '{"y": ' + "[" * 100_000 + "]" * 100_000 + "}"


def annotated(**annotations: str) -> Pod:
    made = pod("p0", nodeName="n0")
    made.metadata.annotations = annotations
    return made


@pytest.mark.parametrize("text", [DIGITS, "٣", "1_0", "-1", str(1 << 31), ""])
def test_an_invalid_count_counts_as_zero(text: str) -> None:
    made = annotated(**{ATTEMPT: text, SLOTS: f"1,{text}", RANK: text})
    assert attempt_of(made) == 0
    assert slots_written(made) == (1,)
    attempt = adopt("j", 0, "default/p0", [made], None)
    assert attempt is not None and attempt.members[0].ranks == range(1)


def test_an_invalid_array_limit_is_refused_with_its_name() -> None:
    gang = lone(annotated(**{ARRAY_PARALLEL: DIGITS}))
    assert gang.spec is None
    assert gang.refused.startswith(f"annotation {ARRAY_PARALLEL}: '999") and len(gang.refused) < 200


@pytest.mark.parametrize(
    "text",
    [NESTED, '{"attempt": 2305843009213693952, "pods": {}}', '{"attempt": 1, "pods": {"p": ["n", -1, []]}}', "x"],
)
def test_a_forged_placement_is_ignored(text: str) -> None:
    assert placement_of(group("g", 1, {PLACEMENT: text}), "j") == (0, {})


def test_a_forged_fault_history_of_a_node_is_ignored() -> None:
    made = node("n0")
    made.metadata.annotations = {MEMORY: NESTED}
    assert remembered(made).state == "healthy"


def test_the_state_is_rebuilt_with_malformed_pods() -> None:
    world = InformerCache("gangwatch", TopologyLabels())
    world.node_changed("n0", None, node("n0"))
    evil = annotated(**dict.fromkeys((ATTEMPT, SLOTS, RANK, ARRAY_PARALLEL), DIGITS))
    evil.metadata.labels = {"batch.kubernetes.io/job-completion-index": "9" * 63}
    evil.metadata.name = "p" + "9" * 250
    world.pod_changed("default/p0", None, evil)
    world.group_changed("default/g", None, group("g", 1, {PLACEMENT: NESTED}))
    state, _ = rebuild(world, world.seen(), Policy(), 10**18)
    assert set(state.nodes) == {"n0"}


@pytest.mark.parametrize("text", ["1e99999999999", "1E-99999", DIGITS, "x", ""])
def test_an_absurd_quantity_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match="is not a quantity"):
        parse_quantity(text)


def test_an_amount_is_capped_as_in_the_api_server() -> None:
    assert amount("memory", "1e30") == MOST == amount("cpu", "8Ei")
    assert (amount("cpu", "500m"), amount("memory", "2Gi")) == (500, 2 << 30)


def test_a_time_beyond_the_calendar_is_ignored() -> None:
    assert wall_ns("9999-12-31T23:59:59-23:59") >= 0
    assert wall_ns("0001-01-01T00:00:00+23:59") <= 0


def test_an_unusable_object_is_skipped_alone() -> None:
    """Such an object used to end the watch. The watch then listed all objects again and failed again."""
    seen: list[str] = []

    def on_change(key: str, _: Pod | None, after: Pod | None) -> None:
        if after is not None and after.spec.overhead:
            raise BackendError("'x' is not a quantity")
        seen.append(key)

    watch: Watch[Pod] = Watch(cast(Client, None), "/api/v1/pods", Pod, on_change)

    def take(name: str, **spec: Any) -> None:
        watch._take(msgspec.json.encode({"type": "ADDED", "object": pod_body(name, **spec)}))

    take("a")
    take("b", overhead={"cpu": "x"})
    take("c")
    assert seen == ["default/a", "default/c"]
    assert watch.unusable == 1
