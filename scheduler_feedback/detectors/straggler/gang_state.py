"""What the straggler detector remembers of a gang, and what of it outlives a restart of the controller.

Kept over a restart: baselines, sums, standing verdicts, and the ranks' places in earlier attempts. Not kept: windows;
an alarm gathers its evidence anew, which takes seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.detectors.steps.baseline import SKIPPED_STEPS, Baseline
from scheduler_feedback.detectors.steps.expected_work import Work
from scheduler_feedback.detectors.steps.windows import Places, Window, places
from scheduler_feedback.detectors.straggler.alarm_checks import HIT_SIGMAS, Judged

RECENT_WINDOWS = 8
"""Windows over which the present unrest of the others is measured."""

INTERVAL_WINDOWS = 24
"""Evidence looks back no further than this, even where the sum began to rise earlier."""

HISTORY_WINDOWS = 64

SNAPSHOT_VERSION = 2


@dataclass(slots=True)
class Standing:
    """A verdict that stands: its id, wall time of the alarm's beginning, the highest confidence it was told with, and
    whether a cause was. node: where several ranks of one are slow; cause: of that; others: indices of ranks there that
    it speaks of, too."""

    verdict_id: str
    first_ns: int
    told_confidence: float
    told_cause: bool = False
    node: str = ""
    cause: str = ""
    others: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Watched:
    """What the detector remembers of one attempt of a gang. Arrays are float64 or int64 [n], by rising rank.

    best_step_seconds: the least mean of a few windows, at the work of the warm-up; light_since_ns: since when all ranks
    have computed less than that, None while they don't.
    shape: what was last seen of it. pending: finished steps that are in no window yet. to_skip: how many of the
    attempt's first steps are still to be passed over. work: what ranks should take for what they are given.
    score: the CUSUM; since: number of the window in which it left zero, -1 at zero; refused: windows in a row in which
    an alarm failed the gates. counted: windows judged so far. longest_episode: the most windows for which any rank's
    sum stood above zero before it fell back. standing: verdicts by index of the rank. told: ranks (-1: the gang) of
    which an abstention was told in the present episode. samples: of the catalogue, and how many windows had been judged
    when they were made: ranks are many, and looked at more often than they make windows.
    """

    attempt: int
    ranks: tuple[int, ...]
    where: Places
    seen_ns: int
    shape: Shape | None = None
    pending: StepTable | None = None
    to_skip: int = SKIPPED_STEPS
    work: Work | None = None
    warm_up: list[Window] = field(default_factory=list)
    baseline: Baseline | None = None
    best_step_seconds: float = np.inf
    light_since_ns: int | None = None
    history: deque[Judged] = field(default_factory=lambda: deque(maxlen=HISTORY_WINDOWS))
    shifts: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_WINDOWS))
    counted: int = 0
    longest_episode: int = 0
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    since: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    refused: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    standing: dict[int, Standing] = field(default_factory=dict)
    slow_windows: int = 0
    calm_windows: int = 0
    told: set[int] = field(default_factory=set)
    samples: tuple[int, tuple[Sample, ...]] = (-1, ())

    def standing_on(self, rank: int) -> Standing | None:
        """The verdict on the rank; else the surest on its node as a whole, where there is one."""
        if rank in self.standing or not self.standing:
            return self.standing.get(rank)
        node = self.where.names[self.where.index[rank]]
        of_node = [standing for standing in self.standing.values() if standing.node == node]
        return max(of_node, key=lambda standing: (standing.told_cause, standing.told_confidence), default=None)

    @property
    def accused(self) -> set[int]:
        """All ranks that verdicts speak of."""
        return self.standing.keys() | {other for standing in self.standing.values() for other in standing.others}

    def forget_course(self) -> None:
        """Sums at zero, as after the warm-up."""
        count = len(self.ranks)
        self.score = np.zeros(count)
        self.since = np.full(count, -1, np.int64)
        self.refused = np.zeros(count, np.int64)

    def take_in(self, steps: StepTable) -> StepTable:
        """Steps waiting for a window, with these behind them; the attempt's first ones are passed over."""
        skipped = min(self.to_skip, len(steps))
        self.to_skip -= skipped
        steps = rest(steps, skipped)
        return steps if self.pending is None or not len(self.pending) else behind(self.pending, steps)

    def episode(self, rank: int) -> int:
        """Windows since the rank's sum left zero; 0 at zero."""
        return self.counted - int(self.since[rank]) if self.since[rank] >= 0 else 0

    def interval(self, rank: int) -> list[Judged]:
        """Judged windows from the first slow one on, since the rank's sum left zero.

        A sum can leave zero by chance long before the fault; what lay between would dilute what the fault costs.
        """
        length = min(self.counted - int(self.since[rank]), INTERVAL_WINDOWS, len(self.history))
        windows = list(self.history)[-length:] if length > 0 and self.since[rank] >= 0 else []
        slow = (index for index, judged in enumerate(windows) if judged.sigmas[rank] >= HIT_SIGMAS)
        return windows[next(slow, 0) :]


