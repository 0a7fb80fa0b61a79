"""Correlation of a victim's loss with a neighbour's load, shared resources, and the victim's own steps."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.detectors.interference.interference import _sure
from scheduler_feedback.detectors.interference.rivals import RIVAL_CORRELATION, Series, equal_rivals
from scheduler_feedback.detectors.interference.shared_resources import Sharing, ranks_of
from scheduler_feedback.detectors.interference.unreported_victim import Unreported
from scheduler_feedback.detectors.interference.victim_steps import LEAST_MARKS, Marks, Steps
from scheduler_feedback.detectors.stats.correlation import (
    CHANCE,
    KEPT_WINDOWS,
    LEAST_STATE,
    LEAST_WINDOWS,
    SLOW_SAMPLING_SECONDS,
    Means,
    correlate,
    grown,
    least,
    pad,
    pauses,
)
from scheduler_feedback.detectors.stats.group_intersection import intersected

ENOUGH = (LEAST_WINDOWS, LEAST_STATE)


def bursts(seed: int, windows: int = 400) -> FloatArray:
    """Return 1 for each window in which a neighbour is busy, else 0. Busy times have random lengths."""
    random = np.random.default_rng(seed)
    found: list[float] = []
    while len(found) < windows:
        found += [0.0] * int(random.integers(6, 30)) + [1.0] * int(random.integers(6, 30))
    return np.array(found[:windows])


def noise(seed: int, windows: int = 400, size: float = 0.02) -> FloatArray:
    return np.random.default_rng(1000 + seed).normal(0.0, size, windows)


# --- several neighbours ----------------------------------------------------------------------------------------------


def rival_of(busy: FloatArray, seed: int, same: float) -> FloatArray:
    """Return the load of a neighbour that is busy at the same times in this share of the bursts."""
    random = np.random.default_rng(seed)
    found, other = busy.copy(), bursts(3000 + seed, len(busy))
    for part in np.split(np.arange(len(busy)), np.flatnonzero(np.diff(busy)) + 1):
        if random.random() > same:
            found[part] = other[part]
    return found


def named(seed: int, same: float, windows: int) -> str:
    """Return which neighbour is named when the newest of so many windows arrives: "culprit", "rival" or ""."""
    random = np.random.default_rng(50 + seed)
    busy = bursts(seed, windows)
    loads = {"culprit": busy, "rival": rival_of(busy, seed, same), "other": bursts(9000 + seed, windows)}
    lost = 0.1 * busy + random.normal(0.0, 0.06, windows)
    found = {}
    for name, load in loads.items():
        sent = 1e9 * (1 + 8 * load) * np.exp(random.normal(0.0, 0.1, windows))
        found[name] = (correlate(lost, sent, *ENOUGH), Series(name, lost, sent))
    sure = [name for name, (result, _) in found.items() if _sure(result) is not None]
    if not sure:
        return ""
    best = max(sure, key=lambda name: found[name][0][0])  # type: ignore[index]
    tried = [series for result, series in found.values() if result is not None and result[0] >= RIVAL_CORRELATION]
    return "" if equal_rivals(found[best][1], tried) else best


@pytest.mark.parametrize(("same", "least"), [(0.0, 0.9), (0.6, 0.7), (0.9, 0.1), (1.0, 0.0)])
def test_the_right_neighbour_is_named_or_none(same: float, least: float) -> None:
    """The more bursts of a rival coincide with the culprit's, the more often none is named. The rival never is."""
    results = [named(seed, same, 400) for seed in range(100)]
    assert results.count("rival") + results.count("other") <= 1
    assert results.count("culprit") >= least * len(results)


def test_neighbours_with_the_same_load_are_not_distinguished() -> None:
    busy = bursts(3)
    lost = 0.3 * busy + noise(3)
    one, same = Series("a", lost, busy), Series("b", lost, busy)
    assert equal_rivals(one, [one, same]) == ("b",)
    assert equal_rivals(one, [one, Series("c", lost, bursts(77))]) == ()
    assert equal_rivals(one, [one]) == ()


