"""Metrics of the power budget. Names and labels are defined in the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.gpus import in_force

Sample = tuple[str, tuple[tuple[str, str], ...], float]


def power_metrics(state: State) -> Iterator[Sample]:
    """Yield (metric, labels, value) of the budget, of what counts against it, and of the limit of each gang; nothing
    without a budget."""
    if not in_force(state):
        return
    index = index_of(state)
    account = account_of(state, index)
    yield "gangwatch_power_budget_watts", (), state.policy.power_budget_watts
    yield "gangwatch_power_committed_watts", (("part", "busy"),), account.committed_watts - account.idle_watts
    yield "gangwatch_power_committed_watts", (("part", "idle"),), account.idle_watts
    for job_id in sorted(index.power_limited):
        gang = (("gang", job_id),)
        yield "gangwatch_gang_power_limit_watts", gang, state.jobs[job_id].power_limit_watts
        yield "gangwatch_gang_power_speed_ratio", gang, state.jobs[job_id].power_speed
