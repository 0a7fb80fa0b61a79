"""Arbiter: makes sure that at most one active verdict explains the slowdown of a rank.

The detectors propose verdicts. Then the arbiter publishes each proposal, or refuses it because a better verdict
explains the same slowdown. For the same reason it withdraws active verdicts. A verdict about a pipeline stage loses
only the ranks whose slowdown a better verdict explains. The result does not depend on the order of the proposals. A
detector forgets a refused verdict and may propose it again, so that it can be published once the better verdict is
cleared.

Verdicts stay active across a restart of the controller. After a restart a detector may report the same verdict under
another id: the arbiter publishes it under the first id.

A verdict explains the slowdown of the ranks that it names, in one part: the rank's own devices, its host, or the
network that it shares with other jobs. Three kinds of verdicts explain no rank's slowdown and are always published:
hangs, faults of a device that does not slow a job yet, and patterns in the steps of the whole job. A job that reports
no steps has one measured slowdown. A cause within such a job therefore explains the slowdown of all its ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from agent.schema.verdicts.kinds import ACCUSING, OF_OWN_JOB
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import Cover, PartFault, Proposal, Published, Rank
from scheduler_feedback.detectors.counters.cause_signatures import OF_HOST
from scheduler_feedback.detectors.counters.fault_history import FaultHistory
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.detectors.straggler.rotating_slowness import IN_TURN

RESTORED_NS = 600_000_000_000
"""Time in ns after a restart (600 s) for which a restored verdict is kept, although its job does not report or its
detector has not reported the verdict again."""

LEARNS_AGAIN = frozenset({"hang", "interference", "link", "workload"})
"""Detectors that must detect their verdicts again after a restart, because their snapshots do not contain them. The
health detector is not included: its verdicts last until the part is replaced or the attempt ends."""

KEEPS_IDS = "straggler"
"""Name of the detector whose snapshot contains its active verdicts, so that it uses the same ids after a restart."""

SNAPSHOT_VERSION = 1

SLOWING = ACCUSING - {Kind.HANG}
"""Kinds of verdicts that explain a slowdown by a node or device."""


class Part(StrEnum):
    """Part of the cluster that a verdict calls slow."""

    DEVICE = "device"
    HOST = "host"
    NETWORK = "network"


ALL_PARTS = frozenset(Part)
OF_RANK = frozenset({Part.DEVICE, Part.HOST})


@dataclass(frozen=True, slots=True)
class Active:
    """An active or proposed verdict, with the ranks and parts whose slowdown it explains."""

    verdict: Verdict
    ranks: frozenset[int]
    """Ranks that the verdict names or covers; empty if it is about the whole job or about a node."""
    parts: frozenset[Part]
    """Parts of the cluster that are slow according to the verdict; empty if the verdict explains no rank's slowdown."""
    of_all_ranks: bool
    """Whether the verdict is about a cause within a job that reports no steps. It then explains the slowdown of all
    ranks."""
    restored: bool = False
    """Whether the verdict is known from a snapshot only: its detector has not reported it again since the restart."""

    def is_same(self, verdict: Verdict) -> bool:
        """Return whether `verdict` makes the same accusation. Used for verdicts that a detector reports under another
        id after a restart."""
        if verdict.detector == KEEPS_IDS or _accusation(self.verdict) != _accusation(verdict):
            return False
        ranks = explained(verdict).ranks
        return not ranks.isdisjoint(self.ranks) or not (ranks or self.ranks)

    def overlaps(self, other: Active) -> bool:
        """Return whether the two verdicts explain the same slowdown of a rank. Both verdicts are about one attempt.

        Two verdicts about the job's own causes (for example a stage with more work) never overlap, because such causes
        can add up.
        """
        if self.verdict.kind in OF_OWN_JOB and other.verdict.kind in OF_OWN_JOB:
            return False
        return not self.parts.isdisjoint(other.parts) and (
            self.of_all_ranks or other.of_all_ranks or not self.ranks.isdisjoint(other.ranks)
        )


def explained(verdict: Verdict, also: Iterable[int] = (), restored: bool = False) -> Active:
    """Return the verdict with the ranks and parts whose slowdown it explains.

    also: further ranks to which the verdict applies. restored: whether the verdict comes from a snapshot.
    """
    ranks = frozenset((*verdict.ranks, verdict.rank, *also)) - {-1}
    of_all_ranks = verdict.kind in OF_OWN_JOB and verdict.detected_step < 0
    return Active(verdict, ranks, ALL_PARTS if of_all_ranks else _parts(verdict, ranks), of_all_ranks, restored)


def _accusation(one: Verdict) -> tuple[str | int, ...]:
    cause = one.cause if one.kind in OF_OWN_JOB else ""  # of hardware it can become known later
    return one.detector, one.kind, one.gang, one.attempt, one.node, one.device, one.aggressor, cause


