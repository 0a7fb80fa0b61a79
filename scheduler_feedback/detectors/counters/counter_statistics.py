"""Counter statistics: compare all counters of all ranks with their peers and with their own healthy past.

A residual is x - median(peers) - usual offset of the rank. x is the counter on its scale: a logarithm for rates of
work, log(1 + x) for error counts, and unchanged for shares. Peers are the ranks of the same role, or of the whole job
if roles are small. The usual offset and its scale are learned from the first windows and then frozen: a baseline that
kept learning would take a lasting fault for the normal state. Two statistics of the residual are kept: a decaying mean,
and a CUSUM (a running sum of excesses) with an alarm threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    FEATURES,
    Float32Array,
    Grouping,
    IndexArray,
    Shape,
    Telemetry,
)
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.feature_scales import BAD, COUNT, COUNTS, FLOOR, on_scale
from scheduler_feedback.detectors.counters.tensor_cycles import AVERAGED, TensorCycles
from scheduler_feedback.detectors.stats.group_medians import known_median, usual_value
from scheduler_feedback.detectors.stats.validity_mask import BoolArray, ValidityMask, ValidityMasks
from scheduler_feedback.detectors.steps.places import LEAST_PEERS

WARM_UP_WINDOWS = 30
"""Number of windows of the warm-up, from which a rank's usual offset from its peers is learned. Long windows need fewer
(LEAST_WARM_UP_WINDOWS). In public step traces, 25 windows suffice."""

WARM_UP_SECONDS, LEAST_WARM_UP_WINDOWS = 240.0, 8
"""If windows are long, the warm-up ends after WARM_UP_SECONDS, but not before LEAST_WARM_UP_WINDOWS windows. Fewer
windows suffice then, because each is a mean of many samples."""

ABSENT_NS = 600_000_000_000
"""Time in ns for which the baseline of a job that does not report is kept after a restart (600 s)."""

DECAY, LONG_DECAY = np.float32(1 / 8), np.float32(1 / 2)
"""Weight of a new window in the decaying mean of a residual: DECAY for short windows, LONG_DECAY for long windows."""

CLIP, LONG_CLIP = np.float32(3.0), np.float32(5.0)
"""Maximum residual, in standard deviations, that one window adds to the CUSUM (a running sum): CLIP for short windows,
LONG_CLIP for long windows. So a single extreme value raises no alarm."""

LONG_WINDOW_SECONDS = 5.0
"""Windows of at least this number of seconds count as long: one is as informative as several short windows."""

ALLOWANCE = np.float32(0.75)
"""Subtracted from each residual, in standard deviations, before the CUSUM (a running sum) adds it. So residuals that
are only noise do not add up to an alarm."""

HIGHEST = np.float32(24.0)
"""Upper limit of the CUSUM (a running sum of residuals), so that an alarm ends soon after the fault has ended."""

FEW = 8
"""If a counter is nonzero for at most one rank in eight, only the statistics of these ranks are updated. This saves
time."""

ALARM = 8.0
"""A counter raises an alarm when the CUSUM of its residual (a running sum) reaches this value. Trials on public step
traces gave 6 to 10."""


SPARE = 8
"""One column in eight is spare in new arrays."""

_NO_ROOM: Float32Array = np.empty((COUNT, 0), np.float32)
_NOTHING: Mapping[str, Float32Array | float] = {
    **dict.fromkeys(("_mean", "_square", "_taken", "score"), 0.0),
    **dict.fromkeys(("level", "peers", "newest"), np.nan),
    "scale": FLOOR[:, None],
    "_cycles": np.array([[0.0], [0.0], [np.nan]], np.float32),
}
"""Initial value of each array of CounterStatistics, by the name of the array."""

_ROWS = {"_cycles": len(AVERAGED)}
"""Number of rows, for arrays whose rows are not the features."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Usual state of a job's n ranks: for each of F features, the mean and scale of a rank's difference from its peers,
    float32 [F, n]. The mean is NaN where it is not learned yet."""

    ranks: IntArray
    mean: Float32Array
    scale: Float32Array


class CounterStatistics:
    """Statistics of all counters of all ranks.

    Arrays have one row per feature and one column per rank: float32 [F features, N ranks].

    All detectors of one stream share this object.
    """

    def __init__(self, switches: Switches | None = None) -> None:
        self._switches = Switches() if switches is None else switches
        self._shapes: tuple[Shape, ...] = ()
        self.columns: dict[str, slice] = {}
        self.peers_of = Grouping(())
        self._room: dict[str, Float32Array] = {}  # the arrays with spare columns, by name
        self._peers: dict[int, tuple[Shape, IndexArray]] = {}  # by the identity of a job's shape
        self._restored: dict[tuple[str, int], Norm] = {}
        self._restored_until_ns = 0
        self._now_ns = 0
        self._learned_ns: dict[tuple[str, int], int] = {}  # end of the warm-up, by job and attempt
        self._decay, self._clip = DECAY, CLIP
        self._enough, self._floor = WARM_UP_WINDOWS, FLOOR
        self._shape(0)

    _mean: Float32Array
    _square: Float32Array
    _taken: Float32Array
    scale: Float32Array
    """Usual standard deviation of each residual, frozen after the warm-up."""
    level: Float32Array
    """Decaying mean of each residual; NaN if unknown."""
    peers: Float32Array
    """Decaying mean of each counter's difference from the median of the peers, without the rank's usual offset."""
    newest: Float32Array
    """Newest value of each counter, in its own unit."""
    score: Float32Array
    """CUSUM (running sum) of each residual, in the direction that indicates a fault."""
    cycles: TensorCycles
    """Tensor core cycles of all ranks, over many steps."""
    _cycles: Float32Array
    """State of `cycles`: [3, N]."""

    def _shape(self, columns: int, stay: Sequence[tuple[slice, slice]] = ()) -> None:
        """Make the arrays fit this number of columns, and keep the state of the columns in `stay`.

        Moving columns within the arrays takes a fifth of the time that new arrays take, whose pages the kernel clears.

        stay: pairs of slices, the new place and the old place of columns, in the order of the new places.
        """
        moved = _together(stay)
        # In the usual case, columns only move to the left, into the places of an ended job.
        room_for = self._room.get("score", _NO_ROOM).shape[1]
        in_place = columns <= room_for <= 2 * columns and all(place.start <= old.start for place, old in moved)
        for name, nothing in _NOTHING.items():
            rows = _ROWS.get(name, COUNT)
            known = self._room.get(name, _NO_ROOM[:rows])
            room = known if in_place else np.empty((rows, columns + columns // SPARE), np.float32)
            empty = np.broadcast_to(np.asarray(nothing, np.float32), (rows, 1))[:, 0].tolist()
            for row, old, value in zip(room, known, empty, strict=True):  # a row fits into a CPU cache
                end = 0
                for place, before in moved:
                    row[end : place.start] = value
                    if row is not old or place.start != before.start:
                        row[place] = old[before]
                    end = place.stop
                row[end:columns] = value
            self._room[name] = room
            setattr(self, name, room[:, :columns])
        self.cycles = TensorCycles(self._cycles, self.peers_of)
        self._scaled = np.empty((COUNT, columns), np.float32)
        self._scratch = np.empty((2, columns), np.float32)
        self._masks = ValidityMasks(self.peers_of)
        # Columns of a sparse feature that are not zero; None if unknown.
        self._moving: list[BoolArray | None] = [None] * COUNT
        self._warming = np.ones(COUNT, np.bool_)
        self._fresh = np.ones(COUNT, np.bool_)

    def take(self, telemetry: Telemetry) -> None:
        """Update the statistics with new telemetry."""
        for _ in self.take_in_parts(telemetry):
            pass

    def take_in_parts(self, telemetry: Telemetry) -> Iterator[None]:
        """Do the same, and yield after each feature. Until the end, the statistics are those of two different times."""
        shapes = tuple(job.shape for job in telemetry.jobs)
        if len(shapes) != len(self._shapes) or any(a is not b for a, b in zip(shapes, self._shapes, strict=True)):
            self._move(shapes)
        if self._restored:
            self._restored_until_ns = self._restored_until_ns or telemetry.now_ns + ABSENT_NS
            if telemetry.now_ns > self._restored_until_ns:
                self._restored.clear()
        values, seconds = telemetry.counters.values, telemetry.counters.seconds
        long = seconds >= LONG_WINDOW_SECONDS
        self._decay, self._clip = (LONG_DECAY, LONG_CLIP) if long else (DECAY, CLIP)
        enough = math.ceil(WARM_UP_SECONDS / seconds)
        self._enough = min(max(enough, LEAST_WARM_UP_WINDOWS), WARM_UP_WINDOWS)
        # The scale of an event counter is at least one event a window.
        one = np.float32(math.log1p(1.0 / seconds))
        self._floor = np.where(COUNTS, np.maximum(FLOOR, one), FLOOR)
        self.cycles = TensorCycles(self._cycles, self.peers_of)
        for window in range(values.shape[1]):
            self.cycles.take(values[FEATURE["tensor_active"], window], values[FEATURE["sm_clock"], window], seconds)
            yield from self._take(values[:, window])
        self._now_ns = telemetry.now_ns
        learning = [shape for shape in self._shapes if (shape.job, shape.attempt) not in self._learned_ns]
        for shape, has_learned in zip(learning, self._have_learned(learning), strict=True):
            if has_learned:
                self._learned_ns[shape.job, shape.attempt] = self._now_ns

    # --- over a restart ---------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Encode the learned baselines. Without them, a restart during a fault would learn the fault as normal."""
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
        """Restore a snapshot. If the features have changed, the baselines are dropped and learned again.

        Raises ValueError if the bytes are not a snapshot.
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
        """Return a job's usual state; NaN for ranks whose warm-up is not over."""
        learned = self._taken[:, place] >= self._enough
        mean = np.where(learned, self._mean[:, place], np.float32(np.nan))
        return Norm(shape.ranks, mean, self.scale[:, place].copy())

    def _recall(self, shape: Shape, place: slice, norm: Norm) -> None:
        """Restore the baseline of the job's ranks that `norm` contains. These ranks need no warm-up."""
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
        """Return the decaying mean of the residuals of some features, in standard deviations: [rows, columns]."""
        found: Float32Array = self.level[rows, columns] / self.scale[rows, columns]
        return found

    def learned_seconds(self, shape: Shape) -> float:
        """Return the seconds since the warm-up of the job's ranks ended; 0 before. A fault that began earlier is a part
        of the values that are usual."""
        learned_ns = self._learned_ns.get((shape.job, shape.attempt), self._now_ns)
        return (self._now_ns - learned_ns) / 1e9

    def _have_learned(self, shapes: Sequence[Shape]) -> list[bool]:
        """Return for each job whether the warm-up of all counters that its ranks report is over."""
        if len(shapes) < FEW:
            return [self._has_learned(self.columns[shape.job]) for shape in shapes]
        # Sums up to each column, of all counters: three array operations for each of a thousand jobs take longer.
        over, begun = self._taken >= self._enough, self._taken > 0
        sums = np.zeros((2, self._taken.shape[1] + 1), np.intp)
        np.cumsum(np.stack((over.any(axis=0), (begun & ~over).any(axis=0))), axis=1, out=sums[:, 1:])
        places = [self.columns[shape.job] for shape in shapes]
        learned, warming = sums[:, [one.stop for one in places]] > sums[:, [one.start for one in places]]
        found: list[bool] = (learned & ~warming).tolist()
        return found

    def _has_learned(self, columns: slice) -> bool:
        taken = self._taken[:, columns]
        return bool(
            (taken.max(axis=1, initial=0.0) >= self._enough).any() and not ((taken > 0) & (taken < self._enough)).any()
        )

    def of(self, job: str) -> slice:
        """Return the range of columns that belong to the job's ranks. Raises KeyError for an unknown job."""
        return self.columns[job]

    # --- one window -------------------------------------------------------------------------------------------------

    def _take(self, values: Float32Array) -> Iterator[None]:
        if not values.shape[1]:
            return
        dense: dict[ValidityMask, list[int]] = {}
        for feature in range(COUNT):  # one row of 100,000 ranks fits into a CPU cache
            row = np.ascontiguousarray(values[feature], np.float32)
            x = self._scaled[feature]
            on_scale(feature, row, x)
            known = self._masks.of(row)
            if not known.any:
                continue
            usual = float(x[known.first])
            if usual_value(x, usual, self.peers_of, known):
                x -= np.float32(usual)
                self._one(feature, row, x, usual == 0.0)
                yield
            else:
                dense.setdefault(known, []).append(feature)
        for known, features in dense.items():
            middles = known_median(self._scaled, features, self.peers_of, known)
            yield
            for feature, middle in zip(features, middles, strict=True):
                x = self._scaled[feature]
                x -= self.peers_of.spread(middle, self._scratch[0])
                self._one(feature, np.ascontiguousarray(values[feature], np.float32), x, False)
                yield

    def _one(self, feature: int, values: Float32Array, x: Float32Array, zeros: bool) -> None:
        """Update the statistics of one feature, for all N ranks.

        values: values in their own unit. x: differences from the peers' median, on the feature's scale. zeros: whether
        nearly all values are zero.
        """
        known = self._masks.of(x)
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

    def _moving_columns(self, feature: int, x: Float32Array, known: ValidityMask) -> IndexArray | None:
        """Return the columns (ranks) in which the feature is nonzero or was nonzero before. Return None if they are too
        many.

        In all other columns a zero changes nothing.
        """
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

    def _begin(self, feature: int, x: Float32Array, known: ValidityMask) -> None:
        """Initialise the decaying means of new columns with their first sample."""
        unknown = np.isnan(self.level[feature])
        fresh = unknown & known.of
        if fresh.any():
            self.level[feature, fresh] = self._residual(x[fresh], self._mean[feature, fresh])
            self.peers[feature, fresh] = x[fresh]
        self._fresh[feature] = bool((unknown & ~known.of).any())

    def _residual(self, x: Float32Array, mean: Float32Array) -> Float32Array:
        return x - mean if self._switches.self_residual else x

    def _fold(
        self,
        feature: int,
        x: Float32Array,
        rows: list[Float32Array],
        partly: ValidityMask | None,
        scratch: Float32Array,
    ) -> None:
        """Update the statistics of one feature for some columns (ranks) with their new values.

        x: differences from the peers' median. rows: mean, scale, level, peers and score of these columns; level, peers
        and score are changed in place. partly: which columns have a sample, if not all. scratch: two arrays for
        intermediate values.
        """
        mean, scale, level, peers, score = rows
        difference, residual = scratch
        if self._switches.self_residual:
            np.subtract(x, mean, out=residual)
        else:
            residual[:] = x
        for state, now in ((level, residual), (peers, x)):
            np.subtract(now, state, out=difference)
            difference *= self._decay
            if partly is not None:
                partly.clear(difference)
            state += difference
        if not BAD[feature]:
            return
        if BAD[feature] < 0:
            np.negative(residual, out=residual)
        residual /= scale if self._switches.frozen_scale else np.maximum(np.abs(level), FLOOR[feature])
        np.clip(residual, -self._clip, self._clip, out=residual)  # one pass instead of two
        residual -= ALLOWANCE
        if partly is not None:
            partly.clear(residual)  # a missing sample is no evidence
        if np.isnan(residual.min()):
            residual[np.isnan(residual)] = 0.0
        score += residual
        np.clip(score, np.float32(0.0), HIGHEST, out=score)

    def _learn(self, feature: int, x: Float32Array, known: ValidityMask) -> None:
        """During the warm-up, update the running mean and variance of each column's difference from its peers
        (Welford)."""
        taken, mean, square = self._taken[feature], self._mean[feature], self._square[feature]
        unlearned = taken < self._enough
        warming = unlearned if known.whole else unlearned & known.of
        if not warming.any():
            self._warming[feature] = bool(unlearned.any())
            return
        warm = known if warming is unlearned and warming.all() else ValidityMask(warming, self.peers_of)
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
        """Add columns for new jobs, remove those of ended jobs, and move the state of the others."""
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
                self._learned_ns[shape.job, shape.attempt] = 0
                if np.isin(norm.ranks, shape.ranks).all():
                    del self._restored[shape.job, shape.attempt]  # otherwise the other ranks may still resume reporting
            if before is not None:  # a rank or device has started reporting
                recalled.append((shape, place, self._norm(before, columns_before)))
        self._shape(ends[-1] if ends else 0, stay)
        for shape, place, norm in recalled:
            self._recall(shape, place, norm)
        self._shapes = shapes
        present = {(shape.job, shape.attempt) for shape in shapes}
        self._learned_ns = {key: at_ns for key, at_ns in self._learned_ns.items() if key in present}
        self.columns = {shape.job: place for shape, place in zip(shapes, columns, strict=True)}
        known = self._peers
        self._peers = {id(shape): known.get(id(shape)) or (shape, _peers(shape)) for shape in shapes}
        self.peers_of = Grouping(joined([self._peers[id(shape)][1] for shape in shapes]))
        self._masks = ValidityMasks(self.peers_of)


