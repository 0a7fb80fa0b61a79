"""Look: what is new in a fleet since the last look, as telemetry for the detectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.fleet import Fleet
from scheduler_feedback.core.gangs import Consumed, Gang, IntArray
from scheduler_feedback.core.telemetry import (
    FEATURES,
    Counters,
    JobTelemetry,
    NodeEvent,
    Shape,
    StepTable,
    Telemetry,
    no_counters,
)

WINDOW_NS = 1_000_000_000
"""Frames come once a second."""

SAME_CLOCK_NS = 1_000_000_000
"""A node's wall clock that moved against its monotonic one by less than this was adjusted; by more, it was set anew."""


NO_DEVICE = ("", "", -1)


@dataclass(slots=True)
class _Seen:
    """What was handed out of one attempt: sequence of its newest step, its shape, and each rank's clock offset [n]."""

    attempt: int
    cursor: int
    shape: Shape
    offset_ns: IntArray
    stepped: bool = False


class Look:
    """Turns a fleet into a stream of telemetry. One reader: what was handed out once is not handed out again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen: dict[str, _Seen] = {}
        self._window_ns = 0

    def next(self, now_ns: int, received_now_ns: int | None = None) -> Telemetry:
        """What came since the last call. now_ns: wall time; received_now_ns: the same instant on the clock by which
        frames were received, None for the newest receipt."""
        fleet = self._fleet
        for name in self._seen.keys() - fleet.gangs.keys():
            del self._seen[name]
        jobs = tuple(self._job(gang) for gang in fleet.gangs.values() if len(gang))
        events = tuple(NodeEvent(node, event) for node, event in fleet.take_events())
        here_ns = fleet.newest_received_ns if received_now_ns is None else received_now_ns
        heard = {name: now_ns - (here_ns - node.received_ns) for name, node in fleet.nodes.items()}
        return Telemetry(now_ns, jobs, self._counters(jobs, now_ns), events, heard)

    def _counters(self, jobs: tuple[JobTelemetry, ...], now_ns: int) -> Counters:
        """One window a second: what each node's newest frame since the last one says of its ranks."""
        ranks = sum(len(job.shape) for job in jobs)
        if now_ns - self._window_ns < WINDOW_NS:
            return no_counters(ranks)
        self._window_ns = now_ns
        values = np.full((len(FEATURES), 1, ranks), np.nan, np.float32)
        place = {}
        at = 0
        for job in jobs:
            name, attempt = job.shape.job, job.shape.attempt
            place.update({(name, attempt, rank): at + k for k, rank in enumerate(job.shape.ranks.tolist())})
            at += len(job.shape)
        for counts in self._fleet.counts.values():
            if not counts.fresh:
                continue
            counts.fresh = False
            for index, member in enumerate(counts.members):
                column = place.get((member.gang, member.attempt, member.rank))
                if column is not None:
                    values[:, 0, column] = counts.values[:, index]
        return Counters(np.array([now_ns], np.int64), WINDOW_NS * 1e-9, values)

    def _job(self, gang: Gang) -> JobTelemetry:
        seen = self._of(gang)
        shape, offset_ns = seen.shape, seen.offset_ns
        steps = gang.completed(seen.cursor)
        table = None
        if steps is not None:
            seen.cursor, seen.stepped = int(steps.sequence[-1]), True
            table = StepTable(steps.number, steps.end_ns + offset_ns, steps.seconds, steps.wait_seconds)
        elif seen.stepped:
            none = np.zeros((0, len(shape)))
            table = StepTable(np.zeros(0, np.int64), np.zeros((0, len(shape)), np.int64), none, none)

        def consumed(at_ns: IntArray) -> Consumed:
            found = gang.consumed(at_ns - offset_ns)
            return Consumed(found.values, found.at_ns + offset_ns)

        return JobTelemetry(
            shape,
            table,
            _walled(gang.open_steps(), offset_ns),
            _walled(gang.open_collectives(), offset_ns),
            gang.newest_steps(),
            consumed,
            np.array([self._fleet.shares_machine(node) for node in shape.nodes], np.bool_),
            self._fleet.frames_of(gang),
        )

    def _devices(self, gang: Gang) -> dict[int, tuple[str, str, int]]:
        """GPU, NIC and rail of each rank whose GPU is known."""
        found = {}
        for node in dict.fromkeys(gang.nodes):
            counts = self._fleet.counts.get(node)
            for member, device in zip(counts.members, counts.devices, strict=True) if counts is not None else ():
                if (member.gang, member.attempt) == (gang.name, gang.attempt) and device[0]:
                    found[member.rank] = device
        return found

    def _changed(self, shape: Shape, gang: Gang) -> bool:
        devices = self._devices(gang)
        return bool(devices) and shape.gpus != tuple(devices.get(rank, NO_DEVICE)[0] for rank in gang.ranks)

    def _shape(self, gang: Gang) -> Shape:
        devices = self._devices(gang)
        known = [devices.get(rank, NO_DEVICE) for rank in gang.ranks] if devices else []
        # Virtual nodes share a machine with each other and with whatever else runs on it: who disturbs cannot be told.
        sharing = {"host": tuple("" if self._fleet.shares_machine(node) else node for node in gang.nodes)}
        if known:
            sharing["nic"] = tuple(nic for _, nic, _ in known)
        rails = np.array([rail for _, _, rail in known], np.int64) if known else None
        return Shape(
            gang.name, gang.attempt, np.array(gang.ranks, np.int64), gang.nodes, tuple(gpu for gpu, _, _ in known),
            tuple(nic for _, nic, _ in known), rail=rails, sharing=sharing,
        )  # fmt: skip

    def _of(self, gang: Gang) -> _Seen:
        seen = self._seen.get(gang.name)
        offsets = {node: self._fleet.nodes[node].wall_of(0) for node in set(gang.nodes) & self._fleet.nodes.keys()}
        offset_ns = np.array([offsets.get(node, 0) for node in gang.nodes], np.int64)
        if seen is None or seen.attempt != gang.attempt:
            seen = self._seen[gang.name] = _Seen(gang.attempt, 0, self._shape(gang), offset_ns)
        elif len(seen.shape) != len(gang) or seen.shape.nodes != gang.nodes or self._changed(seen.shape, gang):
            seen.shape, seen.offset_ns = self._shape(gang), offset_ns
        else:
            moved = np.abs(offset_ns - seen.offset_ns) > SAME_CLOCK_NS
            seen.offset_ns = np.where(moved, offset_ns, seen.offset_ns)
        seen.cursor = min(seen.cursor, gang.newest_sequence)
        return seen


def _walled(opened: IntArray, offset_ns: IntArray) -> IntArray:
    """Times of what is open on the wall clock; -1 stays -1."""
    times = np.where(opened[:, :1] >= 0, opened[:, 1:] + offset_ns[:, None], -1)
    return np.concatenate([opened[:, :1], times], axis=1)
