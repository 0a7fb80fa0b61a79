"""Learnt traffic: the share of its time for which a gang on several nodes waits for its network.

A class is the same as that of learnt speeds (``class_of``). The share comes with the reports of speed
(`SpeedMeasured.wait_share`), so that a replay learns the same. Only gangs on several nodes count: the collectives of
one node do not use the network. A report from a congested uplink contains the wait that the congestion causes, so the
share is too high there.
"""

from __future__ import annotations

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import MeasuredTraffic, State
from scheduler_feedback.policies.speeds.learnt_speeds import FULL_SECONDS, MOST_CLASSES, MOST_WEIGHT, class_of, placed


def record_wait(state: State, job: Job, share: float, seconds: float) -> bool:
    """Add a measurement of the running job, and return whether it counts.

    share: of the time for which the rank that waits least waits in collectives (0 to 1). seconds: time over which it
    was measured.
    """
    place = placed(state, job)
    if place is None or place.level == 0 or not 0 <= share <= 1 or not seconds > 0:
        return False
    key = class_of(job.job_id, job.spec)
    row = state.traffic.pop(key, None)  # the newest class is last
    weight = min(seconds / FULL_SECONDS, 1.0)
    if row is None:
        row = MeasuredTraffic(share, weight)
    else:
        kept = min(row.weight, MOST_WEIGHT - weight)
        row = MeasuredTraffic((row.share * kept + share * weight) / (kept + weight), kept + weight)
    state.traffic[key] = row
    if len(state.traffic) > MOST_CLASSES:
        del state.traffic[next(iter(state.traffic))]
    return True
