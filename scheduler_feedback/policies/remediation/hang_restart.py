"""Hangs: when a gang that makes no step any more is restarted, and in which words it is not.

A gang that hangs does no work, so its restart is not weighed against staying: it is restarted from its checkpoint, away
from the culprit, or in its own place where no other can be had. The conditions are about certainty: a healthy gang that
saves, evaluates or compiles for long must not be taken for one that hangs.
"""

from __future__ import annotations

from scheduler_feedback.core.cycle_context import nanoseconds, span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.remediation.move_cost import cooling, cooling_ns

CONFIDENCE = 0.95
"""Least confidence of a verdict that restarts a gang. Of a rank that hangs and one that saves alone the peers wait
alike; what the culprit's process does makes the difference (detectors/hang/process_evidence.py)."""

TIMES_THE_LONGEST_PAUSE = 1.5
"""As the detector (hang.py, TIMES_THE_LONGEST): what the job has come out of by itself it may come out of again, and a
checkpoint grows with the load of the file system that it is written to."""


def silent_seconds(verdict: Verdict, now_ns: int) -> float:
    """How long the gang has made no step."""
    return max(now_ns - verdict.first_wall_ns, 0) / 1e9


def keeps(
    policy: Policy, job: Job, verdict: Verdict, confirmed: bool, now_ns: int
) -> tuple[str, str, int | None] | None:
    """Why the gang is not restarted: in one word, in words, and when that ends by time alone; None where it is.

    confirmed: an operator has said that the verdict is right, and that is what an operator says it for.
    """
    if not job.spec.restartable:
        return "restartable", "it did not declare that it can be restarted", None
    if not confirmed:
        if not policy.restart_on_hang:
            return "restart_on_hang", "policy.restart_on_hang is off", None
        least = max(CONFIDENCE, policy.minimum_confidence)
        if verdict.confidence < least:
            return "confidence", f"confidence {verdict.confidence:.2f} is below {least:.2f}", None
        pause = verdict.longest_pause_seconds or 0.0
        due_ns = verdict.first_wall_ns + nanoseconds(TIMES_THE_LONGEST_PAUSE * pause)
        if now_ns < due_ns:
            after = span(TIMES_THE_LONGEST_PAUSE * pause)
            return "pause", f"it once went on by itself after {span(pause)}; it is restarted after {after}", due_ns
    if (left_ns := cooling_ns(policy, job, now_ns)) > 0:
        return "cooldown", cooling(policy), now_ns + left_ns
    return None


def in_words(verdict: Verdict, code: str, why: str, cost_seconds: float, now_ns: int) -> str:
    """The sentence of a gang that hangs and is not restarted."""
    lost = f"the hang has cost {span(silent_seconds(verdict, now_ns))} so far"
    text = f"not restarted: {why}; {lost}, a restart would cost about {span(cost_seconds)}"
    if code in ("restart_on_hang", "confidence", "pause"):
        return f"{text}. To restart it now: gangwatch verdict confirm {verdict.verdict_id}"
    return text