# --- two series ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_during_a_neighbours_load_correlates(seed: int) -> None:
    busy = bursts(seed)
    found = correlate(0.3 * busy + noise(seed), 1e9 * (1 + 8 * busy), *ENOUGH)
    assert found is not None
    correlation, chance, cost = found
    assert correlation > 0.9
    assert chance < CHANCE
    assert cost == pytest.approx(0.3, abs=0.02)
    assert _sure(found) == found


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_during_a_neighbours_load_is_no_loss(seed: int) -> None:
    busy = bursts(seed)
    found = correlate(0.3 * (1 - busy) + noise(seed), busy, *ENOUGH)
    assert found is not None and found[2] == pytest.approx(-0.3, abs=0.02)
    assert _sure(found) is None


def test_unrelated_series_correlate_no_more_often_than_chance() -> None:
    tried = [correlate(0.3 * bursts(seed) + noise(seed), bursts(500 + seed), *ENOUGH) for seed in range(200)]
    assert all(found is not None for found in tried)
    assert sum(_sure(found) is not None for found in tried) <= 8
    high = [found for found in tried if found is not None and found[1] < 0.1]
    assert len(high) <= 40, "a chance of a tenth occurs in about a tenth of the cases"


@pytest.mark.parametrize(("late", "goes"), [(-3, False), (-1, True), (0, True), (2, True), (5, False)])
def test_a_victim_may_lag_by_two_windows_and_lead_by_one(late: int, goes: bool) -> None:
    """A loss is recorded at the end of its steps, so it cannot come long before the neighbour is busy."""
    steep = np.random.default_rng(4).integers(0, 2, 400).astype(float)
    found = correlate(0.3 * np.roll(steep, late) + noise(1), steep, *ENOUGH)
    assert found is not None and (found[0] > 0.9) is goes


def test_correlation_chance_and_cost_must_all_suffice() -> None:
    assert _sure((0.9, 0.001, 0.3)) == (0.9, 0.001, 0.3)
    for found in ((0.3, 0.001, 0.3), (0.9, CHANCE, 0.3), (0.9, 0.001, 0.04), None):
        assert _sure(found) is None


def test_too_few_windows_give_no_correlation() -> None:
    busy = bursts(1)
    assert correlate(busy[: LEAST_WINDOWS - 1], busy[: LEAST_WINDOWS - 1], *ENOUGH) is None
    assert correlate(np.full(400, np.nan), busy, *ENOUGH) is None
    assert correlate(busy, np.ones(400), *ENOUGH) is None, "it never changes"
    assert correlate(np.ones(400), busy, *ENOUGH) is None
    once = np.zeros(400)
    once[100 : 100 + LEAST_STATE - 1] = 1.0
    assert correlate(busy, once, *ENOUGH) is None, "busy for too short a time"


def test_gaps_are_interpolated_and_one_stall_does_not_determine_the_correlation() -> None:
    busy = bursts(2)
    victim = 0.3 * busy + noise(2)
    victim[50:60] = np.nan
    holes = correlate(victim, busy, *ENOUGH)
    assert holes is not None and holes[0] > 0.85
    stall = noise(3)
    stall[int(np.flatnonzero(busy)[5])] = 500.0
    found = correlate(stall, busy, *ENOUGH)
    assert found is not None and found[0] < 0.35


def test_the_newest_part_of_the_longer_series_is_used() -> None:
    busy = bursts(5)
    found = correlate(0.3 * busy[100:], np.concatenate([np.ones(300), busy]), *ENOUGH)
    assert found is not None and found[0] > 0.9


@pytest.mark.parametrize(("sent", "quiet", "longest"), [
    ([1, 0, 0, 1, 0, 0, 0, 1, 0, 0], 2, 3), ([0, 0, 1, 1], 0, 0), ([0, 1, 0, np.nan, 0], 2, 0), ([5, 5, 5], 0, 0),
    ([], 0, 0), ([np.nan], 0, 0),
])  # fmt: skip
def test_the_current_and_the_longest_pause_are_counted(sent: list[float], quiet: int, longest: int) -> None:
    assert pauses(np.array(sent, float)) == (quiet, longest)


def test_growth_is_measured_over_calm_windows() -> None:
    values = np.r_[[-9.0], np.full(19, 1.0), [np.nan], [3.0, 3.0, 4.0]]
    assert grown(values, 18, 3) == 2.0, "the third highest, over a fifth of all"
    assert grown(values[:10], 18, 3) == 0.0, "there are too few windows"


