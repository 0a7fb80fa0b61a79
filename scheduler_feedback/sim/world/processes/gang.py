"""Gangs of ordinary processes in continuous time: ranks compute, meet at a barrier, and are sometimes delayed.

This models a machine without accelerators in more detail than steps. A rank starts a step at the end of its last one
and needs some processor time. It may wait for a processor or a disk, sleep, or be stopped by a signal at given wall
times. The collective ends a fixed time after the last rank has arrived. The output is frames as agents send them: step
records, and samples of cumulative counters and process states, once a second at the node's own phase.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Column, Frame, Layout, Member, OpenRecord, Record, StepRecord, Tier, make_layout

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]
Delay = Callable[[int, float, np.random.Generator], FloatArray]
"""Function that delays ranks: (step, seconds since start, generator) -> float64 [ranks] extra seconds of this step."""

WALL_START_NS = 1_800_000_000_000_000_000
NS = 1_000_000_000


def stopped_by(on_seconds: float, off_seconds: float, start: float, end: float) -> list[Interval]:
    """Return intervals that alternately stop a process for `on_seconds` and let it run for `off_seconds`."""
    starts = np.arange(start, end, on_seconds + off_seconds)
    return [(float(t), float(min(t + on_seconds, end))) for t in starts]


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang and its delays.

    compute_seconds: processor time per step, one number or one per rank. noise: sigma of the logarithm of that time
    from step to step.
    collective_seconds: from the last arrival to the end of the step. spin: whether waiting uses the processor.
    warm_steps: number of first steps, which take up to three times as long.
    stops: rank -> intervals in which its process is stopped. slower: rank -> (start, end, factor on processor time).
    queue, disk, sleep, extra_compute: further delays by step and rank.
    shared_machine: whether all nodes are on one machine. counters: whether the agent reads the ranks' processes.
    wait_known: whether the reporter measures waits. missing: lost records as (rank, step).
    """

    name: str = "j-000001"
    attempt: int = 1
    ranks: int = 4
    ranks_per_node: int = 1
    compute_seconds: float | Sequence[float] = 0.1
    noise: float = 0.03
    collective_seconds: float = 0.02
    spin: bool = False
    warm_steps: int = 3
    stops: dict[int, list[Interval]] = field(default_factory=dict)
    slower: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    queue: Delay | None = None
    disk: Delay | None = None
    sleep: Delay | None = None
    extra_compute: Delay | None = None
    shared_machine: bool = True
    counters: bool = True
    wait_known: bool = True
    missing: frozenset[tuple[int, int]] = frozenset()
    start_seconds: float = 5.0
    first_step: int = 0


@dataclass(slots=True)
class History:
    """Steps and counters of a simulated gang.

    start, arrival, end: float64 [steps, ranks] in seconds; arrival is at the collective.
    times, used: breakpoints of each rank's cumulative processor, queue and disk time.
    """

    start: FloatArray
    arrival: FloatArray
    end: FloatArray
    times: list[list[float]]
    used: list[list[tuple[float, float, float]]]


def _run(now: float, work: float, stops: Sequence[Interval]) -> tuple[float, list[Interval]]:
    """Run a process for `work` seconds from `now` on, except in the intervals in which it is stopped.

    Returns the end time and the intervals in which the process runs.
    """
    stretches: list[Interval] = []
    index = bisect.bisect_right(stops, (now, float("inf"))) - 1
    if index >= 0 and stops[index][1] > now:
        now = stops[index][1]
    index += 1
    while index < len(stops) and stops[index][0] < now + work:
        if stops[index][0] > now:
            stretches.append((now, stops[index][0]))
            work -= stops[index][0] - now
        now = stops[index][1]
        index += 1
    stretches.append((now, now + work))
    return now + work, stretches