def _parts(verdict: Verdict, ranks: frozenset[int]) -> frozenset[Part]:
    if verdict.kind is Kind.HANG or (verdict.kind is Kind.HEALTH and verdict.slowdown <= 1.0) or not ranks:
        return frozenset()
    if verdict.kind is Kind.INTERFERENCE:
        return frozenset({Part.HOST if verdict.cause is Cause.HOST_CONTENTION else Part.NETWORK})
    if verdict.kind in OF_OWN_JOB or verdict.cause is Cause.UNKNOWN or not verdict.node:  # or of ranks on several nodes
        return OF_RANK
    return frozenset({Part.HOST if verdict.cause in OF_HOST or verdict.level == "node" else Part.DEVICE})


@dataclass(slots=True)
class _Tick:
    """Proposals of one tick, in an order that does not depend on the detectors' order."""

    results: tuple[Proposal, ...]
    proposed: dict[str, Active] = field(default_factory=dict)
    """Newest version of each proposed verdict, by id."""
    over: set[str] = field(default_factory=set)
    """Ids of verdicts that their detectors cleared in this tick and did not propose again."""

    def read(self, active: Mapping[str, Active]) -> None:
        """Collect the proposals and the cleared verdicts."""
        for one in self.results:
            if isinstance(one, Verdict):
                known = self.proposed.get(one.verdict_id) or active.get(one.verdict_id)
                self.proposed[one.verdict_id] = explained(one, () if known is None else known.ranks)
                self.over.discard(one.verdict_id)
            elif isinstance(one, Cleared):
                self.over.add(one.verdict_id)
            elif isinstance(one, Cover):
                known = self.proposed.get(one.verdict_id) or active.get(one.verdict_id)
                if known is not None:
                    ranks = known.ranks.union(one.ranks)
                    self.proposed[one.verdict_id] = explained(known.verdict, ranks, known.restored)