def test_a_ring_that_began_late_is_padded_at_its_front() -> None:
    ring = deque([1.0, 2.0], maxlen=5)
    pad(ring, 4, 0.0)
    assert list(ring) == [0.0, 0.0, 1.0, 2.0]
    pad(ring, 3, 9.0)
    assert list(ring) == [0.0, 0.0, 1.0, 2.0]
    pad(ring, 99, 9.0)
    assert list(ring) == [9.0, 0.0, 0.0, 1.0, 2.0], "at most its maximum length, and no value is dropped"


def test_fewer_long_windows_suffice() -> None:
    assert least(1.0) == least(SLOW_SAMPLING_SECONDS - 0.1) == (LEAST_WINDOWS, LEAST_STATE)
    fewer = least(SLOW_SAMPLING_SECONDS)
    assert fewer[0] < LEAST_WINDOWS and fewer[1] < LEAST_STATE


def test_the_mean_of_a_window_covers_its_values() -> None:
    means = Means()
    means.window(3)
    means.add(1, 2, 2.0)
    means.add(1, 2, 4.0)
    means.window(4)
    means.add(3, 4, 1.0)
    means.add(2, 2, 7.0)
    assert means.values()[[1, 3]].tolist() == [3.0, 1.0]
    assert np.isnan(means.values()[[0, 2]]).all() and len(means.values()) == 4
    for _ in range(2 * KEPT_WINDOWS):
        means.window(5)
    assert len(means.values()) == KEPT_WINDOWS and np.isnan(means.values()).all()


@pytest.mark.parametrize("seed", range(4))
def test_means_equal_those_of_lists(seed: int) -> None:
    chosen = random.Random(seed)
    means, lists = Means(), list[list[float]]()
    for number in range(2 * KEPT_WINDOWS):
        means.window(number + 1)
        lists.append([])
        first = chosen.randrange(min(len(lists), KEPT_WINDOWS))
        until = chosen.randrange(first, min(len(lists), KEPT_WINDOWS) + 1)
        means.add(first, until, float(number))
        for one in lists[-KEPT_WINDOWS:][first:until]:
            one.append(float(number))
        if number % 90 == 89:
            expected = [np.mean(one) if one else np.nan for one in lists[-KEPT_WINDOWS:]]
            np.testing.assert_allclose(means.values(), expected)


# --- shared resources ------------------------------------------------------------------------------------------------


def shape_of(name: str, **sharing: tuple[str, ...]) -> Shape:
    count = len(next(iter(sharing.values())))
    return Shape(name, 1, np.arange(count), tuple(f"{name}-{r}" for r in range(count)), sharing=sharing)


def reported(*shapes: Shape) -> Telemetry:
    ranks = sum(map(len, shapes))
    counters = Counters(np.array([1]), 1.0, np.zeros((len(FEATURES), 1, ranks), np.float32))
    return Telemetry(1, tuple(map(JobTelemetry, shapes)), counters)


def test_only_resources_of_two_jobs_are_shared() -> None:
    jobs = (
        shape_of("a", host=("h0", "h1", ""), uplink=("u", "u", "v")), shape_of("b", host=("h1", ""), uplink=("w", "v")),
        shape_of("c", host=("h9",)),
    )  # fmt: skip
    sharing = Sharing()
    found = sharing.of(reported(*jobs))
    plain = {key: {name: ranks.tolist() for name, ranks in members.items()} for key, members in found.items()}
    assert plain == {("host", "h1"): {"a": [1], "b": [0]}, ("uplink", "v"): {"a": [2], "b": [1]}}
    assert sharing.senders == {"a", "b"}
    assert ranks_of(jobs[0], "uplink", "u").tolist() == [0, 1]
    assert sharing.of(reported(*jobs)) is found, "the result is kept while the jobs are the same"
    another = shape_of("b", host=("h0", ""), uplink=("w", "x"))
    assert set(sharing.of(reported(jobs[0], another, jobs[2]))) == {("host", "h0")}, (
        "another job is a change, even if their number is the same"
    )
    assert sharing.of(reported(jobs[0])) == {}


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from(["", "x", "y", "z"]), min_size=1,
                                max_size=3), max_size=4), max_size=6), st.data())  # fmt: skip
