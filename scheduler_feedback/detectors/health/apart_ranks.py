"""Ranks for which a job without waits is slow, by the counters of its blocks of steps.

While a synchronous job waits for a rank, the other ranks poll in a collective: their SMs are busy for a smaller share
of the time than before, and they draw less power. The rank itself either works all the time, so that it stays as busy
as before, or it has nothing to run, so that it draws even less power than the ranks that poll. Both show in each block
of steps while the job is slow. The rank's other counters show the cause, such as a lower clock or a busy host.

A rank that was slow from the start has no usual state. It is compared with the ranks of its role alone, and must
differ from them far more than any other rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Shape
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.step_blocks import BASE_BLOCKS, LEVELS, ROW, StepBlocks, shifts
from scheduler_feedback.detectors.health.suspicion import Suspicion

BoolArray = npt.NDArray[np.bool_]

BUSY_SHARE = 0.5
"""A rank stays busy if its activity exceeds that of its peers by at least this share of the loss that the slowdown
alone explains. For the one rank that delays the job it is nearly 1 by SM activity, and more than .5 by power."""

BUSY_SHARE_POWER = 0.3
"""The same share by power, where SM activity is not measured."""

IDLE_SHARE = 0.15
"""A rank runs nothing if its power is below that of its polling peers by at least this share of the same loss. Polling
takes a quarter to two fifths of the power limit."""

EACH = 0.5
"""In each single block, a rank must show this part of these shares."""

SIGMAS = 4.0
"""A rank is apart only if it differs by at least this number of standard deviations of other ranks."""

CLOCK_SHARE, LEAST_CLOCK = 0.6, 0.02
"""A lower clock explains the slowness if it is lower by at least this share of the slowdown, and by LEAST_CLOCK. The
clock of a rank that delays the job falls by at least the slowdown, and that of its peers rises a little."""

SPREAD = 0.22
"""From the start, a lower clock alone is a fault only beyond the spread of healthy GPUs: up to 22 % are published."""

STEADY = 0.1
"""A clock is lower all the time if its standard deviation from block to block is at most this share of the difference.
If it were the mean of two states, in three windows a block, it would be a fifth or more."""

THROTTLED, WAITING, LEAST_WAITING, QUEUED, ERRORS, LINK = 0.1, 0.05, 0.02, 0.3, 0.1, 0.2
"""Least increase over the peers: of the share of time in which a GPU throttles; of the share in which the processes of
a host wait (or QUEUED of the time lost, if that is less, but at least LEAST_WAITING); of a rank's wait for a processor,
as a share of the time lost; and of memory errors a second. LINK: least decrease of a PCIe link's speed, as a share of
its maximum."""

ERROR_COUNTERS: tuple[tuple[str, Cause, str, float], ...] = (
    ("nic_physical_errors", Cause.NIC, "nic", 0.5),
    ("nic_sequence_errors", Cause.NIC, "nic", 2.0),
    ("nic_pause_sent", Cause.NIC, "nic", 5.0),
    ("nvlink_errors", Cause.NVLINK, "gpu", 0.2),
    ("memory_errors", Cause.MEMORY, "gpu", 5.0),
    ("pcie_errors", Cause.PCIE, "gpu", 0.2),
)
"""Errors that explain a slow job in which no other rank is apart: counter, cause, level of the part, and the least
increase a second. They must begin when the job becomes slower, and occur in each slow block."""

CONGESTED = 10.0
"""Increase of a port's packets with congestion marks a second from which its network is congested. Between spells of
congestion, ports mark a few."""

EXPLAINED_BY_CLOCK = 0.5
"""A rank whose tensor cores are busy for longer has no more work if a lower clock explains this part of it."""

MOST_VARIED = 0.015
"""Without a cause, no rank is accused if the ranks' activity varies by more than this share from block to block: their
sequences differ, and one rank has more work for some blocks."""

STEPS, HOST_STEPS, SURE_STEPS = 8, 16, 24
"""A rank must be apart in all slow blocks, over at least STEPS steps if its GPU or PCIe link shows why. Healthy ranks
compile, save and load for up to eight steps or so, with a busy host: if the host shows why, over HOST_STEPS steps. If
nothing shows why the GPU runs nothing, over SURE_STEPS; if its kernels take longer, HOST_STEPS."""

LEAST_SLOWDOWN = 1.05
"""A rank is accused only if the job is slower by at least this ratio: five per cent, as in EROICA and Guard. GPUs that
throttle in a warm room slow a job by less."""

UNEXPLAINED_SIGMAS = 6.0
"""Without a cause, a rank must differ by this number of standard deviations."""

FEW = 8
"""At most one rank in this number is accused, or the ranks of one node."""

WHOLE = 0.75
"""A node is slow as a whole if at least this share of its ranks is apart."""

FROM_START_BLOCKS = 16
"""Ranks that are slow from the start are searched until this number of blocks is learned."""

ALONE = 4.0
"""The errors of a node count only if they are this many times those of any other node."""

APART_FROM_START, NEXT_SHARE = 0.05, 0.5
"""A rank is slow from the start only if its activity exceeds that of its role by at least this share, and that of each
other rank by half as much: GPUs differ by up to a fifth."""

UNEXPLAINED_FROM_START, UNEXPLAINED_NEXT = 0.08, 0.35
"""The same limits without a cause: only by SM activity, and if the tensor cores do not have more work."""

LEAST_ROLE = 4
"""Ranks that are slow from the start are searched only in roles with at least this number of ranks."""

OF_HOST = frozenset({Cause.CPU_CONTENTION, Cause.STORAGE})


@dataclass(frozen=True, slots=True)
class Apart:
    """Ranks that are apart in the newest slow blocks of a job with n ranks."""

    slower: float
    """The job's step time divided by the usual one."""
    steps: int
    busy: BoolArray
    """bool [n]: ranks that work for longer than their peers."""
    idle: BoolArray
    """bool [n]: ranks that run nothing while their peers poll."""
    away: FloatArray
    """float64 [COMPARED, n]: shift of each counter against the peers."""
    own: FloatArray
    """float64 [COMPARED, n]: shift of each counter against the rank's usual state."""
    sigmas: FloatArray
    """float64 [COMPARED, n]: `away` in standard deviations of other ranks."""
    from_start: bool = False
    steady_clock: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    """bool [n]: ranks whose clock is lower all the time, not only while the GPU has nothing to run. Only set if
    from_start."""


