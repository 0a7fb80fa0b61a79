"""Declared parts: which part of a slot a job needs, and which parts of a slot the jobs on it leave.

A job declares a share of a slot's computing power (`JobSpec.slot_share`), its device memory
(`JobSpec.slot_memory_mib`), or both. The learnt need of its class replaces a memory that it does not declare
(``speeds/learnt_memory``). On a node whose device memory is known, a job shares a slot only if its memory is known; on
another node, only if it declares a share. Otherwise it gets the whole slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scheduler_feedback.core.job import Job, JobKind, JobSpec
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI
from scheduler_feedback.policies.speeds.learnt_memory import has_outgrown, planned_mib


class Part(NamedTuple):
    """Part of one slot that a rank needs."""

    share_milli: int
    """Thousandths of the slot's computing power; 0: unknown."""
    memory_mib: int
    """Device memory in MiB; 0: unknown."""
    learnt: bool = False
    """Whether the memory is learnt, not declared."""

    def known_on(self, device_mib: int) -> bool:
        """Return whether the need is known on a slot with this device memory, in MiB; 0: unknown memory.

        A learnt need above the device memory may be too large a margin, so the job may use the slot alone.
        """
        if self.learnt and self.memory_mib > device_mib > 0:
            return False
        return self.memory_mib > 0 if device_mib else self.share_milli > 0

    def usable_milli(self, device_mib: int) -> int:
        """Return the thousandths of a slot that this part makes unusable for others: the larger of both needs."""
        memory = math.ceil(GPU_MILLI * self.memory_mib / device_mib) if device_mib else 0
        return max(self.share_milli, memory)


class Left(NamedTuple):
    """What the jobs on a slot leave of it."""

    share_milli: int
    """Thousandths of its computing power."""
    memory_mib: int
    """Device memory in MiB; 0 if the node's device memory is unknown."""
    jobs: int
    """Number of further jobs that it may hold."""

    def usable_milli(self, device_mib: int) -> int:
        """Return the thousandths of the slot that another job could use: the smaller of both dimensions."""
        if not self.jobs:
            return 0
        memory = GPU_MILLI * self.memory_mib // device_mib if device_mib else GPU_MILLI
        return min(self.share_milli, memory)


FULL = Left(0, 0, 0)
"""A slot that no other job may join."""


def may_divide(spec: JobSpec) -> bool:
    """Return whether the job may use a part of a slot: one shareable rank that may run on any node."""
    return spec.shareable and spec.ranks == 1 and spec.kind is JobKind.TRAINING and not spec.groups


def part_of(job: Job) -> Part:
    """Return the part of each slot that the job needs: nothing is known of one that must not share its slots."""
    if job.alone or has_outgrown(job):
        return Part(0, 0)
    learnt = job.learnt_mib > job.spec.slot_memory_mib
    return Part(math.ceil(GPU_MILLI * job.spec.slot_share - 1e-6), planned_mib(job), learnt)


def cpu_milli_of(spec: JobSpec) -> int:
    """Return the thousandths of a processor that one rank requests, as on Kubernetes; 0 if unknown."""
    return next((count for name, count in spec.requests if name == "cpu"), 0)


def left_after(left: Left, part: Part, device_mib: int) -> Left | None:
    """Return what a slot has left once a job with this part has joined; None if it does not fit.

    left: of a slot that is free or shared. device_mib: the slot's device memory; 0: unknown.
    """
    if not left.jobs or part.share_milli > left.share_milli:
        return None
    whole = Left(GPU_MILLI, device_mib, left.jobs)
    if not part.known_on(device_mib):
        return FULL if left == whole else None
    if device_mib and part.memory_mib > left.memory_mib:
        return None
    memory = left.memory_mib - part.memory_mib if device_mib else 0
    return Left(left.share_milli - part.share_milli, memory, left.jobs - 1)


def left_of(parts: Iterable[Part], device_mib: int, jobs_per_slot: int) -> Left:
    """Return what jobs with these parts leave of one slot. device_mib: its device memory; 0: unknown."""
    share, memory, jobs = GPU_MILLI, device_mib, jobs_per_slot
    for part in parts:
        if not part.known_on(device_mib):
            return FULL
        share, memory, jobs = share - part.share_milli, memory - part.memory_mib, jobs - 1
    memory = memory if device_mib else 0
    return Left(share, memory, jobs) if min(share, memory, jobs) >= 0 else FULL