def rest(steps: StepTable, after: int) -> StepTable:
    """The steps without the first `after`."""
    if not after:
        return steps
    return StepTable(*(None if array is None else array[after:] for array in _arrays_of(steps)))  # type: ignore[arg-type]


def behind(first: StepTable, then: StepTable) -> StepTable:
    """Two tables of the same ranks, one behind the other; what only one of them has is unknown in the other."""
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


class _Kept(msgspec.Struct):
    """One gang. Arrays by name of their field in Baseline or Watched, as little-endian float64."""

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
    work: tuple[float, float, float] | None
    arrays: dict[str, bytes]
    standing: dict[int, tuple[str, int, float]]
    told: tuple[int, ...]
    longest_episode: int = 0  # snapshots of 0.1.0 don't have it, nor the next
    told_causes: tuple[int, ...] = ()
    told_nodes: dict[int, tuple[str, str, tuple[int, ...]]] = {}  # nor those of the one after it


class _Snapshot(msgspec.Struct):
    version: int
    gangs: dict[str, _Kept]
    roles: dict[str, tuple[tuple[int, ...], bytes]]


Roles = dict[str, tuple[tuple[int, ...], FloatArray]]
"""Gang -> its ranks and their log computing time against the gang's median in an earlier attempt."""

_ARRAYS = ("compute", "wait", "own_spread", "parts", "parts_compute", "from_start", "reference")
_SUMS = ("score",)


def dump(watched: Mapping[str, Watched], roles: Roles) -> bytes:
    """Everything that outlives a restart."""
    kept = {name: _keep(one, one.baseline) for name, one in watched.items() if one.baseline is not None}
    packed_roles = {name: (ranks, place.astype("<f8").tobytes()) for name, (ranks, place) in roles.items()}
    return msgspec.msgpack.encode(_Snapshot(SNAPSHOT_VERSION, kept, packed_roles))


def _keep(watched: Watched, baseline: Baseline) -> _Kept:
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
        work=None if watched.work is None else (watched.work.fixed, watched.work.a_token, watched.work.a_square),
        arrays={name: array.astype("<f8").tobytes() for name, array in arrays.items()},
        standing={r: (s.verdict_id, s.first_ns, s.told_confidence) for r, s in watched.standing.items()},
        told_causes=tuple(sorted(rank for rank, standing in watched.standing.items() if standing.told_cause)),
        told_nodes={r: (s.node, s.cause, tuple(sorted(s.others))) for r, s in watched.standing.items() if s.node},
        told=tuple(sorted(watched.told)),
        longest_episode=watched.longest_episode,
    )


def load(data: bytes) -> tuple[dict[str, Watched], Roles]:
    """What `dump` kept. Raises ValueError where the bytes are not a snapshot of this version."""
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


def _unpack(kept: _Kept) -> Watched:
    count = len(kept.ranks)
    if len(kept.nodes) != count or len(kept.roles) != count or not _of(count, kept.standing, kept.told_nodes):
        raise ValueError(f"{count} ranks, {len(kept.nodes)} nodes, verdicts on {sorted(kept.standing)}")
    arrays = {name: _floats(kept.arrays[name], count, 3 if name == "parts" else 1) for name in (*_ARRAYS, *_SUMS)}
    roles = np.array(kept.roles, np.int64) if kept.layout_known else None
    shape = Shape("", kept.attempt, np.array(kept.ranks, np.int64), kept.nodes, stage=roles)
    watched = Watched(kept.attempt, kept.ranks, places(shape), kept.seen_ns)
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
        parts_compute=arrays["parts_compute"],
        from_start=arrays["from_start"] > 0,
        reference=arrays["reference"],
        role_known=kept.role_known,
        final=kept.final,
    )
    watched.best_step_seconds = kept.best_step_seconds
    watched.score = arrays["score"]
    watched.since = np.where(watched.score > 0, 0, -1).astype(np.int64)
    watched.standing = {
        rank: Standing(*verdict, told_cause=rank in kept.told_causes) for rank, verdict in kept.standing.items()
    }
    for rank, (node, cause, others) in kept.told_nodes.items():
        standing = watched.standing[rank]
        standing.node, standing.cause, standing.others = node, cause, set(others)
    watched.told = set(kept.told)
    watched.longest_episode = kept.longest_episode
    return watched


def _of(count: int, standing: Mapping[int, object], nodes: Mapping[int, tuple[str, str, tuple[int, ...]]]) -> bool:
    """Whether all ranks that verdicts speak of are among so many."""
    others = (other for _, _, those in nodes.values() for other in those)
    return nodes.keys() <= standing.keys() and all(0 <= rank < count for rank in (*standing, *others))


def _floats(content: bytes, count: int, columns: int = 1) -> FloatArray:
    array = np.frombuffer(content, "<f8").astype(np.float64)
    if len(array) != count * columns:
        raise ValueError(f"{len(array)} values, expected {count} x {columns}")
    return array if columns == 1 else array.reshape(count, columns)