def happen(gang: Gang, seconds: float, seed: int) -> History:
    """Simulate the gang for `seconds`. The same seed gives the same history."""
    random = np.random.default_rng(seed)
    usual = np.broadcast_to(np.asarray(gang.compute_seconds, float), (gang.ranks,))
    begin = np.full(gang.ranks, gang.start_seconds)
    rows: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    times = [[gang.start_seconds] for _ in range(gang.ranks)]
    used = [[(0.0, 0.0, 0.0)] for _ in range(gang.ranks)]
    step = 0
    while begin.max() < gang.start_seconds + seconds:
        now = float(begin.max()) - gang.start_seconds
        processor = usual * np.exp(random.normal(0.0, gang.noise, gang.ranks))
        if step < gang.warm_steps:
            processor = processor * (3.0 - 2.0 * step / gang.warm_steps)
        for rank, (from_seconds, to_seconds, factor) in gang.slower.items():
            if from_seconds <= now < to_seconds:
                processor[rank] *= factor
        delays = {
            name: np.zeros(gang.ranks) if delay is None else np.maximum(delay(step, now, random), 0.0)
            for name, delay in (("c", gang.extra_compute), ("q", gang.queue), ("d", gang.disk), ("s", gang.sleep))
        }
        processor = processor + delays["c"]
        work = processor + delays["q"] + delays["d"]
        arrival, end = np.empty(gang.ranks), np.empty(gang.ranks)
        for rank in range(gang.ranks):
            stops = gang.stops.get(rank, ())
            done, stretches = _run(float(begin[rank]), float(work[rank]), stops)
            share = np.array([processor[rank], delays["q"][rank], delays["d"][rank]]) / work[rank]
            for a, b in stretches:
                _use(times[rank], used[rank], a, np.zeros(3))
                _use(times[rank], used[rank], b, share * (b - a))
            arrival[rank], _ = _run(done, float(delays["s"][rank]), stops)
        # The collective needs every rank: it proceeds only while none is stopped.
        last = float(arrival.max())
        left = max(_run(last, gang.collective_seconds, gang.stops.get(rank, ()))[0] for rank in range(gang.ranks))
        for rank in range(gang.ranks):
            end[rank], _ = _run(left, 0.0, gang.stops.get(rank, ()))
            if gang.spin:
                _use(times[rank], used[rank], float(end[rank]), np.array([end[rank] - arrival[rank], 0.0, 0.0]))
        rows.append((begin, arrival, end))
        begin = end
        step += 1
    start, arrived, ended = (np.array([row[i] for row in rows]) for i in range(3))
    return History(start, arrived, ended, times, used)


def replay(gang: Gang, compute: FloatArray) -> History:
    """Return a gang's history with recorded computing times: float64 [steps, ranks] in seconds."""
    length = compute.max(axis=1) + gang.collective_seconds
    ends = gang.start_seconds + np.cumsum(length)
    start = np.repeat((ends - length)[:, None], gang.ranks, axis=1)
    end = np.repeat(ends[:, None], gang.ranks, axis=1)
    return History(start, start + compute, end, [[gang.start_seconds]] * gang.ranks, [[(0.0, 0.0, 0.0)]] * gang.ranks)


def _use(times: list[float], used: list[tuple[float, float, float]], at: float, amount: FloatArray) -> None:
    before = used[-1]
    times.append(at)
    used.append((before[0] + amount[0], before[1] + amount[1], before[2] + amount[2]))


_METRICS = (
    "gangwatch_rank_cpu_seconds_total",
    "gangwatch_rank_runqueue_wait_seconds_total",
    "gangwatch_rank_block_io_seconds_total",
    "gangwatch_rank_stopped_samples_total",
    "gangwatch_rank_samples_total",
)


def frames(
    gang: Gang,
    history: History,
    seed: int,
    *,
    node_prefix: str = "n",
    agent: str = "agent",
    until: float | None = None,
) -> Iterator[tuple[float, Layout, Frame]]:
    """Return the frames that the nodes' agents would send, in order of arrival: (seconds, layout, frame)."""
    random = np.random.default_rng([seed, 7])
    nodes = [
        list(range(first, min(first + gang.ranks_per_node, gang.ranks)))
        for first in range(0, gang.ranks, gang.ranks_per_node)
    ]
    seconds = float(history.end[-1].max()) if until is None else until
    sent: list[tuple[float, Layout, Frame]] = []
    for index, ranks in enumerate(nodes):
        name = f"{node_prefix}{index}"
        own_clock = float(np.random.default_rng([seed, 11, index]).uniform(1000, 90000))
        clock = 0.0 if gang.shared_machine else own_clock
        boot = "machine" if gang.shared_machine else f"machine-{name}"
        sent += _node_frames(gang, history, (name, boot, f"{agent}-{name}"), clock, ranks, seconds, random)
    sent.sort(key=lambda item: item[0])
    return iter(sent)