def test_shared_resources_after_any_changes_are_those_of_a_new_reader(
    sequence: list[dict[str, list[str]]], data: st.DataObject
) -> None:
    """Only jobs whose shape has changed are counted again."""
    sharing = Sharing()
    kept: dict[str, Shape] = {}
    for jobs in sequence:
        kept = {
            name: kept[name] if name in kept and data.draw(st.booleans()) else shape_of(name, host=tuple(hosts))
            for name, hosts in jobs.items()
        }
        now = reported(*kept.values())
        found, expected = sharing.of(now), Sharing().of(now)
        assert [(key, {name: ranks.tolist() for name, ranks in members.items()}) for key, members in found.items()] == [
            (key, {name: ranks.tolist() for name, ranks in members.items()}) for key, members in expected.items()
        ]


def test_load_on_a_resource_is_extrapolated_from_known_ranks() -> None:
    jobs = (shape_of("first", host=("x",)), shape_of("a", uplink=("u", "u", "v")),
            shape_of("b", uplink=("u", "z"), host=("h", "h")), shape_of("c", host=("h",)))  # fmt: skip
    sharing = Sharing()
    found = sharing.of(reported(*jobs))
    values = np.full((len(FEATURES), 7), 100.0, np.float32)
    values[FEATURE["nic_transmit_bytes"]] = [9, 1, np.nan, 7, 4, 5, 6]
    values[FEATURE["processor"]] = [9, 9, 9, 9, 0.5, 0.25, np.nan]
    values[FEATURE["tcp_bytes"]] = np.nan
    assert [(key, list(members)) for key, members in found.items()] == [
        (("uplink", "u"), ["a", "b"]), (("host", "h"), ["b", "c"]),
    ]  # fmt: skip
    sums = sharing.sums(values)
    assert sums[:3].tolist() == [2.0, 4.0, 0.75], "the unknown rank counts like the known one"
    assert np.isnan(sums[3])
    assert not len(Sharing().sums(values))


