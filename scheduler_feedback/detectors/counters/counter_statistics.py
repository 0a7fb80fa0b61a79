"""Panel: every counter of every rank of every job against its peers and its own healthy place among them, as arrays.

A residual is x - median(peers) - own usual offset, where x is the counter on the scale on which it is judged (a
logarithm for what is a rate of work, itself for a share, log(1 + x) for what counts mishaps). Peers are the ranks of a
role, or of the whole job where roles are small. The offset and its scale are those of the first windows, then frozen: a
norm that went on learning would take a lasting fault for the normal state. What holds over several windows is kept as
a decaying mean, and as a sum that alarms (CUSUM).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    FEATURES,
    Float32Array,
    Grouping,
    IndexArray,
    Shape,
    Telemetry,
)
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.fault_history import Lemons
from scheduler_feedback.detectors.counters.feature_scales import BAD, COUNT, COUNTS, FLOOR, on_scale
from scheduler_feedback.detectors.iteration.job_slowdown import JobGate
from scheduler_feedback.detectors.stats.group_medians import known_median, usual_value
from scheduler_feedback.detectors.stats.validity_mask import BoolArray, Known, Knowns
from scheduler_feedback.detectors.steps.windows import LEAST_PEERS

WARM_UP_WINDOWS = 30
WARM_UP_SECONDS, LEAST_WARM_UP_WINDOWS = 240.0, 8
"""Samples from which a rank's usual place is learned: a robust scale settles in about 25 (public step traces). Long
windows are means of many samples: eight of half a minute are as good."""

ABSENT_NS = 600_000_000_000
"""Norms of jobs that are not seen within 600 s of a restart are dropped, as gangs are (core/telemetry/fleet.py)."""

DECAY, LONG_DECAY = np.float32(1 / 8), np.float32(1 / 2)
CLIP, LONG_CLIP = np.float32(3.0), np.float32(5.0)
LONG_WINDOW_SECONDS = 5.0
"""Windows of five seconds and more are means of as many samples, or counts of as long a time: each says as much as
several short ones, and is neither damped nor clipped like one."""

ALLOWANCE = np.float32(0.75)
HIGHEST = np.float32(24.0)
FEW = 8
"""Where zeros are usual and at most one column in so many is not, the others are passed over."""

ALARM = 8.0
"""As for steps: an allowance of 0.75 and an alarm at 6 to 10 (trials on public traces); clipped at three sigma."""


_NOTHING: Mapping[str, Float32Array | float] = {
    **dict.fromkeys(("_mean", "_square", "_taken", "score"), 0.0),
    **dict.fromkeys(("level", "peers", "newest"), np.nan),
    "scale": FLOOR[:, None],
}
"""What each state of a panel's columns is where nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Norm:
    """What is usual of a job's ranks [n]: the residuals' mean and scale, float32 [F, n]; mean NaN where not learned."""

    ranks: IntArray
    mean: Float32Array
    scale: Float32Array


