"""Certain hangs: process states with which a verdict need not wait for forty seconds.

The forty seconds protect jobs that pause: a rank that saves, evaluates, compiles or waits for a server looks like one
that hangs. A process that has ended, or has been stopped for long, does none of these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.detectors.hang.process_evidence import ENDED

FRESH_SECONDS = 15.0
"""A rank counts as in a collective only if its agent reported so at most this many seconds before the newest report of
any rank of the job."""

STOPPED_SECONDS = 8.0
"""A stopped process is certain to block its job only after this time in seconds without a break. Tools that copy a
process or print its stacks stop it for shorter; a debugger and CRIU trace it, which is another state."""

WAITING_SECONDS = 5.0
"""A peer proves that a stopped process blocks it only if it has been in its collective for this time in seconds."""


def stopped_since(before: Mapping[int, int], states: IntArray, now_ns: int) -> Mapping[int, int]:
    """Return since when each stopped process has been stopped without a break, in ns, by the index of its rank.

    before: the result of the evaluation before. states: ProcessState of each rank, int64 [n].
    """
    return {rank: before.get(rank, now_ns) for rank in np.flatnonzero(states == ProcessState.STOPPED).tolist()}


def blocked_before_peers(
    states: IntArray, stopped: Mapping[int, int], opened: IntArray, now_ns: int
) -> npt.NDArray[np.bool_]:
    """Return whether each rank certainly blocks other ranks that wait in a collective: bool [n].

    Its process has ended, or has been stopped for STOPPED_SECONDS. states: ProcessState of each rank, int64 [n].
    stopped: the result of `stopped_since`. opened: open collective of each rank, int64 [n, 3].
    """
    inside = is_inside(opened, now_ns)
    ended: npt.NDArray[np.bool_] = np.isin(states, ENDED)
    ended &= bool((inside & ~ended).any())
    halted = np.zeros(len(states), np.bool_)
    halted[[rank for rank, since in stopped.items() if now_ns - since >= STOPPED_SECONDS * 1e9]] = True
    waiting = inside & (states != ProcessState.STOPPED) & (now_ns - opened[:, 1] >= WAITING_SECONDS * 1e9)
    halted &= bool(waiting.any())
    return ended | halted


def is_inside(opened: IntArray, now_ns: int) -> npt.NDArray[np.bool_]:
    """Return whether each rank is in a collective, according to recent reports. The newest report of any rank is taken
    as the current time."""
    newest = int(opened[:, 2].max())
    seen_ns = max(newest, now_ns - round(FRESH_SECONDS * 1e9))
    result: npt.NDArray[np.bool_] = (opened[:, 0] >= 0) & (seen_ns - opened[:, 2] <= FRESH_SECONDS * 1e9)
    return result
