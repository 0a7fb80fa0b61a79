"""Pauses of recorded jobs: single steps far longer than any before, after which the job goes on.

A recording without a clock contains a pause only as one long step: nothing is known of the collectives in which ranks
were blocked. Its cause can be a hang that ended, a first checkpoint, or a repair. So the detector only names the rank
for which the others waited, if there is one. It accuses the rank if the job lost more than ten minutes: a running job
is then called hanging too, whether or not the processes of the rank work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors.hang.process_evidence import LONG_SECONDS
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.steps.windows import LONGEST_SECONDS

LEAST_SECONDS = 40.0
"""A step of a recorded job counts as a pause only if it takes at least this time in seconds. The limit is the same as
for the hang of a running job."""

LEAST_TIMES = 50.0
"""A shorter step counts as a pause too if it takes at least this multiple of a usual step: the times of a recording may
have another unit than seconds."""

TIMES_THE_USUAL = 5.0
"""A step counts as a pause only if it takes at least this multiple of a usual step."""

TIMES_THE_LONGEST = 1.5
"""A step counts as a pause only if it takes at least this multiple of the job's longest step so far: checkpoints
recur."""

HANG_SECONDS = LONG_SECONDS
"""A pause is a hang of the ranks for which the others waited if the job lost more than this time in seconds."""

WAITED_SHARE = 0.9
"""A pause is a hang only if each other rank waited for at least this share of the lost time, and the culprits for at
most the rest."""

LEAST_KNOWN = 0.8
"""A pause is a hang only if at least this share of the ranks reported their waits in it. Samples can be lost."""

LEAST_STEPS = 5
"""Pauses are searched only after this number of steps, which are needed to know a usual step."""

USUAL_STEPS = 64


@dataclass(slots=True)
class LongSteps:
    """Step lengths of one attempt of a job."""

    attempt: int
    """Number of the attempt."""
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))
    """Lengths of the newest steps, in seconds."""
    longest: float = 0.0
    """Length of the longest step after the first one, in seconds. The first step includes the start of the job."""
    longest_wait: float = 0.0
    """Longest time, in seconds, for which most ranks waited in a step after the first one. A pause in which all ranks
    work, such as an evaluation, does not hide a later hang."""
    started: bool = False
    active: Verdict | None = None
    """Verdict on the newest step. It ends with the next step."""

    def take(self, job: JobTelemetry, now_ns: int) -> list[Finding]:
        """Add the finished steps of the job, and return an abstention or a verdict for each pause."""
        found: list[Finding] = []
        if job.steps is None:
            return found
        for k, length in enumerate(_lengths(job.steps.seconds)):
            if not np.isfinite(length):
                continue
            if self.active is not None:
                over, self.active = self.active, None
                reason = "the job finishes steps again"
                found.append(Cleared(over.verdict_id, job.shape.job, now_ns, reason, over.last_step))
            waited = _waited(job.steps.wait_seconds[k])
            if self._is_pause(length, self.longest) or self._is_pause(waited, self.longest_wait):
                usual = float(np.median(self.newest))
                self.active = _hang(job, now_ns, k, length, usual, self.longest)
                found.append(_note(job, now_ns, k, length, usual) if self.active is None else self.active)
            if self.started:
                self.longest = max(self.longest, length)
                self.longest_wait = max(self.longest_wait, waited)
                self.newest.append(length)
            self.started = True
        return found

    def _is_pause(self, length: float, longest: float) -> bool:
        if len(self.newest) < LEAST_STEPS:
            return False
        usual = float(np.median(self.newest))
        least = min(max(LEAST_SECONDS, TIMES_THE_USUAL * usual), LEAST_TIMES * usual)
        return length >= max(least, TIMES_THE_LONGEST * longest)


def _waited(waits: FloatArray) -> float:
    """Return the time in seconds for which the median rank waited; 0 if the waits of most ranks are unknown."""
    known = np.isfinite(waits)
    return float(np.median(waits[known])) if 2 * known.sum() > len(waits) else 0.0


def _lengths(seconds: FloatArray) -> list[float]:
    known = np.isfinite(seconds)
    longest = np.where(known, seconds, -np.inf).max(axis=1, initial=-np.inf)
    lengths: list[float] = np.where(known.any(axis=1), longest, np.nan).tolist()
    return lengths


def _late(seconds: FloatArray, waits: FloatArray, lost: float) -> IntArray | None:
    """Return the indices of the ranks that worked for at least half of the lost time; None if waits are unknown.

    seconds, waits: length of the step of each rank, and the part that it waited, NaN if unknown. lost: length of the
    pause in seconds. In a job whose ranks do not meet in each step, the step of the other ranks is short.
    """
    known = np.isfinite(waits)
    if known.sum() < 2 or 2 * known.sum() < len(waits):
        return None
    return np.flatnonzero(known & (waits < lost / 2) & (seconds >= lost / 2)).astype(np.int64)


def _hang(job: JobTelemetry, now_ns: int, k: int, length: float, usual: float, longest: float) -> Verdict | None:
    """Return a verdict on the rank, or the ranks of one node, for which all others waited; None if the pause is too
    short or may have another cause."""
    assert job.steps is not None
    shape, waits, lost = job.shape, job.steps.wait_seconds[k], length - usual
    known = np.isfinite(waits)
    if lost <= HANG_SECONDS or known.mean() < LEAST_KNOWN:
        return None
    late = np.flatnonzero(known & (waits <= (1.0 - WAITED_SHARE) * lost))
    others = waits[known & ~np.isin(np.arange(len(waits)), late)]
    nodes = {shape.nodes[index] for index in late.tolist()}
    if not len(late) or 2 * len(late) > len(shape) or len(nodes) > 1 or (others < WAITED_SHARE * lost).any():
        return None
    who = int(late[0])
    rank, number = int(shape.ranks[who]), int(job.steps.number[k])
    evidence = (
        Evidence("seconds_without_a_step", length, longest, "seconds", "the longest earlier step", 2.0),
        Evidence("wait_seconds", float(waits[late].max()), float(np.median(others)), "seconds",
                 "median wait of the other ranks, which were all blocked", 4.0),
        Evidence("went_on", 1.0, 0.0, "", "the job went on later: the rank may have worked alone for this time",
                 log_odds.HANG_ENDED),
    )  # fmt: skip
    return Verdict(
        f"{shape.job}.{shape.attempt}.hang.{rank}.{number}", Kind.HANG, shape.job, shape.attempt, rank,
        shape.nodes[who], Cause.NEVER_ARRIVED, log_odds.confidence(evidence), length / max(usual, 1e-9), usual, length,
        now_ns - round(min(lost, LONGEST_SECONDS) * 1e9), now_ns, evidence, (), "hang",
        ranks=tuple(shape.ranks[late].tolist()) if len(late) > 1 else (), level="node",
        first_step=number, last_step=number, detected_step=number, longest_pause_seconds=longest,
    )  # fmt: skip


def _note(job: JobTelemetry, now_ns: int, k: int, length: float, usual: float) -> Abstention:
    assert job.steps is not None
    shape, waits = job.shape, job.steps.wait_seconds[k]
    evidence = [Evidence("step_seconds", length, usual, "seconds", "the usual step", 0.0)]
    late = _late(job.steps.seconds[k], waits, length - usual)
    rank = None
    if late is None:
        who = "the ranks' waits are unknown"
    elif not len(late):
        who = "all ranks waited: suspect the transport"
    elif len(late) == 1:
        rank = int(shape.ranks[late[0]])
        others = float(np.nanmedian(np.delete(waits, late)))
        others_waited = others >= (length - usual) / 2
        who = f"the other ranks waited for rank {rank}" if others_waited else f"only rank {rank} had a long step"
        evidence.append(
            Evidence("wait_seconds", float(waits[late[0]]), others, "seconds", "median wait of the other ranks", 0.0)
        )
    else:
        who = f"{len(late)} of {len(shape)} ranks were busy or blocked in their own work"
    reason = f"step {int(job.steps.number[k])} took {length:.0f} s, then the job went on: {who}"
    return Abstention(shape.job, shape.attempt, rank, now_ns, reason, tuple(evidence), "hang")
