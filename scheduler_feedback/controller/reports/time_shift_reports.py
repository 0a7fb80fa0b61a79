"""Time shifts of gangs: which agents have their ranks, the delays that these report, and the orders to the agents.

Frames arrive on the feed's thread, which also reports the speeds, and ``measure`` runs on the cycle's thread once a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from agent.schema.frame import AnyLayout, Frame
from scheduler_feedback.core.events import Event, SpeedMeasured
from scheduler_feedback.core.state import State
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.feed.shift_orders import order_line
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.network.time_shifts import circumstances, in_force

DELAY, STEPS = "gangwatch_rank_time_shift_seconds_total", "gangwatch_rank_steps_total"

WANTED = (DELAY, STEPS)
"""Metrics that agents must send for this. A controller that was started without policy.time_shifts does not ask for
them, so the policy has no effect until its next start."""

NANOSECOND = 1e-9
"""Unit of the delay in frames, in seconds."""

IndexArray = npt.NDArray[np.intp]


@dataclass(slots=True)
class _Agent:
    """Ranks in the newest layout of one agent."""

    layout_id: str
    gangs: dict[str, str]
    """Name of each gang for the agent, by the cycle's name of its job."""
    job_ids: list[str] = field(default_factory=list)
    """Job of each rank that can delay its steps."""
    delays: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Position of the delay of each of these ranks in the counters of a frame: intp [ranks]."""
    steps: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Position of its number of steps: intp [ranks]."""


class TimeShiftReports:
    """Agents of all gangs. gangs_changed: called with the id of a job whose speed depends on something else now."""

    def __init__(
        self, orders: LeasedOrders, job_of: Callable[[str], str], gangs_changed: Callable[[str], None]
    ) -> None:
        self._orders, self._job_of, self._gangs_changed = orders, job_of, gangs_changed
        self._agents: dict[str, _Agent] = {}
        self._totals: dict[str, tuple[float, float]] = {}
        """Newest total delay in seconds and number of steps of one rank of each job."""
        self._before: dict[str, tuple[float, float]] = {}
        self._circumstances: dict[str, tuple[object, ...]] = {}
        self.enabled = False
        """Whether frames are read: only with policy.time_shifts."""

    # --- the feed's thread -------------------------------------------------------------------------------------------

    def take(self, raw: AnyLayout, layout: AnyLayout, frame: Frame) -> None:
        """Take the ranks and delays of a frame. raw: the layout as the agent has sent it, with its names of gangs."""
        if not self.enabled:
            return
        agent = self._agents.get(raw.node)
        if agent is None or agent.layout_id != raw.layout_id:
            agent = self._agents[raw.node] = self._ranks_of(raw, layout)
        if not agent.job_ids:
            return
        valid = frame.counters_valid.take(agent.delays).tolist()
        delays, steps = frame.counters.take(agent.delays).tolist(), frame.counters.take(agent.steps).tolist()
        for job, known, delay, count in zip(agent.job_ids, valid, delays, steps, strict=True):
            if known:
                self._totals[job] = delay * NANOSECOND, float(count)

    def _ranks_of(self, raw: AnyLayout, layout: AnyLayout) -> _Agent:
        found = _Agent(raw.layout_id, {})
        places: dict[tuple[str, str, str], dict[str, int]] = {}
        columns = zip(raw.whole().counters, layout.whole().counters, strict=True)
        for position, (own, column) in enumerate(columns):
            if column.metric in (DELAY, STEPS):
                labels = dict(column.labels)
                job = self._job_of(labels.get("gang", ""))
                found.gangs[job] = dict(own.labels).get("gang", "")
                rank = job, labels.get("attempt", ""), labels.get("rank", "")
                places.setdefault(rank, {})[column.metric] = position
        pairs = [(rank[0], both[DELAY], both[STEPS]) for rank, both in sorted(places.items()) if len(both) == 2]
        found.job_ids = [job for job, _, _ in pairs]
        found.delays = np.array([delay for _, delay, _ in pairs], np.intp)
        found.steps = np.array([steps for _, _, steps in pairs], np.intp)
        return found

    def with_delays(self, events: Sequence[Event]) -> list[Event]:
        """Return the events with the mean delay of each step since the gang's last report of its speed."""
        return [self._with_delay(one) if isinstance(one, SpeedMeasured) else one for one in events]

    def _with_delay(self, event: SpeedMeasured) -> SpeedMeasured:
        now = self._totals.get(event.job_id)
        if now is None:
            return event
        before, self._before[event.job_id] = self._before.get(event.job_id, (0.0, 0.0)), now
        delay, steps = now[0] - before[0], now[1] - before[1]
        return structs.replace(event, delay_seconds=delay / steps) if delay > 0 and steps > 0 else event

    def forget(self, job_id: str) -> None:
        """Forget a job whose attempt has ended."""
        self._totals.pop(job_id, None)
        self._before.pop(job_id, None)

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def measure(self, state: State, now_ns: int) -> list[Event]:
        """Replace the orders, and let the gangs be measured again that need it. now_ns: monotonic time."""
        self.enabled = in_force(state)
        if not self.enabled:
            self._circumstances = {}
            self._agents.clear()
            self._orders.replace({}, now_ns)
            return []
        index = index_of(state)
        before, self._circumstances = self._circumstances, circumstances(state, index)
        for job_id, present in self._circumstances.items():
            if present != before.get(job_id):
                self._before[job_id] = self._totals.get(job_id, (0.0, 0.0))
                self._gangs_changed(job_id)
        shifts = {one: state.jobs[one].time_shift for one in sorted(index.stepping)}
        lines = {}
        for node, agent in list(self._agents.items()):
            own = {gang: shift for job, gang in agent.gangs.items() if (shift := shifts.get(job)) is not None}
            if own:
                lines[node] = order_line(own)
        self._orders.replace(lines, now_ns)
        return []
