"""State of each gang in the straggler detector, and the snapshot of this state.

A snapshot contains baselines, CUSUMs, active verdicts, and the ranks' roles in earlier attempts. It contains no
windows: after a restart an alarm collects its evidence again, which takes seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, field

import msgspec
import numpy as np

from agent.schema.sample import SampleColumn
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.detectors.stats.medians import median
from scheduler_feedback.detectors.steps.baseline import SKIPPED_STEPS, Baseline
from scheduler_feedback.detectors.steps.expected_work import Work
from scheduler_feedback.detectors.steps.places import Places, places
from scheduler_feedback.detectors.steps.windows import Window
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Judged

RECENT_WINDOWS = 8
"""Number of newest windows from which the current spread of the other ranks' times is measured."""

INTERVAL_WINDOWS = 24
"""Maximum number of windows that an alarm uses as evidence."""

HISTORY_WINDOWS = 64

SNAPSHOT_VERSION = 2


@dataclass(slots=True)
class ActiveVerdict:
    """An active verdict on one rank, or on a node with several slow ranks."""

    verdict_id: str
    first_ns: int
    """Wall time in ns at which the alarm began."""
    reported_confidence: float
    """Highest confidence reported so far."""
    reported_cause: bool = False
    """Whether a cause has been reported."""
    node: str = ""
    """Node with several slow ranks; '' if the verdict is on one rank."""
    cause: str = ""
    """Cause that was reported for the node; '' if the verdict is on one rank."""
    others: set[int] = field(default_factory=set)
    """Indices of the other ranks that the verdict covers."""


@dataclass(slots=True)
class Spell:
    """A period in which one rank slowed its gang down."""

    since: int
    """Number of the window in which the rank's CUSUM (running sum of its excess) rose above zero."""
    first_window: int
    """Number of the first slow window."""
    first_step: int
    """First step of the first slow window."""
    window_steps: int
    """Number of steps in the first slow window."""
    windows: int = 0
    """Number of windows from the first slow window to the newest window in which the rank slowed the gang down."""
    lasted: int = 0
    """The same, including windows after the verdict was certain, in which the checks did not run."""