class ApartRanks:
    """Blocks of all jobs that report steps without waits. Owned by the health detector."""

    def __init__(self) -> None:
        self._of: dict[str, StepBlocks] = {}

    def failing(self, context: DetectionContext) -> Iterator[Suspicion]:
        """Add new telemetry, and yield suspicions against ranks for which their job waits."""
        telemetry = context.telemetry
        for gone in self._of.keys() - {job.shape.job for job in telemetry.jobs}:
            del self._of[gone]
        if not context.by_counters:
            self._of.clear()
            return
        counters = telemetry.counters
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            name, shape = job.shape.job, job.shape
            if job.steps is None or name not in context.by_counters or len(shape) < 2:
                self._of.pop(name, None)
                continue
            if not len(job.steps) and not len(counters.at_ns):
                continue
            blocks = self._of.get(name)
            if blocks is None or blocks.attempt != shape.attempt or blocks.ranks != len(shape):
                blocks = self._of[name] = StepBlocks(shape.attempt, len(shape))
            if not blocks.take(job.steps, counters, columns):
                continue
            if name in context.published.disturbed:
                continue
            if blocks.slow:
                yield from _suspects(job, apart(shape, blocks), blocks)
            elif BASE_BLOCKS <= blocks.learned <= FROM_START_BLOCKS:
                yield from _from_start(job, blocks)