class Arbiter:
    """Decides which verdicts of one stream are published. Keeps the active verdicts, and the fault history of parts and
    nodes."""

    def __init__(self) -> None:
        self.published = Published()
        self.fault_history = FaultHistory()
        self._active: dict[str, Active] = {}
        self._first_ids: dict[str, str] = {}
        """Maps the id that a detector uses since the restart to the id that its verdict had before the restart."""
        self._restored_until_ns = 0

    def resolve(
        self, results: Mapping[str, Sequence[Proposal]], attempts: Mapping[str, int], now_ns: int
    ) -> list[Finding]:
        """Decide which proposals are published, and return the detector results to publish.

        results: proposals by name of the detector. attempts: running attempt of each job; verdicts on other attempts
        are forgotten.
        """
        before = len(self._active)
        expired = self._forget(attempts, now_ns)
        changed = len(self._active) < before
        tick = _Tick(tuple(self._with_first_id(one) for name in sorted(results) for one in results[name]))
        tick.read(self._active)
        accepted = _accepted(self._active, tick) if tick.proposed else dict(self._active)
        gone = self._active.keys() - accepted.keys()
        withdrawn = sorted(gone - (tick.over - tick.proposed.keys()))
        refused = frozenset(tick.proposed.keys() - accepted.keys()).union(withdrawn)
        refused |= {newer for newer, first in self._first_ids.items() if first in refused}
        found: list[Finding] = [
            *expired,
            *(_withdrawal(tick.proposed.get(name, self._active[name]), accepted, now_ns) for name in withdrawn),
        ]
        found += [one.verdict for name, one in sorted(accepted.items()) if self._is_narrowed(name, one, tick)]
        for one in tick.results:
            if isinstance(one, Abstention):
                found.append(one)
            elif isinstance(one, PartFault):
                if one.verdict_id in accepted:
                    self.fault_history.remember(one.device, one.node, one.cause, one.at_ns)
            elif isinstance(one, Verdict) and one.verdict_id in accepted:
                found.append(accepted[one.verdict_id].verdict if one.kind in OF_OWN_JOB else one)
            elif isinstance(one, Cleared) and one.verdict_id not in refused:
                found.append(one)
        if changed or tick.proposed or tick.over or refused != self.published.refused:
            self._active = {name: one for name, one in accepted.items() if name not in tick.over}
            self._first_ids = {newer: first for newer, first in self._first_ids.items() if first in self._active}
            self._publish(refused)
        return found

    def dump(self) -> bytes:
        """Encode the active verdicts, and the ids of refused verdicts, as a snapshot."""
        kept = [(one.verdict, sorted(one.ranks)) for _, one in sorted(self._active.items())]
        return msgspec.msgpack.encode((SNAPSHOT_VERSION, kept, sorted(self.published.refused)))

    def load(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot."""
        try:
            version, kept, refused = msgspec.msgpack.decode(
                data, type=tuple[int, list[tuple[Verdict, list[int]]], list[str]]
            )
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"active verdicts: {error}") from None
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"active verdicts of version {version}")
        self._active = {one.verdict_id: explained(one, ranks, restored=True) for one, ranks in kept}
        self._first_ids = {}
        self._restored_until_ns = 0
        self._publish(frozenset(refused))

    def _is_narrowed(self, name: str, one: Active, tick: _Tick) -> bool:
        """Return whether an active verdict has lost some of its ranks and its detector did not propose it again."""
        return name not in tick.proposed and one is not self._active[name]

    def _with_first_id(self, one: Proposal) -> Proposal:
        """Return the result under the id that its verdict had before the restart, if it had another one."""
        if isinstance(one, Abstention):
            return one
        if isinstance(one, Verdict) and not (one.verdict_id in self._active or one.verdict_id in self._first_ids):
            restored = {name: active for name, active in self._active.items() if active.restored}
            free = sorted(restored.keys() - self._first_ids.values())
            if (first := next((name for name in free if restored[name].is_same(one)), None)) is not None:
                self._first_ids[one.verdict_id] = first
        first = self._first_ids.get(one.verdict_id)
        return one if first is None else replace(one, verdict_id=first)

    def _forget(self, attempts: Mapping[str, int], now_ns: int) -> list[Cleared]:
        """Forget verdicts on ended attempts. Clear restored verdicts that were not reported again in time, and return
        these clearings."""
        if any(one.restored for one in self._active.values()):
            self._restored_until_ns = self._restored_until_ns or now_ns + RESTORED_NS
        expired = []
        for name, one in sorted(self._active.items()):
            verdict = one.verdict
            is_recent = one.restored and now_ns <= self._restored_until_ns
            unknown = verdict.attempt if is_recent else -1
            if verdict.gang and attempts.get(verdict.gang, unknown) != verdict.attempt:
                del self._active[name]
            elif one.restored and not is_recent and verdict.detector in LEARNS_AGAIN:
                del self._active[name]
                reason = f"not detected for {RESTORED_NS // 1_000_000_000} s after a restart of the controller"
                expired.append(Cleared(name, verdict.gang, now_ns, reason, verdict.last_step))
        return expired

    def _publish(self, refused: frozenset[str]) -> None:
        accused: set[Rank] = set()
        disturbed, rotating = set(), dict[str, Cause]()
        for one in self._active.values():
            verdict = one.verdict
            if verdict.kind in SLOWING:
                accused |= {(verdict.gang, verdict.attempt, rank) for rank in one.ranks or (-1,)}
            elif verdict.kind is Kind.INTERFERENCE:
                disturbed.add(verdict.gang)
            elif (
                verdict.kind in OF_OWN_JOB and verdict.cause in IN_TURN and rotating.get(verdict.gang) != FIRST_IN_TURN
            ):
                rotating[verdict.gang] = verdict.cause
        self.published = Published(frozenset(accused), frozenset(disturbed), rotating, refused)


FIRST_IN_TURN = next(iter(IN_TURN))


def _accepted(active: Mapping[str, Active], tick: _Tick) -> dict[str, Active]:
    """Return, by id, all active and proposed verdicts that do not overlap a better verdict."""
    candidates = {name: one for name, one in active.items() if name not in tick.over} | tick.proposed
    changed = {_attempt(one) for one in tick.proposed.values()}
    accepted = {name: one for name, one in candidates.items() if _attempt(one) not in changed}
    by_attempt: dict[tuple[str, int], list[Active]] = {attempt: [] for attempt in changed}

    def rank(name: str) -> tuple[bool | float | str, ...]:
        verdict = candidates[name].verdict
        return (
            name in tick.over,
            verdict.kind in OF_OWN_JOB,
            verdict.cause is Cause.UNKNOWN,
            verdict.confidence < ACTING_CONFIDENCE,
            name not in active,
            -verdict.confidence,
            name,
        )

    for name in sorted(candidates.keys() - accepted.keys(), key=rank):
        of_attempt = by_attempt[_attempt(candidates[name])]
        one = _without_explained(candidates[name], of_attempt)
        if not any(one.overlaps(better) for better in of_attempt):
            accepted[name] = one
            of_attempt.append(one)
    return accepted


def _without_explained(one: Active, better: Iterable[Active]) -> Active:
    """Return a verdict about a stage without the ranks whose slowdown better verdicts explain, if any ranks remain."""
    if one.verdict.rank >= 0 or one.verdict.kind not in OF_OWN_JOB or one.of_all_ranks:
        return one
    ranks = one.ranks.difference(*(other.ranks for other in better if one.overlaps(other)))
    if not ranks or ranks == one.ranks:
        return one
    return explained(replace(one.verdict, ranks=tuple(sorted(ranks))), restored=one.restored)


def _attempt(one: Active) -> tuple[str, int]:
    return one.verdict.gang, one.verdict.attempt


def _withdrawal(one: Active, accepted: Mapping[str, Active], now_ns: int) -> Cleared:
    same_attempt = (other for other in accepted.values() if _attempt(other) == _attempt(one))
    better = next(other.verdict for other in same_attempt if one.overlaps(other))
    reason = f"a verdict of kind {better.kind} explains the slowdown better: {better.verdict_id}"
    over = one.verdict
    return Cleared(over.verdict_id, over.gang, now_ns, reason, over.last_step, explained_by=better.verdict_id)