def test_a_slow_node_does_not_explain_its_ranks_as_a_group() -> None:
    """Ranks of a slow node are all equally slow. A node is not a group in which one rank makes the other ranks wait."""
    index = np.arange(16)
    shape = Shape("j", 1, index, tuple(f"n{r // 4}" for r in index.tolist()), data=index % 4, stage=index * 0,
                  tensor=index // 4)  # fmt: skip
    slow = (index // 4 == 1) | (index % 4 == 2)
    assert intersected(slow, shape, [4, 5, 6, 7]) == [6]
    of_pipelines = Shape("j", 1, index, shape.nodes, data=index % 4)
    assert intersected(slow, of_pipelines, [5, 6]) == [5, 6], (
        "ranks 5 and 6 share a slow node, but 6 does not explain 5"
    )
    alone = Shape("j", 1, index, shape.nodes)
    assert intersected(slow, alone, [2, 4, 5, 6, 7]) == [2, 4, 5, 6, 7]


# --- the victim's own steps ------------------------------------------------------------------------------------------

NS = 1_000_000_000


def test_a_neighbours_load_is_averaged_over_each_step() -> None:
    steps = Steps()
    for begin, end in ((-1, 2), (0, 2), (3, 5), (5, 7), (9, 12)):
        steps.add(begin * NS, end * NS, {"": 0.1})
    ends = np.arange(1, 11) * NS
    sent = [float(n) for n in range(1, 11)]  # n in the window from n - 1 to n
    found = steps.during(sent, ends, NS)
    assert np.isnan(found[0]), "it began before the retained history"
    assert found[1:4].tolist() == pytest.approx([1.5, 4.5, 6.5])
    assert np.isnan(found[4]), "two thirds of it are unknown"
    steps.add(7 * NS, 11 * NS, {"": 0.1})
    assert steps.during(sent, ends, NS)[5] == pytest.approx(9.0), "the known part represents the whole step"
    begun = [np.nan, np.nan, *sent[2:]]
    later = steps.during(begun, ends, NS)
    assert np.isnan(later[:2]).all() and later[2] == pytest.approx(4.5)
    assert np.isnan(steps.during([np.nan] * 10, ends, NS)).all()
    assert steps.usual_ns() == 2.5 * NS


def test_losses_are_aligned_with_their_steps() -> None:
    steps = Steps()
    steps.add(0, 1, {"": 0.1})
    steps.add(1, 2, {"": 0.2, "host": 0.7})
    steps.add(2, 3, {"": 0.3})
    assert steps.values("").tolist() == [0.1, 0.2, 0.3]
    assert np.array_equal(steps.values("host"), [np.nan, 0.7, np.nan], equal_nan=True)
    assert len(steps.values("nowhere")) == 0
    assert Steps().usual_ns() == 0.0


def test_congestion_marks_grow_if_most_ranks_have_more() -> None:
    marks = Marks(*np.full((2, 4), np.nan, np.float32))
    all_ranks = np.arange(4)
    assert not marks.more(all_ranks), "nothing is known"
    for _ in range(50):
        marks.take(np.full(4, 10.0, np.float32))
    assert not marks.more(all_ranks)
    for _ in range(8):
        marks.take(np.array([60.0, 60.0, 60.0, 10.0], np.float32))
    assert marks.more(all_ranks) and marks.more(np.array([0])) and not marks.more(np.array([3]))
    assert float(marks.newest[0] - marks.usual[0]) >= LEAST_MARKS
    for _ in range(8):
        marks.take(np.array([0.0, 0.0, 0.0, np.nan], np.float32))
    assert not marks.more(all_ranks), "fewer marks are not more"


# --- a victim that reports no steps ----------------------------------------------------------------------------------


def witness(seen: FloatArray, kind: str = "host") -> tuple[Unreported, tuple[str, str]]:
    job = Unreported(shape_of("victim", host=("h",) * 4, uplink=("u",) * 4))
    resource = (kind, "h" if kind == "host" else "u")
    for value in seen:
        values = np.zeros((len(FEATURES), 4), np.float32)
        values[FEATURE["runqueue_wait" if kind == "host" else "nic_congestion"]] = value
        job.take(values, {resource: {"victim": np.arange(4), "loud": np.arange(4)}})
    return job, resource


@pytest.mark.parametrize("kind", ["host", "uplink"])
def test_a_neighbour_is_confirmed_by_counters_of_ranks_while_the_job_is_slow(kind: str) -> None:
    busy = bursts(7)
    more = 0.2 if kind == "host" else 10.0
    sees, resource = witness(0.01 + more * busy, kind)
    blind, _ = witness(np.full(400, 0.01), kind)
    less, _ = witness(0.01 + more * (1 - busy), kind)
    lost = 0.3 * busy
    assert sees.witnessed(resource, busy, lost, 0.3)
    assert not blind.witnessed(resource, busy, lost, 0.3)
    assert not less.witnessed(resource, busy, lost, 0.3), "its ranks wait less while the neighbour is busy"
    assert not sees.witnessed(("host", "elsewhere"), busy, lost, 0.3)
    assert not sees.witnessed(resource, np.ones(400), lost, 0.3), "the neighbour is always busy"
    seldom = lost * (np.cumsum(np.diff(busy, prepend=0) > 0) % 2)
    assert not sees.witnessed(resource, busy, seldom, 0.3), "slow in half of the neighbour's busy time"


def test_a_job_slow_as_often_without_the_neighbour_is_not_its_victim() -> None:
    busy = np.tile(np.r_[np.zeros(14), np.ones(6)], 20)
    sees, resource = witness(0.01 + 0.2 * busy)
    assert sees.witnessed(resource, busy, 0.3 * busy, 0.3)
    seldom = np.maximum(busy, np.arange(400) % 10 < 2)
    assert sees.witnessed(resource, busy, 0.3 * seldom, 0.3), "mostly with the neighbour"
    often = np.maximum(busy, np.arange(400) % 9 < 4)
    assert not sees.witnessed(resource, busy, 0.3 * often, 0.3), "half of its slow time is without the neighbour"


def test_usual_counters_fill_the_time_before_a_neighbour_started() -> None:
    job = Unreported(shape_of("victim", host=("h",) * 4))
    quiet = np.zeros((len(FEATURES), 4), np.float32)
    quiet[FEATURE["runqueue_wait"]] = 0.02
    for _ in range(30):
        job.take(quiet, {})
    assert not job.seen
    loud = np.zeros((len(FEATURES), 4), np.float32)
    loud[FEATURE["runqueue_wait"]] = [0.4, 0.4, np.nan, 0.4]
    job.take(loud, {("host", "h"): {"victim": np.arange(4), "loud": np.arange(4)}})
    assert list(job.seen["host", "h"]) == pytest.approx([0.02] * 30 + [0.4])
    job.take(loud, {})
    assert not job.seen, "and is dropped when the neighbour has ended"