@dataclass(slots=True)
class GangState:
    """State of one attempt of a gang of n ranks. Arrays have one value for each rank."""

    attempt: int
    ranks: tuple[int, ...]
    where: Places
    seen_ns: int
    """Time in ns of the newest telemetry of the gang."""
    shape: Shape | None = None
    """Ranks of the gang with their nodes and roles, as last received."""
    pending: StepTable | None = None
    """Finished steps that wait until enough of them fill a window; None if there are none."""
    to_skip: int = SKIPPED_STEPS
    """Number of first steps of the attempt that still have to be skipped."""
    work: Work | None = None
    """Fitted model of a rank's compute time for its sequence lengths; None if tokens explain little."""
    warm_up: list[Window] = field(default_factory=list)
    baseline: Baseline | None = None
    best_step_seconds: float = np.inf
    """Lowest mean step time in seconds over RECENT_WINDOWS windows, corrected for phases of less work."""
    light_since_ns: int | None = None
    """Time in ns since which the median rank has computed less than in the warm-up; None if it does not."""
    history: deque[Judged] = field(default_factory=lambda: deque(maxlen=HISTORY_WINDOWS))
    shifts: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    """Increase of each rank's compute time over its reference, in log seconds, one row [n] for each newest window."""
    middles: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    """Median of each row of `shifts`."""
    counted: int = 0
    """Number of windows judged so far."""
    longest_episode: int = 0
    """Longest time, in windows, for which the CUSUM (running sum of the excess) of a rank was above zero before it
    returned to zero."""
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    """CUSUM (running sum of the excess) of each rank: [n]."""
    since: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of the window in which each rank's CUSUM (running sum of its excess) rose above zero; -1 if it is zero:
    [n]."""
    refused: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of consecutive windows in which the alarm of each rank failed the checks: [n]."""
    refused_since: dict[int, int] = field(default_factory=dict)
    """Number of the window since which the checks have refused the alarm of each rank that was slow from the start, by
    the index of the rank. Snapshots do not contain it."""
    active: dict[int, ActiveVerdict] = field(default_factory=dict)
    """Active verdicts, by the index of the accused rank."""
    spells: dict[int, list[Spell]] = field(default_factory=dict)
    """Newest spells of each rank that slowed the gang down without a known cause, by the index of the rank. Snapshots
    do not contain them."""
    longest_dropped: dict[int, int] = field(default_factory=dict)
    """Windows of the longest spell of each rank that `spells` no longer has, by the index of the rank. Snapshots do not
    contain it."""
    slow_windows: int = 0
    calm_windows: int = 0
    abstained: set[int] = field(default_factory=set)
    """Indices of ranks (-1: the whole gang) for which an abstention was already reported in this period of slowness."""
    samples: tuple[int, SampleColumn | None] = (-1, None)
    """Cached metric samples, with the value of `counted` at which they were computed."""

    def active_on(self, rank: int) -> ActiveVerdict | None:
        """Return the verdict on the rank. If there is none, return the most certain verdict on its node, or None."""
        if rank in self.active or not self.active:
            return self.active.get(rank)
        node = self.where.names[self.where.index[rank]]
        of_node = [active for active in self.active.values() if active.node == node]
        return max(of_node, key=lambda active: (active.reported_cause, active.reported_confidence), default=None)

    @property
    def accused(self) -> set[int]:
        """Return the indices of all ranks that active verdicts cover."""
        return self.active.keys() | {other for active in self.active.values() for other in active.others}

    def forget_verdicts(self, verdict_ids: Collection[str]) -> None:
        """Forget these verdicts, which the arbiter refused or withdrew."""
        for rank in [rank for rank, active in self.active.items() if active.verdict_id in verdict_ids]:
            del self.active[rank]

    def forget_course(self) -> None:
        """Set the CUSUM (running sum of the excess) of all ranks to zero, as after the warm-up."""
        count = len(self.ranks)
        self.score = np.zeros(count)
        self.since = np.full(count, -1, np.int64)
        self.refused = np.zeros(count, np.int64)

    def add_shift(self, shift: FloatArray) -> None:
        """Add the increase of each rank's compute time over its reference in the newest window, in log seconds: [n]."""
        self.shifts.append(shift)
        self.middles.append(median(shift))

    def take_in(self, steps: StepTable) -> StepTable:
        """Return the pending steps followed by the new steps, without the first steps of the attempt."""
        skipped = min(self.to_skip, len(steps))
        self.to_skip -= skipped
        steps = rest(steps, skipped)
        return steps if self.pending is None or not len(self.pending) else behind(self.pending, steps)

    def episode(self, rank: int) -> int:
        """Return the number of windows since the rank's CUSUM (running sum of its excess) rose above zero; 0 if it is
        zero."""
        return self.counted - int(self.since[rank]) if self.since[rank] >= 0 else 0

    def interval(self, rank: int) -> list[Judged]:
        """Return the windows since the rank's CUSUM rose above zero, beginning with the first slow window.

        A CUSUM can rise above zero by chance long before a fault. Windows before the fault would make its cost look
        smaller.
        """
        length = min(self.counted - int(self.since[rank]), INTERVAL_WINDOWS, len(self.history))
        windows = list(self.history)[-length:] if length > 0 and self.since[rank] >= 0 else []
        slow = (index for index, judged in enumerate(windows) if judged.sigmas[rank] >= HIT_SIGMAS)
        return windows[next(slow, 0) :]


def rest(steps: StepTable, after: int) -> StepTable:
    """Return the table of steps without its first `after` steps."""
    if not after:
        return steps
    return StepTable(*(None if array is None else array[after:] for array in _arrays_of(steps)))  # type: ignore[arg-type]


