"""Actions (requests of the cycle to a backend) and entries (sentences for `explain` and `story`)."""

from __future__ import annotations

import msgspec

from scheduler_feedback.core.job import JobSpec, Slot, StopReason


class StartGang(msgspec.Struct, frozen=True):
    """Start every rank of the attempt in its slot, or none. A second start of the same attempt has no effect."""

    action_id: str
    """Unique id."""
    job_id: str
    """Job to start."""
    attempt: int
    """Number of the new attempt."""
    spec: JobSpec
    """Specification of the job."""
    placement: tuple[Slot, ...]
    """Slots by rank."""
    reason: str = ""
    """Reason in words."""


class StopGang(msgspec.Struct, frozen=True):
    """Run the checkpoint command, if any, and signal the attempt to save; after the grace period, kill it."""

    action_id: str
    """Unique id."""
    job_id: str
    """Job to stop."""
    attempt: int
    """Number of the attempt to stop."""
    signal: str
    """Name of the signal that makes the job save and exit."""
    grace_seconds: float
    """Time between that signal and SIGKILL."""
    why: StopReason
    """Reason, as a code."""
    reason: str = ""
    """Reason in words."""
    checkpoint_command: tuple[str, ...] = ()
    """Argument list, no shell, that saves the job before the signal; empty: none."""
    checkpoint_timeout_seconds: float = 0.0
    """Longest wait for checkpoint_command."""


Action = StartGang | StopGang


class Entry(msgspec.Struct, frozen=True):
    """One sentence of a story: what was done or not done, to which object, and why."""

    wall_ns: int
    """Time of the entry."""
    subject: str
    """Job id or 'node:NAME'."""
    kind: str
    """A short word (submitted, waits, started, running, suspect, migrate, stay, quarantine, probation, released, ended,
    ...)."""
    text: str
    """The sentence."""
    applied: bool = True
    """False if observe mode or a freeze prevented it."""
    detail: tuple[tuple[str, str], ...] = ()
    """Numbers behind it (terms of the cost test, evidence), as printable pairs."""
