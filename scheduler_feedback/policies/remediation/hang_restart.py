"""Restart of hanging gangs: the conditions for a restart, and the explanation if they are not met.

A hanging gang does no work, so a restart always costs less than staying. The gang restarts from its checkpoint, away
from the culprit's node, or on its own slots if no others are free. The conditions below guard against false verdicts:
a healthy gang may save, evaluate or compile for a long time.
"""

from __future__ import annotations

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.durations import nanoseconds, span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.remediation.move_cost import cooling, cooling_ns

CONFIDENCE = 0.95
"""A gang is restarted only if the hang verdict has at least this confidence, or an operator has confirmed the verdict.
The peers wait for a hanging rank in the same way as for a rank that saves a checkpoint. Only the state of the culprit's
process shows the difference (detectors/hang/process_evidence.py)."""

TIMES_THE_LONGEST_PAUSE = 1.5
"""A gang is restarted after this multiple of its longest pause so far: a healthy job may pause that long again, and a
checkpoint takes longer when its file system is busy. The detector uses the same factor (hang.py, TIMES_THE_LONGEST)."""


STOPPED_SECONDS = 40.0
"""A gang whose culprit is stopped by a signal is restarted only this time in seconds after its last step: who stopped
the process may continue it. The verdict comes earlier (detectors/hang/certain_hangs.py)."""


def stalled_seconds(verdict: Verdict, now_ns: int) -> float:
    """Return the seconds since the last step of the gang."""
    return max(now_ns - verdict.first_wall_ns, 0) / 1e9


def why_not_restarted(
    policy: Policy, job: Job, verdict: Verdict, confirmed: bool, now_ns: int
) -> tuple[str, str, int | None] | None:
    """Return why the gang is not restarted, as (code, text, end); None if it is restarted.

    end: instant at which the reason expires; None if it does not expire. confirmed: an operator has confirmed the
    verdict. A confirmed verdict restarts every restartable gang that is not in its cooldown.
    """
    if not job.spec.restartable:
        return "restartable", "it is not declared restartable", None
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
            return "pause", f"it once resumed after a pause of {span(pause)}; it is restarted after {after}", due_ns
        due_ns = verdict.first_wall_ns + nanoseconds(STOPPED_SECONDS)
        if now_ns < due_ns and _is_stopped(verdict):
            after = span(STOPPED_SECONDS)
            return "pause", f"its process is stopped and may be continued; it is restarted after {after}", due_ns
    if (left_ns := cooling_ns(policy, job, now_ns)) > 0:
        return "cooldown", cooling(policy), now_ns + left_ns
    return None


def _is_stopped(verdict: Verdict) -> bool:
    """Return whether a signal has stopped the culprit's process."""
    states = (one.value for one in verdict.evidence if one.measure == "process_state")
    return any(state == ProcessState.STOPPED for state in states)


def in_words(verdict: Verdict, code: str, why: str, cost_seconds: float, now_ns: int) -> str:
    """Describe why a hanging gang is not restarted, and how an operator can restart it."""
    lost = f"the hang has cost {span(stalled_seconds(verdict, now_ns))} so far"
    text = f"not restarted: {why}; {lost}, a restart would cost about {span(cost_seconds)}"
    if code in ("restart_on_hang", "confidence", "pause"):
        return f"{text}. To restart it now: gangwatch verdict confirm {verdict.verdict_id}"
    return text