def behind(first: StepTable, then: StepTable) -> StepTable:
    """Join two tables of steps of the same ranks. A column that only one table has is filled with NaN for the other."""
    joined: list[FloatArray | IntArray | None] = []
    for one, other in zip(_arrays_of(first), _arrays_of(then), strict=True):
        if one is None and other is None:
            joined.append(None)
        else:
            one = np.full(first.seconds.shape, np.nan) if one is None else one
            other = np.full(then.seconds.shape, np.nan) if other is None else other
            joined.append(np.concatenate([one, other]))
    return StepTable(*joined)  # type: ignore[arg-type]


def _arrays_of(steps: StepTable) -> tuple[FloatArray | IntArray | None, ...]:
    return tuple(getattr(steps, name) for name in StepTable.__slots__)


# --- over a restart --------------------------------------------------------------------------------------------------


_KEYS = {
    "active": "standing",
    "abstained": "told",
    "reported_causes": "told_causes",
    "node_verdicts": "told_nodes",
}
"""Names in snapshots of those fields that have another name in the code. Snapshots have kept these names since release
0.1.0."""


class _Kept(msgspec.Struct, rename=_KEYS):
    """State of one gang in a snapshot. Arrays are little-endian float64, with the name of their field in Baseline or
    GangState as key."""

    attempt: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    seen_ns: int
    best_step_seconds: float
    steps: int
    step_seconds: float
    shared_wait: float
    role_known: bool
    final: bool
    roles: tuple[int, ...]
    layout_known: bool
    work: tuple[float, ...] | None
    arrays: dict[str, bytes]
    active: dict[int, tuple[str, int, float]]
    abstained: tuple[int, ...]
    longest_episode: int = 0  # absent in snapshots of 0.1.0; so is reported_causes
    reported_causes: tuple[int, ...] = ()
    node_verdicts: dict[int, tuple[str, str, tuple[int, ...]]] = {}  # also absent in the next release


class _Snapshot(msgspec.Struct):
    version: int
    gangs: dict[str, _Kept]
    roles: dict[str, tuple[tuple[int, ...], bytes]]


Roles = dict[str, tuple[tuple[int, ...], FloatArray]]
"""For each gang, its ranks, and the log of each rank's compute time relative to the gang's median in an earlier
attempt."""

_ARRAYS = ("compute", "wait", "own_spread", "parts", "faults", "parts_compute", "from_start", "reference", "in_most")
_SUMS = ("score",)


def dump(watched: Mapping[str, GangState], roles: Roles) -> bytes:
    """Encode the state of all gangs as a snapshot."""
    kept = {name: _keep(one, one.baseline) for name, one in watched.items() if one.baseline is not None}
    packed_roles = {name: (ranks, place.astype("<f8").tobytes()) for name, (ranks, place) in roles.items()}
    return msgspec.msgpack.encode(_Snapshot(SNAPSHOT_VERSION, kept, packed_roles))


def _keep(watched: GangState, baseline: Baseline) -> _Kept:
    arrays = {name: getattr(baseline, name) for name in _ARRAYS} | {name: getattr(watched, name) for name in _SUMS}
    return _Kept(
        attempt=watched.attempt,
        ranks=watched.ranks,
        nodes=tuple(watched.where.names[i] for i in watched.where.index),
        seen_ns=watched.seen_ns,
        best_step_seconds=watched.best_step_seconds,
        steps=baseline.steps,
        step_seconds=baseline.step_seconds,
        shared_wait=baseline.shared_wait,
        role_known=baseline.role_known,
        final=baseline.final,
        roles=tuple(watched.where.role.tolist()),
        layout_known=watched.where.layout_known,
        work=None if watched.work is None else astuple(watched.work),
        arrays={name: array.astype("<f8").tobytes() for name, array in arrays.items()},
        active={r: (s.verdict_id, s.first_ns, s.reported_confidence) for r, s in watched.active.items()},
        reported_causes=tuple(sorted(rank for rank, active in watched.active.items() if active.reported_cause)),
        node_verdicts={r: (s.node, s.cause, tuple(sorted(s.others))) for r, s in watched.active.items() if s.node},
        abstained=tuple(sorted(watched.abstained)),
        longest_episode=watched.longest_episode,
    )