def _node_frames(
    gang: Gang,
    history: History,
    identity: tuple[str, str, str],
    clock: float,
    ranks: list[int],
    seconds: float,
    random: np.random.Generator,
) -> list[tuple[float, Layout, Frame]]:
    name, boot, agent = identity
    columns = [
        Column(metric, (("attempt", str(gang.attempt)), ("gang", gang.name), ("rank", str(rank))), 1)
        for rank in ranks
        for metric in _METRICS
        if gang.counters
    ]
    layout = make_layout(name, (Tier("steps", 1.0), Tier("process", 1.0)), (), columns)
    phase, lag = float(random.uniform(0, 1)), float(random.uniform(0.01, 0.6))
    sent: list[tuple[float, Layout, Frame]] = []
    reported = dict.fromkeys(ranks, 0)
    stopped = dict.fromkeys(ranks, 0)
    records_sent = 0
    first = int(gang.start_seconds)
    for seq in range(1, int(seconds) - first + 2):
        at = first + seq - 1 + phase
        sampled = at - lag
        records: list[Record] = []
        counters: list[int] = []
        for rank in ranks:
            found, reported[rank] = _records(gang, history, rank, reported[rank], at, clock)
            records += found
            stopped[rank] += any(a <= sampled < b for a, b in gang.stops.get(rank, ()))
            used = _used_at(history, rank, sampled)
            counters += [round(value * NS) for value in used] + [stopped[rank], seq]
        values = np.array(counters if gang.counters else [], np.uint64)
        frame = Frame(
            name,
            boot,
            agent,
            seq,
            layout.layout_id,
            WALL_START_NS + round(at * NS),
            round((at + clock) * NS),
            np.array([round((at + clock) * NS), round((sampled + clock) * NS)], np.int64),
            np.zeros(0),
            values,
            np.ones(len(values), np.bool_),
            records_sent,
            tuple(records),
        )
        records_sent += len(records)
        sent.append((at + float(random.uniform(0.001, 0.05)), layout, frame))
    return sent


def _records(
    gang: Gang, history: History, rank: int, reported: int, at: float, clock: float
) -> tuple[list[Record], int]:
    """Return a rank's new records up to time `at`, and its new number of reported steps.

    reported: number of steps that were reported before.
    """
    records: list[Record] = []
    while reported < len(history.end) and history.end[reported, rank] <= at:
        record = _record(gang, history, reported, rank, clock)
        reported += 1
        if (rank, record.step) not in gang.missing:
            records.append(record)
    if reported < len(history.end) and history.start[reported, rank] <= at:
        since = round((history.start[reported, rank] + clock) * NS)
        member = Member(gang.name, gang.attempt, rank)
        records.append(OpenRecord(member, "step", reported + gang.first_step, since))
    return records, reported


def _record(gang: Gang, history: History, step: int, rank: int, clock: float) -> StepRecord:
    start = round((history.start[step, rank] + clock) * NS)
    duration = round((history.end[step, rank] + clock) * NS) - start
    wait = min(duration, round((history.end[step, rank] - history.arrival[step, rank]) * NS))
    member = Member(gang.name, gang.attempt, rank)
    return StepRecord(member, step + gang.first_step, start, duration, wait if gang.wait_known else None, None, 1)


def _used_at(history: History, rank: int, at: float) -> list[float]:
    """Return a rank's cumulative processor, queue and disk time at one time, linear between breakpoints."""
    times, used = history.times[rank], history.used[rank]
    after = bisect.bisect_right(times, at)
    if after == 0:
        return [0.0, 0.0, 0.0]
    if after == len(times):
        return list(used[-1])
    a, b = times[after - 1], times[after]
    share = (at - a) / (b - a) if b > a else 1.0
    return [x + share * (y - x) for x, y in zip(used[after - 1], used[after], strict=True)]
