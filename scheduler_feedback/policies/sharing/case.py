"""One possible pairing: a pending job that could join the slots of a running job."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State


@dataclass(frozen=True, slots=True)
class Case:
    """A pending job, and the running jobs whose slots it would join."""

    state: State
    """State of the cycle."""
    guest: Job
    """The pending job."""
    host: Job
    """The running job that holds all slots that the guest would use. It has joined no other job."""
    others: tuple[Job, ...]
    """Further jobs on these slots."""
    guest_seconds: float
    """Expected remaining run time of the guest alone, in seconds."""
    host_seconds: float
    """Expected remaining run time of the host alone, in seconds."""
    wait_seconds: float = float("inf")
    """Expected time until the guest would start on free slots, in seconds."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A pairing that a rule allows."""

    gain: float
    """How much the rule prefers this pairing; larger is better. Comparable within one rule."""
    why: str
    """Reason in words, for the log entry."""
    part: float = 0.0
    """Part of the computing power of each slot that the guest may use; 0: not limited."""


LEAST_PART = 0.25
"""Least speed of each of two jobs: half of what it would have if both got equal shares of time. Otherwise one of them
would hardly run beside the other, whatever they do together."""


def pays(host_ranks: int, host_speed: float, guest_ranks: int, guest_speed: float, least: float) -> bool:
    """Return whether two jobs do enough together. least: least combined throughput; 0: any pair pays."""
    if least <= 0:
        return True
    together = combined(host_ranks, host_speed, guest_ranks, guest_speed)
    return together >= least and min(host_speed, guest_speed) >= LEAST_PART


def combined(host_ranks: int, host_speed: float, guest_ranks: int, guest_speed: float) -> float:
    """Return the throughput of both jobs together, divided by that of the larger one alone. Above 1, sharing pays.

    Speeds are relative to running alone, and weighted by ranks.
    """
    return (host_ranks * host_speed + guest_ranks * guest_speed) / max(host_ranks, guest_ranks)