class Panel:
    """State over F features and N columns, float32 [F, N] each. Shared by the detectors of one stream.

    level: decaying mean of the residual, NaN where unknown. scale: the frozen scale. peers: decaying mean of the
    residual against the peers alone. newest: the newest values as they came. score: CUSUM in the direction that is bad.
    accused: (job, attempt, rank) of standing verdicts about hardware, so that no detector tells another's again.
    disturbed: jobs of which stands that another one slows them down.
    turns: of jobs of which stands that their ranks are slow in turn, why.
    gates: of jobs that report no steps, how slow each is; the health detector's.
    lemons: what past verdicts of any detector said of parts and nodes.
    """

    def __init__(self, switches: Switches | None = None) -> None:
        self._switches = Switches() if switches is None else switches
        self._seen: Telemetry | None = None
        self._shapes: tuple[Shape, ...] = ()
        self.columns: dict[str, slice] = {}
        self.peers_of = Grouping(())
        self.overlapping: dict[str, Grouping] = {}
        self.accused: set[tuple[str, int, int]] = set()
        self.disturbed: set[str] = set()
        self.turns: Mapping[str, Cause] = {}
        self.gates: Mapping[str, JobGate] = {}
        self.lemons = Lemons()
        self._restored: dict[tuple[str, int], Norm] = {}
        self._restored_until_ns = 0
        self._decay, self._clip = DECAY, CLIP
        self._enough, self._floor = WARM_UP_WINDOWS, FLOOR
        self._shape(0)

    _mean: Float32Array
    _square: Float32Array
    _taken: Float32Array
    scale: Float32Array
    level: Float32Array
    peers: Float32Array
    newest: Float32Array
    score: Float32Array

    def _shape(self, columns: int, stay: Sequence[tuple[slice, slice]] = ()) -> None:
        """Lay out so many columns, with nothing known but of those that stay: their places, and where they were.

        One array after the other: of 100,000 ranks each takes ten megabytes.
        """
        for name, nothing in _NOTHING.items():
            state = np.full((COUNT, columns), nothing, np.float32)
            for place, before in stay:
                state[:, place] = getattr(self, name)[:, before]
            setattr(self, name, state)
        self._scaled = np.empty((COUNT, columns), np.float32)
        self._scratch = np.empty((2, columns), np.float32)
        self._knowns = Knowns(self.peers_of)
        # Columns of a feature of which nearly all is zero that have something else; None where that is not known.
        self._moving: list[BoolArray | None] = [None] * COUNT
        self._warming = np.ones(COUNT, np.bool_)
        self._fresh = np.ones(COUNT, np.bool_)

    def at(self, telemetry: Telemetry) -> Panel:
        """Fold this telemetry in, once however many detectors ask; the panel as of it."""
        if telemetry is self._seen:
            return self
        self._seen = telemetry
        shapes = tuple(job.shape for job in telemetry.jobs)
        if len(shapes) != len(self._shapes) or any(a is not b for a, b in zip(shapes, self._shapes, strict=True)):
            self._move(shapes)
        if self._restored:
            self._restored_until_ns = self._restored_until_ns or telemetry.now_ns + ABSENT_NS
            if telemetry.now_ns > self._restored_until_ns:
                self._restored.clear()
        values = telemetry.counters.values
        long = telemetry.counters.seconds >= LONG_WINDOW_SECONDS
        self._decay, self._clip = (LONG_DECAY, LONG_CLIP) if long else (DECAY, CLIP)
        enough = math.ceil(WARM_UP_SECONDS / telemetry.counters.seconds)
        self._enough = min(max(enough, LEAST_WARM_UP_WINDOWS), WARM_UP_WINDOWS)
        # What counts single things has no scale smaller than one of them in a window.
        one = np.float32(math.log1p(1.0 / telemetry.counters.seconds))
        self._floor = np.where(COUNTS, np.maximum(FLOOR, one), FLOOR)
        for window in range(values.shape[1]):
            self._take(values[:, window])
        return self

    # --- over a restart ---------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The norms that are learned: without them a restart during a fault would learn the fault as healthy."""
        norms = {
            (shape.job, shape.attempt): self._norm(shape, place)
            for shape, place in zip(self._shapes, self.columns.values(), strict=True)
        }
        for key, norm in self._restored.items():
            known = norms.get(key)
            if known is None or len(known.ranks) < len(norm.ranks):
                norms[key] = norm
        kept = [
            (job, attempt, norm.ranks.astype("<i4").tobytes(), norm.mean.astype("<f2").tobytes(),
             norm.scale.astype("<f2").tobytes())
            for (job, attempt), norm in norms.items() if np.isfinite(norm.mean).any()
        ]  # fmt: skip
        return msgspec.msgpack.encode(([feature.name for feature in FEATURES], kept))

    def load(self, data: bytes) -> None:
        """Take a snapshot's place. Norms of other features than today's are left out: they are learned anew.

        Raises ValueError where it is not one of ours.
        """
        try:
            names, kept = msgspec.msgpack.decode(
                data, type=tuple[list[str], list[tuple[str, int, bytes, bytes, bytes]]]
            )
            restored = {}
            for job, attempt, ranks, mean, scale in kept:
                count = len(np.frombuffer(ranks, "<i4"))
                restored[job, attempt] = Norm(
                    np.frombuffer(ranks, "<i4").astype(np.int64),
                    np.frombuffer(mean, "<f2").astype(np.float32).reshape(len(names), count),
                    np.frombuffer(scale, "<f2").astype(np.float32).reshape(len(names), count),
                )
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"norms of counters: {error}") from None
        self._restored = restored if names == [feature.name for feature in FEATURES] else {}
        self._restored_until_ns = 0

    def _norm(self, shape: Shape, place: slice) -> Norm:
        """What is usual of a job by now, where its warm-up is over: half a norm is none."""
        learned = self._taken[:, place] >= self._enough
        mean = np.where(learned, self._mean[:, place], np.float32(np.nan))
        return Norm(shape.ranks, mean, self.scale[:, place].copy())

    def _recall(self, shape: Shape, place: slice, norm: Norm) -> None:
        """Ranks of the shape whose norm is known need no warm-up."""
        _, mine, theirs = np.intersect1d(shape.ranks, norm.ranks, assume_unique=True, return_indices=True)
        columns = place.start + mine
        mean, scale = norm.mean[:, theirs], norm.scale[:, theirs]
        known = np.isfinite(mean)
        for state, values in (
            (self._mean, mean),
            (self.scale, np.maximum(scale, FLOOR[:, None])),
            (self._taken, np.full_like(mean, WARM_UP_WINDOWS)),
        ):
            state[:, columns] = np.where(known, values, state[:, columns])

    def newest_sigmas(self, rows: Sequence[int], columns: slice) -> Float32Array:
        """[rows, columns]: what holds of late against the own usual place among the peers, in standard deviations."""
        found: Float32Array = self.level[rows, columns] / self.scale[rows, columns]
        return found

    def of(self, job: str) -> slice:
        """The job's columns. Raises KeyError for one that is not there."""
        return self.columns[job]

    # --- one window -------------------------------------------------------------------------------------------------

    def _take(self, values: Float32Array) -> None:
        if not values.shape[1]:
            return
        dense: dict[Known, list[int]] = {}
        for feature in range(COUNT):  # a row of 100,000 ranks fits into a processor's cache, all of them do not
            row = np.ascontiguousarray(values[feature], np.float32)
            x = self._scaled[feature]
            on_scale(feature, row, x)
            known = self._knowns.of(row)
            if not known.any:
                continue
            usual = float(x[known.first])
            if usual_value(x, usual, self.peers_of, known):
                x -= np.float32(usual)
                self._one(feature, row, x, usual == 0.0)
            else:
                dense.setdefault(known, []).append(feature)
        for known, features in dense.items():
            middles = known_median(self._scaled, features, self.peers_of, known)
            for feature, middle in zip(features, middles, strict=True):
                x = self._scaled[feature]
                x -= self.peers_of.spread(middle, self._scratch[0])
                self._one(feature, np.ascontiguousarray(values[feature], np.float32), x, False)

    def _one(self, feature: int, values: Float32Array, x: Float32Array, zeros: bool) -> None:
        """One feature of all columns [N]: as it came, and against the peers. zeros: whether nearly all of it came as
        zero."""
        known = self._knowns.of(x)
        if known.whole:
            self.newest[feature] = values
        elif known.any:
            known.put(self.newest[feature], values)
        else:
            return
        rows = [state[feature] for state in (self._mean, self.scale, self.level, self.peers, self.score)]
        if zeros and not self._warming[feature] and not self._fresh[feature]:
            columns = self._moving_columns(feature, x, known)
            if columns is not None:
                if not len(columns):
                    return
                few = [row[columns] for row in rows]
                self._fold(feature, x[columns], few, None, np.empty((2, len(columns)), np.float32))
                for row, new in zip(rows[2:], few[2:], strict=True):
                    row[columns] = new
                return
        self._moving[feature] = None
        if self._warming[feature]:
            self._learn(feature, x, known)
        if self._fresh[feature]:
            self._begin(feature, x, known)
        self._fold(feature, x, rows, None if known.whole else known, self._scratch)

    def _moving_columns(self, feature: int, x: Float32Array, known: Known) -> IndexArray | None:
        """The columns in which something is or was other than zero, where those are few; else None. In the others a
        zero changes nothing."""
        moving = self._moving[feature]
        if moving is None:
            moving = self._mean[feature] != 0
            for state in (self.level, self.peers, self.score):
                moving |= state[feature] != 0
        now = x != 0
        if not known.whole:
            now &= known.of
        moving |= now
        if FEW * np.count_nonzero(moving) > len(x):
            return None
        self._moving[feature] = moving
        return np.flatnonzero(moving if known.whole else moving & known.of)

    def _begin(self, feature: int, x: Float32Array, known: Known) -> None:
        """A first sample is taken as it is."""
        unknown = np.isnan(self.level[feature])
        fresh = unknown & known.of
        if fresh.any():
            self.level[feature, fresh] = self._residual(x[fresh], self._mean[feature, fresh])
            self.peers[feature, fresh] = x[fresh]
        self._fresh[feature] = bool((unknown & ~known.of).any())

    def _residual(self, x: Float32Array, mean: Float32Array) -> Float32Array:
        return x - mean if self._switches.self_residual else x

    def _fold(
        self, feature: int, x: Float32Array, rows: list[Float32Array], partly: Known | None, scratch: Float32Array
    ) -> None:
        """What some columns [n] are against their peers into what is kept of them: mean, scale, level, peers, score.
        partly: which are known, where not all are. Changes the last three."""
        mean, scale, level, peers, score = rows
        beside, residual = scratch
        if self._switches.self_residual:
            np.subtract(x, mean, out=residual)
        else:
            residual[:] = x
        for state, now in ((level, residual), (peers, x)):
            np.subtract(now, state, out=beside)
            beside *= self._decay
            if partly is not None:
                partly.clear(beside)
            state += beside
        if not BAD[feature]:
            return
        if BAD[feature] < 0:
            np.negative(residual, out=residual)
        residual /= scale if self._switches.frozen_scale else np.maximum(np.abs(level), FLOOR[feature])
        np.clip(residual, -self._clip, self._clip, out=residual)  # one pass, where a minimum and a maximum are two
        residual -= ALLOWANCE
        if partly is not None:
            partly.clear(residual)  # a sample that is missing speaks neither for nor against
        if np.isnan(residual.min()):
            residual[np.isnan(residual)] = 0.0
        score += residual
        np.clip(score, np.float32(0.0), HIGHEST, out=score)

    def _learn(self, feature: int, x: Float32Array, known: Known) -> None:
        """Welford's running mean and variance of the residual against the peers, where the warm-up is not over."""
        taken, mean, square = self._taken[feature], self._mean[feature], self._square[feature]
        unlearned = taken < self._enough
        warming = unlearned if known.whole else unlearned & known.of
        if not warming.any():
            self._warming[feature] = bool(unlearned.any())
            return
        warm = known if warming is unlearned and warming.all() else Known(warming, self.peers_of)
        taken += warming
        away = _finite_of(x - mean, warm)
        count = np.clip(taken, np.float32(1.0), None)
        mean += away / count
        square += away * _finite_of(x - mean, warm)
        np.clip(count - np.float32(1.0), np.float32(1.0), None, out=count)
        np.sqrt(np.divide(square, count, out=count), out=count)
        np.clip(count, self._floor[feature], None, out=self.scale[feature])

    # --- other ranks ------------------------------------------------------------------------------------------------

    def _move(self, shapes: tuple[Shape, ...]) -> None:
        """Columns came or went: what is known of those that stay moves with them."""
        old = {
            (shape.job, shape.attempt): (shape, columns)
            for shape, columns in zip(self._shapes, self.columns.values(), strict=True)
        }
        ends = np.cumsum([len(shape) for shape in shapes], dtype=np.intp).tolist()
        columns = [slice(end - len(shape), end) for end, shape in zip(ends, shapes, strict=True)]
        stay: list[tuple[slice, slice]] = []
        recalled: list[tuple[Shape, slice, Norm]] = []
        for shape, place in zip(shapes, columns, strict=True):
            before, columns_before = old.get((shape.job, shape.attempt), (None, slice(0, 0)))
            if before is shape:
                stay.append((place, columns_before))
                continue
            if (norm := self._restored.get((shape.job, shape.attempt))) is not None:
                recalled.append((shape, place, norm))
                if np.isin(norm.ranks, shape.ranks).all():
                    del self._restored[shape.job, shape.attempt]  # else the others are heard again later
            if before is not None:  # a rank was heard of that was not, or a device
                recalled.append((shape, place, self._norm(before, columns_before)))
        self._shape(ends[-1] if ends else 0, stay)
        for shape, place, norm in recalled:
            self._recall(shape, place, norm)
        self._shapes = shapes
        self.columns = {shape.job: place for shape, place in zip(shapes, columns, strict=True)}
        self.peers_of = Grouping(joined([_peers(shape) for shape in shapes]))
        self._knowns = Knowns(self.peers_of)
        ways = sorted({way for shape in shapes for way in shape.groups})
        self.overlapping = {
            way: Grouping(joined([shape.groups.get(way, np.arange(len(shape))) for shape in shapes])) for way in ways
        }


def _peers(shape: Shape) -> IndexArray:
    """Number of each rank's peers: its role, or the job where a role is too small to vote."""
    roles = shape.roles
    return roles if len(roles) and np.bincount(roles).min() >= LEAST_PEERS else np.zeros(len(shape), np.intp)


def _finite_of(x: Float32Array, known: Known) -> Float32Array:
    """As numbers, zero where not known. Changes x."""
    if not known.whole:
        known.clear(x)
    if not np.isfinite(x.min() + x.max()):
        np.nan_to_num(x, copy=False)
    return x


def joined(parts: list[IndexArray]) -> IndexArray:
    """Group numbers of several jobs, made distinct."""
    found, first = [], 0
    for part in parts:
        found.append(part + first)
        first += int(part.max()) + 1 if len(part) else 0
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def row(name: str) -> int:
    """Row of a feature."""
    return FEATURE[name]
