"""Actions (requests of the cycle to a backend) and entries (sentences for `explain` and `story`)."""

from __future__ import annotations

import msgspec

from scheduler_feedback.core.job import JobSpec, Slot, StopReason


class StartGang(msgspec.Struct, frozen=True):
    """Action: start all ranks of the attempt in their slots, or start no rank. A second start of the same attempt has
    no effect."""

    action_id: str
    """Unique id of this action."""
    job_id: str
    """Id of the job to start."""
    attempt: int
    """Number of the new attempt."""
    spec: JobSpec
    """Specification of the job."""
    placement: tuple[Slot, ...]
    """Slot of each rank, in rank order."""
    reason: str = ""
    """Reason for the start, in words."""
    mig_starts: tuple[int, ...] = ()
    """First memory slice of each rank's MIG instance (`JobSpec.mig_profile`) on the GPU of its slot; empty: whole
    slots."""


class StopGang(msgspec.Struct, frozen=True):
    """Action: run the checkpoint command, if the job has one, and send the stop signal; after the grace period, kill
    the attempt."""

    action_id: str
    """Unique id of this action."""
    job_id: str
    """Id of the job to stop."""
    attempt: int
    """Number of the attempt to stop."""
    signal: str
    """Name of the signal that makes the job save and exit."""
    grace_seconds: float
    """Time between the stop signal and SIGKILL, in seconds."""
    why: StopReason
    """Reason for the stop, as a code."""
    reason: str = ""
    """Reason for the stop, in words."""
    checkpoint_command: tuple[str, ...] = ()
    """Command that saves the job before the signal, as an argument list without a shell; empty: no command."""
    checkpoint_timeout_seconds: float = 0.0
    """Longest wait for checkpoint_command, in seconds."""


Action = StartGang | StopGang


class Entry(msgspec.Struct, frozen=True):
    """One sentence of a story: what was done or not done, to which object, and why."""

    wall_ns: int
    """Wall time of the entry, in nanoseconds since 1970."""
    subject: str
    """Object of the entry: a job id, or 'node:NAME' for a node."""
    kind: str
    """Type of the entry, as a short word (submitted, waits, started, running, suspect, migrate, stay, quarantine,
    probation, released, ended, ...)."""
    text: str
    """The sentence that `explain` and `story` show."""
    applied: bool = True
    """Whether the decision was applied; False if observe mode or a freeze prevented it."""
    detail: tuple[tuple[str, str], ...] = ()
    """Numbers behind the decision (terms of the cost test, evidence), as (name, value) pairs of text."""