def _together(moved: Sequence[tuple[slice, slice]]) -> list[tuple[slice, slice]]:
    """Return the pairs of slices, joined where both slices of a pair continue those of the pair before: one large copy
    takes less time than one for each of a thousand jobs."""
    found: list[tuple[slice, slice]] = []
    for place, before in moved:
        if found and found[-1][0].stop == place.start and found[-1][1].stop == before.start:
            place, before = slice(found[-1][0].start, place.stop), slice(found.pop()[1].start, before.stop)
        found.append((place, before))
    return found


def _peers(shape: Shape) -> IndexArray:
    """Return the number of each rank's peer group: its role, or the job if a role has too few ranks to compare."""
    roles = shape.roles
    return roles if len(roles) and np.bincount(roles).min() >= LEAST_PEERS else np.zeros(len(shape), np.intp)


def _finite_of(x: Float32Array, known: ValidityMask) -> Float32Array:
    """Set unknown values to zero, and return the array. Changes `x`."""
    if not known.whole:
        known.clear(x)
    if not np.isfinite(x.min() + x.max()):
        np.nan_to_num(x, copy=False)
    return x


def joined(parts: list[IndexArray]) -> IndexArray:
    """Concatenate the group numbers of several jobs. The numbers are shifted, so that no two jobs share a number."""
    found, first = [], 0
    for part in parts:
        found.append(part + first)
        first += int(part.max()) + 1 if len(part) else 0
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def row(name: str) -> int:
    """Return the row number of the feature with this name."""
    return FEATURE[name]