def load(data: bytes) -> tuple[dict[str, GangState], Roles]:
    """Decode a snapshot that `dump` encoded. Raises ValueError if the bytes are not a snapshot of this version."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        if snapshot.version != SNAPSHOT_VERSION:
            raise ValueError(f"version {snapshot.version}, this build reads {SNAPSHOT_VERSION}")
        watched = {name: _unpack(kept) for name, kept in snapshot.gangs.items()}
        roles: Roles = {}
        for name, (ranks, place) in snapshot.roles.items():
            roles[name] = (ranks, _floats(place, len(ranks)))
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"straggler snapshot of {len(data)} bytes: {error}") from None
    return watched, roles


def _unpack(kept: _Kept) -> GangState:
    count = len(kept.ranks)
    if len(kept.nodes) != count or len(kept.roles) != count or not _of(count, kept.active, kept.node_verdicts):
        raise ValueError(f"{count} ranks, {len(kept.nodes)} nodes, verdicts on {sorted(kept.active)}")
    unknown = np.full(count, np.nan).astype("<f8").tobytes()
    unchanged = np.zeros(count).astype("<f8").tobytes()
    packed = {"faults": unknown, "in_most": unchanged} | kept.arrays  # absent in snapshots of earlier releases
    arrays = {name: _floats(packed[name], count, 3 if name == "parts" else 1) for name in (*_ARRAYS, *_SUMS)}
    roles = np.array(kept.roles, np.int64) if kept.layout_known else None
    shape = Shape("", kept.attempt, np.array(kept.ranks, np.int64), kept.nodes, stage=roles)
    watched = GangState(kept.attempt, kept.ranks, places(shape), kept.seen_ns)
    watched.work = None if kept.work is None else Work(*kept.work)
    watched.forget_course()
    watched.baseline = Baseline(
        steps=kept.steps,
        step_seconds=kept.step_seconds,
        shared_wait=kept.shared_wait,
        compute=arrays["compute"],
        wait=arrays["wait"],
        own_spread=arrays["own_spread"],
        parts=arrays["parts"],
        faults=arrays["faults"],
        parts_compute=arrays["parts_compute"],
        from_start=arrays["from_start"] > 0,
        reference=arrays["reference"],
        in_most=arrays["in_most"],
        role_known=kept.role_known,
        final=kept.final,
    )
    watched.best_step_seconds = kept.best_step_seconds
    watched.score = arrays["score"]
    watched.since = np.where(watched.score > 0, 0, -1).astype(np.int64)
    watched.active = {
        rank: ActiveVerdict(*verdict, reported_cause=rank in kept.reported_causes)
        for rank, verdict in kept.active.items()
    }
    for rank, (node, cause, others) in kept.node_verdicts.items():
        active = watched.active[rank]
        active.node, active.cause, active.others = node, cause, set(others)
    watched.abstained = set(kept.abstained)
    watched.longest_episode = kept.longest_episode
    return watched


def _of(count: int, active: Mapping[int, object], nodes: Mapping[int, tuple[str, str, tuple[int, ...]]]) -> bool:
    """Return whether the verdicts are valid for a gang of `count` ranks: all indices of ranks are below this number."""
    others = (other for _, _, those in nodes.values() for other in those)
    return nodes.keys() <= active.keys() and all(0 <= rank < count for rank in (*active, *others))


def _floats(content: bytes, count: int, columns: int = 1) -> FloatArray:
    array = np.frombuffer(content, "<f8").astype(np.float64)
    if len(array) != count * columns:
        raise ValueError(f"{len(array)} values, expected {count} x {columns}")
    return array if columns == 1 else array.reshape(count, columns)