def apart(shape: Shape, blocks: StepBlocks) -> Apart:
    """Return the ranks that are apart in all of the newest slow blocks."""
    slow = list(blocks.slow)
    slower = float(np.mean([one.step_seconds for one in slow])) / blocks.usual_seconds
    own = np.array([shifts(blocks, one) for one in slow])
    of_blocks = np.array([against_peers(shape, one) for one in own])
    away = of_blocks.mean(axis=0)
    spread = np.sqrt(blocks.varies / len(slow))
    levels = slice(0, len(LEVELS))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread[levels] /= np.abs(blocks.usual[levels])
    sigmas = away / np.maximum(np.maximum(spread, _among_ranks(shape, away)), 1e-3)
    lost = 1.0 - 1.0 / slower
    each = EACH * np.array([1.0 - blocks.usual_seconds / one.step_seconds for one in slow])[:, None]
    activity, share = activity_row(away)
    power = ROW["power"] if np.isfinite(away[ROW["power"]]).any() else activity
    with np.errstate(invalid="ignore"):
        busy = (
            (away[activity] >= share * lost)
            & (sigmas[activity] >= SIGMAS)
            & (of_blocks[:, activity] >= share * each).all(axis=0)
        )
        idle = (
            (away[power] <= -IDLE_SHARE * lost)
            & (sigmas[power] <= -SIGMAS)
            & (of_blocks[:, power] <= -IDLE_SHARE * each).all(axis=0)
            & ~busy
        )
    return Apart(slower, sum(one.steps for one in slow), busy, idle, away, own.mean(axis=0), sigmas)


def activity_row(values: FloatArray) -> tuple[int, float]:
    """Return the row that shows how busy ranks are, and its least share. values: float64 [COMPARED, n]."""
    if np.isfinite(values[ROW["sm_active"]]).any():
        return ROW["sm_active"], BUSY_SHARE
    return ROW["power"], BUSY_SHARE_POWER


def against_peers(shape: Shape, values: FloatArray) -> FloatArray:
    """Return each rank's value minus the median value of its peers on other nodes: float64 [COMPARED, n].

    The peers are the ranks of its role, or all ranks if fewer than two of the role are elsewhere.
    """
    nodes = _node_numbers(shape)
    found = np.full_like(values, np.nan)
    for role, node in {*zip(shape.roles.tolist(), nodes.tolist(), strict=True)}:
        mine = (shape.roles == role) & (nodes == node)
        peers = (shape.roles == role) & (nodes != node)
        if peers.sum() < 2:
            peers = nodes != node
        if peers.sum() < 2:
            peers = np.ones(len(nodes), np.bool_)
        found[:, mine] = values[:, mine] - _medians(values[:, peers])[:, None]
    return found


def _node_numbers(shape: Shape) -> npt.NDArray[np.intp]:
    return np.unique(np.asarray(shape.nodes), return_inverse=True)[1].reshape(-1)


def _medians(values: FloatArray) -> FloatArray:
    """Return the median of each row, NaN if a row has no value: float64 [rows]."""
    found = np.full(len(values), np.nan)
    known = np.isfinite(values).any(axis=1)
    found[known] = np.nanmedian(values[known], axis=1)
    return found


def _among_ranks(shape: Shape, away: FloatArray) -> FloatArray:
    """Return the spread of the ranks of a node around their median, as a standard deviation: float64 [COMPARED, 1].

    Nodes differ if one of them is slow. If nodes have fewer than three ranks, it is the spread of all ranks.
    """
    nodes, around = _node_numbers(shape), away.copy()
    if np.bincount(nodes).min() >= 3:
        for node in range(int(nodes.max()) + 1):
            here = nodes == node
            around[:, here] -= _medians(away[:, here])[:, None]
    return 1.4826 * _medians(np.abs(around))[:, None]


