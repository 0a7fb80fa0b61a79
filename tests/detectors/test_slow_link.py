"""Slow links without error counters: found by the queue of the node that has one, and never where all nodes are alike.

RECORDED are windows of a real run (``benchmarks.reality``, FSDP2 on two nodes): the link of the second one was divided
by four from row 19 to row 43. Its peer's queue is empty then, although data to it is unacknowledged as long.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURES, Counters, Float32Array, JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Cause, Cleared, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext, PartFault, Proposal, Published
from scheduler_feedback.detectors.health.job_speed import Speed
from scheduler_feedback.detectors.links.path_history import BUSY, BYTES, QUEUE, USUAL_WINDOWS, Paths
from scheduler_feedback.detectors.links.slow_link import LinkDetector, slow_links
from tests.detectors.gang_windows import shape_of

# Megabytes sent, busy time and share of time with a queue, of both nodes in each second.
RECORDED = (
    ((3.221, 3.17), (0.228, 0.264), (0.0, 0.0)),
    ((23.677, 10.609), (1.069, 0.544), (0.36, 0.099)),
    ((14.833, 15.599), (0.676, 0.831), (0.102, 0.0)),
    ((14.047, 14.454), (0.652, 0.736), (0.201, 0.193)),
    ((16.942, 16.888), (0.776, 0.74), (0.3, 0.311)),
    ((14.377, 14.372), (0.828, 0.696), (0.099, 0.202)),
    ((16.747, 16.947), (0.82, 0.74), (0.4, 0.213)),
    ((14.887, 14.243), (0.791, 0.648), (0.1, 0.4)),
    ((27.599, 15.099), (1.303, 0.748), (0.27, 0.0)),
    ((14.373, 14.374), (0.804, 0.784), (0.212, 0.1)),
    ((15.431, 14.242), (0.912, 0.668), (0.2, 0.1)),
    ((29.493, 17.21), (1.389, 0.872), (0.272, 0.099)),
    ((15.033, 14.424), (0.744, 0.812), (0.2, 0.0)),
    ((15.825, 16.374), (0.772, 0.678), (0.095, 0.102)),
    ((15.429, 15.509), (0.772, 0.811), (0.1, 0.1)),
    ((15.298, 15.705), (0.792, 0.777), (0.301, 0.2)),
    ((16.748, 15.956), (0.74, 0.744), (0.202, 0.2)),
    ((15.561, 15.825), (0.864, 0.656), (0.197, 0.201)),
    ((13.584, 13.44), (0.724, 0.751), (0.2, 0.2)),
    ((8.704, 8.711), (1.148, 1.425), (0.0, 0.399)),
    ((14.506, 7.055), (2.138, 1.332), (0.0, 0.298)),
    ((9.363, 9.495), (1.236, 1.464), (0.0, 0.394)),
    ((7.912, 7.531), (1.128, 1.356), (0.0, 0.502)),
    ((8.044, 8.689), (1.172, 1.364), (0.0, 0.4)),
    ((8.805, 8.703), (1.284, 1.408), (0.0, 0.497)),
    ((8.205, 8.439), (1.18, 1.4), (0.0, 0.307)),
    ((8.309, 7.782), (1.18, 1.432), (0.0, 0.299)),
    ((8.966, 9.23), (1.304, 1.472), (0.0, 0.314)),
    ((8.243, 8.046), (1.196, 1.424), (0.0, 0.3)),
    ((8.11, 8.37), (1.196, 1.391), (0.0, 0.501)),
    ((9.429, 9.169), (1.232, 1.501), (0.0, 0.3)),
    ((15.764, 8.702), (2.171, 1.422), (0.0, 0.296)),
    ((8.704, 8.769), (1.26, 1.38), (0.0, 0.2)),
    ((8.836, 8.575), (1.22, 1.408), (0.0, 0.302)),
    ((8.242, 15.106), (1.112, 2.596), (0.1, 0.628)),
    ((8.704, 8.466), (1.284, 1.47), (0.0, 0.201)),
    ((8.31, 8.601), (1.208, 1.43), (0.0, 0.597)),
    ((9.033, 15.463), (1.236, 2.497), (0.0, 0.719)),
    ((7.516, 7.775), (1.092, 1.315), (0.0, 0.303)),
    ((11.475, 11.217), (1.056, 1.069), (0.1, 0.297)),
    ((29.49, 16.837), (1.28, 0.738), (0.091, 0.0)),
    ((14.897, 16.918), (0.764, 0.69), (0.201, 0.099)),
    ((16.358, 17.012), (0.712, 0.616), (0.098, 0.3)),
    ((15.431, 14.639), (0.848, 0.744), (0.0, 0.2)),
    ((15.839, 28.773), (0.77, 1.342), (0.301, 0.357)),
    ((25.895, 14.862), (1.385, 0.674), (0.09, 0.0)),
)
FIRST, LAST = 19, 43
SECOND = 1_000_000_000


def recorded() -> FloatArray:
    """Return the recorded windows: [windows, 3, nodes]."""
    found = np.array(RECORDED)
    found[:, 0] *= 1e6
    return found


def calm(nodes: int = 4, windows: int = 40, queue: float = 0.1, seed: int = 1) -> FloatArray:
    """Return windows of a job that sends 15 MB/s from each node: [windows, 3, nodes]."""
    random = np.random.default_rng(seed)
    found = np.empty((windows, 3, nodes))
    found[:, 0] = 15e6 * random.normal(1.0, 0.05, (windows, nodes))
    found[:, 1] = found[:, 0] * 50e-9
    found[:, 2] = random.binomial(10, queue, (windows, nodes)) / 10
    return found


def slow(nodes: int, *sick: int, queue: float = 0.4, first: int = 20) -> FloatArray:
    """Return windows in which the links of `sick` are slow from a window on, and all nodes send half as much."""
    found = calm(nodes)
    random = np.random.default_rng(2)
    found[first:, 0] /= 2
    found[first:, 2] = 0.0
    for node in sick:
        found[first:, 1, node] *= 1.6
        found[first:, 2, node] = random.binomial(10, queue, len(found) - first) / 10
    return found


def features(window: FloatArray, ranks_a_node: int = 1) -> Float32Array:
    values = np.full((len(FEATURES), window.shape[1] * ranks_a_node), np.nan, np.float32)
    for row, name in enumerate((BYTES, BUSY, QUEUE)):
        share = 1 if name == QUEUE else ranks_a_node
        values[name] = np.repeat(window[row], ranks_a_node) / share
    return values


def paths_of(windows: FloatArray, ranks_a_node: int = 1) -> Paths:
    nodes = [f"n{rank // ranks_a_node}" for rank in range(windows.shape[2] * ranks_a_node)]
    paths = Paths(shape_of(len(nodes), nodes))
    for number, window in enumerate(windows):
        paths.take(features(window, ranks_a_node), number * SECOND)
    return paths


def accused(windows: FloatArray, ranks_a_node: int = 1) -> set[int]:
    return {one.node for one in slow_links(paths_of(windows, ranks_a_node))}


def test_the_slow_link_of_a_real_run_is_found() -> None:
    assert accused(recorded()[: FIRST + 10], 2) == {1}
    assert accused(recorded()[:LAST], 2) == {1}


def test_nothing_is_found_before_it() -> None:
    assert not any(accused(recorded()[:count], 2) for count in range(FIRST + 1))


@pytest.mark.parametrize(("nodes", "sick"), [(2, (0,)), (3, (2,)), (4, (1,)), (4, (1, 3)), (4, (0, 1)), (16, (9,))])
def test_the_nodes_with_a_queue_are_accused(nodes: int, sick: tuple[int, ...]) -> None:
    assert accused(slow(nodes, *sick)) == set(sick)


def test_a_job_that_fills_the_links_of_all_nodes_is_not_accused() -> None:
    windows = calm(4)
    windows[20:, 1] *= 2.0
    windows[20:, 2] = np.random.default_rng(3).binomial(10, 0.8, (20, 4)) / 10
    assert not accused(windows)


def test_a_node_that_always_has_a_queue_is_not_accused() -> None:
    windows = calm(4)
    windows[:, 2, 1] = np.random.default_rng(3).binomial(10, 0.6, 40) / 10
    windows[20:, 1] *= 2.0
    assert not accused(windows)


def test_a_node_that_sends_more_of_the_jobs_traffic_is_not_accused() -> None:
    windows = slow(4, 1)
    windows[20:, :2, 1] *= 3.0
    assert not accused(windows)


def test_a_queue_without_slow_connections_is_not_accused() -> None:
    windows = slow(4, 1)
    windows[20:, 1] = windows[20:, 0] * 50e-9
    assert not accused(windows)


def test_slow_connections_without_a_queue_of_their_own_are_not_accused() -> None:
    windows = slow(4)
    windows[20:, 1] *= 2.0
    assert not accused(windows)


def test_most_of_the_nodes_are_not_accused() -> None:
    assert not accused(slow(4, 0, 1, 2))


def test_windows_without_values_of_all_nodes_or_with_little_traffic_do_not_count() -> None:
    windows = calm(4, USUAL_WINDOWS + 1)
    windows[3, 1, 2] = np.nan
    windows[5, 0] = 100.0
    paths = paths_of(windows)
    assert (paths.seen, paths.usual_busy) == (USUAL_WINDOWS - 1, None)


# --- the detector ----------------------------------------------------------------------------------------------------


def results_of(
    detector: LinkDetector, windows: FloatArray, slower: float, published: Published | None = None
) -> list[Proposal]:
    """Return the results for these windows of a job whose steps take `slower` times their best time."""
    shape = replace(shape_of(4, ["n0", "n0", "n1", "n1"]), job="j-1")
    values = np.stack([features(window, 2) for window in windows], axis=1)
    at_ns = (np.arange(len(windows)) + 1) * SECOND
    telemetry = Telemetry(now_ns=int(at_ns[-1]), jobs=(JobTelemetry(shape),), counters=Counters(at_ns, 1.0, values))
    speed = Speed(best=0.2, step=70)
    speed.newest.extend([0.2 * slower] * 8)
    context = SimpleNamespace(
        telemetry=telemetry, speeds=SimpleNamespace(of={"j-1": speed}), published=published or Published()
    )
    return detector.tick(cast(DetectionContext, context))


def test_a_verdict_names_the_ranks_of_the_node_and_its_evidence() -> None:
    verdict, part = results_of(LinkDetector(), recorded()[:LAST], 1.8)
    assert isinstance(verdict, Verdict) and isinstance(part, PartFault)
    assert (verdict.kind, verdict.cause, verdict.node, verdict.rank, verdict.ranks) == (
        Kind.STRAGGLER, Cause.LINK, "n1", 2, (2, 3),
    )  # fmt: skip
    assert verdict.confidence >= 0.9 and verdict.slowdown == pytest.approx(1.8)
    assert (part.node, part.cause) == ("n1", Cause.LINK)
    assert {one.measure for one in verdict.evidence} == {"transmit_queue_share", "busy_time_a_byte", "step_seconds"}


def test_a_job_that_is_not_slower_gets_no_verdict() -> None:
    assert not results_of(LinkDetector(), recorded()[:LAST], 1.05)


def test_a_verdict_is_reported_once_and_cleared_when_the_job_is_fast_again() -> None:
    detector = LinkDetector()
    assert len(results_of(detector, recorded()[:LAST], 1.8)) == 2
    assert not results_of(detector, recorded()[LAST - 1 : LAST], 1.8)
    (over,) = results_of(detector, recorded()[-1:], 1.02)
    assert isinstance(over, Cleared)


def test_a_refused_verdict_may_be_proposed_again() -> None:
    detector = LinkDetector()
    (verdict, _) = results_of(detector, recorded()[:LAST], 1.8)
    assert isinstance(verdict, Verdict)
    again = results_of(detector, recorded()[LAST - 1 : LAST], 1.8, Published(refused=frozenset({verdict.verdict_id})))
    assert len(again) == 2


def test_a_restart_learns_the_network_again() -> None:
    detector = LinkDetector()
    detector.restore(LinkDetector().snapshot())
    with pytest.raises(ValueError, match="link snapshot of 3 bytes"):
        detector.restore(b"abc")
    assert not results_of(detector, recorded()[:9], 1.8)
