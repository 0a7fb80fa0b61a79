"""Actions: all that the cycle can ask of a backend; and Entries: the sentences it leaves for explain and story."""

from __future__ import annotations

import msgspec

from scheduler_feedback.core.job import JobSpec, Slot, StopReason


class StartGang(msgspec.Struct, frozen=True):
    """Start every rank of the attempt at its slot, or none.

    Carrying it out twice starts it once: (job_id, attempt) is the identity. `placement` is by rank.
    """

    action_id: str
    job_id: str
    attempt: int
    spec: JobSpec
    placement: tuple[Slot, ...]
    reason: str = ""


class StopGang(msgspec.Struct, frozen=True):
    """Run the checkpoint command, if any; signal the attempt so that it saves; kill all when the grace is over."""

    action_id: str
    job_id: str
    attempt: int
    signal: str
    grace_seconds: float
    why: StopReason
    reason: str = ""
    checkpoint_command: tuple[str, ...] = ()
    checkpoint_timeout_seconds: float = 0.0


Action = StartGang | StopGang


class Entry(msgspec.Struct, frozen=True):
    """One sentence of a story: what was done or not done, to whom, and why.

    subject: job id, or 'node:NAME'. kind: a short word (submitted, waits, started, running, suspect, migrate, stay,
    quarantine, probation, released, ended, ...). applied: False where the mode or a freeze kept it from being done.
    detail: numbers behind it (the cost test's terms, evidence), as printable pairs.
    """

    wall_ns: int
    subject: str
    kind: str
    text: str
    applied: bool = True
    detail: tuple[tuple[str, str], ...] = ()
