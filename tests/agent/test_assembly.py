"""Assembly of frames: their content while a collector's call hangs, and the cost of assembly."""

from __future__ import annotations

import time

import numpy as np
import pytest

from agent.assembly import Assembly, Own
from agent.collectors.block import Block
from agent.runner import Runner
from agent.schema.clock import ManualClock
from agent.schema.frame import Column, check_fits
from agent.schema.frame import Frame as WholeFrame
from agent.self_usage import Cost
from tests.agent.scripted_collectors import COUNTER, GAUGE, ScriptedCollector, value

SECOND = 1_000_000_000
OWN = Own(1, Cost(0, None, None, 1), 0, False)


def shown(assembly: Assembly, runners: list[Runner], now_ns: int, metric: str, **labels: str) -> float | int | None:
    tier_ns, gauges, counters, valid = assembly.frame(runners, now_ns, OWN)
    layout = assembly.layout
    frame = WholeFrame("n0", "b", "a", 1, layout.layout_id, 0, now_ns, tier_ns, gauges, counters, valid)
    check_fits(layout, frame)
    return value((layout, frame), metric, **labels)


@pytest.mark.parametrize("interval_seconds", [0.1, 1.0, 10.0])
def test_a_hanging_run_is_visible_within_two_frames(interval_seconds: float) -> None:
    clock = ManualClock()
    runner = Runner(ScriptedCollector(interval_seconds=interval_seconds), clock)
    assembly = Assembly("n0", 1.0, "boot", "1")
    runner.run_once()
    # The next run begins just after a frame was made, and hangs.
    clock.advance(interval_seconds + 0.01)
    runner.running_since_ns = began_ns = clock.monotonic_ns()
    one, two = began_ns + SECOND - 1, began_ns + 2 * SECOND + 1
    assert shown(assembly, [runner], one, "gangwatch_collector_stuck", collector="scripted") == 0
    assert shown(assembly, [runner], one, COUNTER.metric, device="sda") == 2**60 + 1, "one slow run is not stuck yet"
    assert shown(assembly, [runner], two, "gangwatch_collector_stuck", collector="scripted") == 1
    assert shown(assembly, [runner], two, "gangwatch_collector_success", collector="scripted") == 0
    assert shown(assembly, [runner], two, COUNTER.metric, device="sda") is None, (
        "absent at once, before the sample is stale"
    )
    clock.advance((two - began_ns) / SECOND)
    runner.run_once()
    assert shown(assembly, [runner], two, "gangwatch_collector_success", collector="scripted") == 1
    assert shown(assembly, [runner], two, COUNTER.metric, device="sda") == 2**60 + 2


def test_frames_do_not_share_arrays() -> None:
    clock = ManualClock()
    runner = Runner(ScriptedCollector(), clock)
    assembly = Assembly("n0", 1.0, "boot", "1")
    runner.run_once()
    first = assembly.frame([runner], 0, OWN)
    again = assembly.frame([runner], 0, OWN)
    for mine, other in zip(first, again, strict=True):
        mine[:] = 0
        assert not np.shares_memory(mine, other)
    assert again[1][-1] == 1.0


def test_process_metrics_that_the_kernel_lacks_are_absent() -> None:
    assembly = Assembly("n0", 1.0, "boot", "1")
    absent = shown(assembly, [], 0, "gangwatch_agent_memory_resident_bytes")
    assert absent != absent
    assert shown(assembly, [], 0, "gangwatch_agent_threads") == 1


def test_frame_cost_hardly_depends_on_the_number_of_columns() -> None:
    """With thirty collectors, ten times the columns take less than twice the time."""

    def cost(columns: int) -> float:
        clock = ManualClock()
        runners = []
        for number in range(30):
            block = Block([Column(GAUGE.metric, (("device", f"{number}-{column}"),)) for column in range(columns)])
            runners.append(
                Runner(ScriptedCollector(str(number), lambda collector: collector.block, block=block), clock)
            )
        assembly = Assembly("n0", 1.0, "boot", "1")
        best = float("inf")
        for _ in range(30):
            for runner in runners:
                runner.run_once()
            began = time.thread_time()
            assembly.frame(runners, 0, OWN)
            best = min(best, time.thread_time() - began)
        return best

    assert cost(200) < 2 * cost(20)