def _suspects(job: JobTelemetry, found: Apart, blocks: StepBlocks) -> Iterator[Suspicion]:
    ranks = np.flatnonzero(found.busy | found.idle).tolist()
    shape = job.shape
    if found.steps >= STEPS:
        yield from _errors(job, found, blocks, ranks)
    if not ranks or found.slower < LEAST_SLOWDOWN:
        return
    on = {shape.nodes[rank] for rank in ranks}
    if len(ranks) > max(2, len(shape) // FEW) and len(on) > 1:
        ranks = [rank for rank in ranks if _cause(found, rank)[0] is not Cause.UNKNOWN]
        if len({shape.nodes[rank] for rank in ranks}) > 1:
            return
    # Of two nodes, both differ from the other one: only the cause shows which of them is slow.
    varied = _varies(blocks)
    whole = any(WHOLE * shape.nodes.count(node) <= sum(shape.nodes[rank] == node for rank in ranks) for node in on)
    needs_cause = whole and len(set(shape.nodes)) <= 2 and len(ranks) > 1
    for rank in ranks:
        cause, level, evidence = _cause(found, rank)
        if _has_more_work(found, rank) or found.steps < _least_steps(found, rank, cause):
            continue
        if cause is Cause.UNKNOWN and (needs_cause or varied > MOST_VARIED or not _is_far(found, rank)):
            continue
        yield _suspicion(job, found, rank, cause, level, evidence)


def _varies(blocks: StepBlocks) -> float:
    """Return how much the activity of the median rank varies from block to block, as a share of its usual level."""
    row, _ = activity_row(blocks.usual)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(_medians(np.sqrt(blocks.varies[[row]]) / np.abs(blocks.usual[[row]]))[0])


def _least_steps(found: Apart, rank: int, cause: Cause) -> int:
    if cause is Cause.UNKNOWN:
        return HOST_STEPS if found.busy[rank] else SURE_STEPS
    return HOST_STEPS if cause in OF_HOST else STEPS


def _is_far(found: Apart, rank: int) -> bool:
    """Return whether a rank without a cause differs so much from its peers that chance is excluded. found: of slow
    blocks."""
    row = activity_row(found.away)[0] if found.busy[rank] else ROW["power"]
    return abs(float(found.sigmas[row, rank])) >= UNEXPLAINED_SIGMAS


def _has_more_work(found: Apart, rank: int) -> bool:
    """Return whether a busy rank has more work in its steps: more cycles of its tensor cores, at any clock.

    Without a measurement of its work, a rank with a usual clock may have more of it.
    """
    if not found.busy[rank]:
        return False
    tensor, clock = (float(found.away[ROW[name], rank]) for name in ("tensor_active", "sm_clock"))
    lost = 1.0 - 1.0 / found.slower
    clock = 0.0 if math.isnan(clock) else clock
    if math.isnan(tensor):
        return -clock < CLOCK_SHARE * lost and _cause(found, rank)[0] is Cause.UNKNOWN
    tensor = math.log1p(max(tensor, -0.5))
    # Clocks are single readings, of which some were taken while the rank did not work.
    return tensor + clock >= BUSY_SHARE * lost and -clock < EXPLAINED_BY_CLOCK * tensor


def _suspicion(
    job: JobTelemetry, found: Apart, rank: int, cause: Cause, level: str, evidence: tuple[Evidence, ...]
) -> Suspicion:
    shape = job.shape
    busy = bool(found.busy[rank])
    row = activity_row(found.away)[0] if busy else ROW["power"]
    words = "SM activity" if row == ROW["sm_active"] else "power"
    state = "works for longer" if busy else "runs nothing"
    names = {"gpu": shape.gpus}.get(level, ())
    device = names[rank] if names else ""
    usual = "ranks of its role" if found.from_start else "peers on other nodes, against its usual share"
    more = (
        Evidence("activity_to_peers", float(found.away[row, rank]), 0.0, "ratio",
                 f"{words} of {usual}; it {state} while they poll", 2.0),
        Evidence("step_seconds_to_usual", found.slower, 1.04, "ratio", "least slowdown", 1.0),
        Evidence("slow_steps", float(found.steps), float(STEPS), "steps", "least number of slow steps",
                 1.0 if found.steps >= HOST_STEPS else 0.0),
        *evidence,
    )  # fmt: skip
    return Suspicion(
        shape.nodes[rank], level if device else "node", device or shape.nodes[rank], cause,
        f"the job waits for it: it {state} while its peers poll", found.slower, more, job, rank, found.slower,
        Kind.STRAGGLER, True,
    )  # fmt: skip


def _cause(found: Apart, rank: int) -> tuple[Cause, str, tuple[Evidence, ...]]:
    """Return the cause of a rank's slowness, the level of the faulty part, and the evidence."""
    lost, log_slower = 1.0 - 1.0 / found.slower, math.log(found.slower)

    def of(name: str) -> float:
        return float(np.nan_to_num(found.away[ROW[name], rank]))

    least_clock = max(LEAST_CLOCK, CLOCK_SHARE * log_slower)
    own_clock = float(np.nan_to_num(found.own[ROW["sm_clock"], rank]))
    low_clock = -of("sm_clock") >= least_clock and -own_clock >= EACH * least_clock
    idle = bool(found.idle[rank])
    waiting = max(LEAST_WAITING, min(WAITING, QUEUED * lost))
    gpu = low_clock and (not found.from_start or (-of("sm_clock") >= SPREAD and (not idle or found.steady_clock[rank])))
    candidates = (
        (Cause.THERMAL, "gpu", "thermal_throttle", of("thermal_throttle") >= THROTTLED),
        (Cause.POWER, "gpu", "power_throttle", of("power_throttle") >= THROTTLED and low_clock),
        (Cause.GPU, "gpu", "sm_clock", gpu),
        (Cause.PCIE, "gpu", "pcie_link", of("pcie_link") <= -LINK),
        (Cause.MEMORY, "gpu", "memory_errors", of("memory_errors") >= ERRORS and not idle),
        (Cause.CPU_CONTENTION, "gpu", "runqueue_wait", of("runqueue_wait") >= QUEUED * lost and idle),
        (Cause.CPU_CONTENTION, "node", "cpu_waiting", of("cpu_waiting") >= waiting and idle),
        (Cause.STORAGE, "node", "io_waiting", of("io_waiting") >= waiting and idle),
    )
    for cause, level, name, fits in candidates:
        if fits and abs(float(found.sigmas[ROW[name], rank])) >= SIGMAS:
            return cause, level, (Evidence(name, of(name), 0.0, "", "its peers, since the job is slower", 2.0),)
    return Cause.UNKNOWN, "gpu", ()


def _errors(job: JobTelemetry, found: Apart, blocks: StepBlocks, apart_ones: list[int]) -> Iterator[Suspicion]:
    """Yield a suspicion against a part whose errors began when the job became slower.

    apart_ones: ranks that are apart. If there are some, only their own parts are suspected.
    """
    shape = job.shape
    if not blocks.before or blocks.run > len(blocks.slow):
        return  # the first slow blocks, in which the errors must begin, are no longer known
    for name, cause, level, least in ERROR_COUNTERS:
        row = ROW[name]
        each = np.array([one.means[row] for one in blocks.slow])
        with np.errstate(invalid="ignore"):
            before = np.min([one.means[row] for one in blocks.before], axis=0)
            # The first slow block may be slow by chance.
            each = each[1:] if len(each) > 2 else each
            more = (found.own[row] >= least) & (each > 0).all(axis=0) & (before <= EACH * found.own[row])
        ranks = np.flatnonzero(more).tolist()
        if not ranks or len({shape.nodes[rank] for rank in ranks}) > 1 or not set(apart_ones).issubset(ranks):
            continue
        here = np.array([node == shape.nodes[ranks[0]] for node in shape.nodes])
        if float(np.nanmax(found.own[row, here])) < ALONE * float(np.nanmax(found.own[row, ~here], initial=0.0)):
            continue
        if level == "nic" and _congested(found, ~here):
            continue
        rank = max(ranks, key=lambda one: float(found.own[row, one]))
        names = {"gpu": shape.gpus, "nic": shape.nics}[level]
        device = names[rank] if names else ""
        evidence = (
            Evidence(name, float(found.own[row, rank]), 0.0, "1/s", "its usual rate; other nodes have no more", 2.0),
            Evidence("ranks_apart", float(len(apart_ones)), 0.0, "ranks", "ranks that the job waits for", 1.0),
            Evidence("step_seconds_to_usual", found.slower, 1.04, "ratio", "least slowdown", 1.0),
        )
        yield Suspicion(
            shape.nodes[rank], level if device else "node", device or shape.nodes[rank], cause,
            "its errors began when the job became slower", found.slower, evidence, job, rank, found.slower,
            without_waits=True,
        )  # fmt: skip
        return


def _failing_memory(job: JobTelemetry, blocks: StepBlocks) -> Iterator[Suspicion]:
    """Yield a suspicion against the one GPU whose memory has had errors in each block since the start."""
    row = ROW["memory_errors"]
    least = next(least for name, _, _, least in ERROR_COUNTERS if name == "memory_errors")
    rates, spread = np.nan_to_num(blocks.usual[row]), np.sqrt(np.nan_to_num(blocks.varies[row]))
    rank = int(rates.argmax())
    others = float(np.delete(rates, rank).max())
    if (
        blocks.learned < FROM_START_BLOCKS
        or rates[rank] < max(least, ALONE * others)
        or rates[rank] < 2.0 * spread[rank]
    ):
        return
    shape = job.shape
    device = shape.gpus[rank] if shape.gpus else ""
    evidence = (
        Evidence("memory_errors", float(rates[rank]), others, "1/s", "any other rank; since the start", 2.0),
        Evidence("spread_of_memory_errors", float(spread[rank]), float(rates[rank]) / 2, "1/s", "half of the rate",
                 1.0),
        Evidence("blocks_of_steps", float(blocks.learned), float(FROM_START_BLOCKS), "blocks", "all since the start",
                 1.0),
    )  # fmt: skip
    yield Suspicion(
        shape.nodes[rank], "gpu" if device else "node", device or shape.nodes[rank], Cause.MEMORY,
        "its memory has had errors in each block of steps since the start", float(rates[rank]), evidence, job, rank,
        without_waits=True,
    )  # fmt: skip


def _steady_clock(blocks: StepBlocks, away: FloatArray) -> BoolArray:
    """Return whether the clock of each rank varies little from block to block, compared with how far it is from that of
    its role. A mean of two states, of which one is that of an idle GPU, varies more. away: float64 [COMPARED, n]."""
    row = ROW["sm_clock"]
    with np.errstate(invalid="ignore", divide="ignore"):
        varies = np.sqrt(blocks.varies[row]) / np.abs(blocks.usual[row])
        steady: BoolArray = varies <= STEADY * np.abs(away[row])
    return steady


def _congested(found: Apart, elsewhere: BoolArray) -> bool:
    """Return whether the network marks packets of most ranks on other nodes as congested since the job is slower.

    Another job then explains the slowness, and errors of one port may have begun by chance. elsewhere: bool [n].
    """
    (marked,) = _medians(found.own[[ROW["nic_congestion"]]][:, elsewhere])
    return bool(marked >= CONGESTED)


def _from_start(job: JobTelemetry, blocks: StepBlocks) -> Iterator[Suspicion]:
    """Yield a suspicion against a rank that is far busier, or far less busy, than all others of its role."""
    shape = job.shape
    level = blocks.usual.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        level[: len(LEVELS)] = np.log(level[: len(LEVELS)])
    away = np.full_like(level, np.nan)
    for role in range(int(shape.roles.max()) + 1):
        members = shape.roles == role
        if members.sum() >= LEAST_ROLE:
            away[:, members] = level[:, members] - _medians(level[:, members])[:, None]
    yield from _failing_memory(job, blocks)
    row, _ = activity_row(away)
    for activity, sign in ((row, 1.0), (ROW["power"], -1.0)):
        course = np.nan_to_num(sign * away[activity])
        rank = int(course.argmax())
        next_one = float(np.partition(course, -2)[-2])
        sigma = 1.4826 * float(np.median(np.abs(course)))
        far = float(course[rank])
        if far < APART_FROM_START or next_one > NEXT_SHARE * far or far < SIGMAS * sigma:
            continue
        slower = math.exp(far - max(next_one, 0.0))
        sigmas = away / np.maximum(1.4826 * _medians(np.abs(away))[:, None], 1e-3)
        busy, idle = np.zeros((2, len(shape)), np.bool_)
        (busy if sign > 0 else idle)[rank] = True
        steady = _steady_clock(blocks, away)
        found = Apart(slower, blocks.learned * 4, busy, idle, away, away, sigmas, True, steady)
        cause, of_level, evidence = _cause(found, rank)
        unexplained = sign > 0 and row == ROW["sm_active"] and far >= UNEXPLAINED_FROM_START
        unexplained = unexplained and next_one <= UNEXPLAINED_NEXT * far and found.steps >= SURE_STEPS
        unexplained = unexplained and _varies(blocks) <= MOST_VARIED
        # A healthy GPU with a lower clock keeps its tensor cores busy for longer too.
        unexplained = unexplained and float(away[ROW["tensor_active"], rank]) <= UNEXPLAINED_NEXT * far
        if (cause is not Cause.UNKNOWN or unexplained) and not _has_more_work(found, rank):
            yield _suspicion(job, found, rank, cause, of_level, evidence)
            return
