"""Power of GPUs in the frames of agents: the reports for the scheduler, and the orders to the agents.

Frames arrive on the feed's thread, and ``measure`` runs on the cycle's thread once a second. An agent that has not sent
a frame for SILENT_SECONDS counts as one that has given back the GPUs' own limits, because its lease may end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.schema.frame import AnyLayout, Frame
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.events import Event, PowerSeen
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import State
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.feed.power_orders import order_line
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.gpus import in_force
from scheduler_feedback.policies.power.limits import wanted_limits

SETTABLE, LIMIT, POWER = (
    "gangwatch_gpu_settable_power_limit_watts", "gangwatch_gpu_power_limit_watts", "gangwatch_gpu_power_watts",
)  # fmt: skip
FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

WANTED = (SETTABLE, POWER)
"""Metrics that agents must send for this. LIMIT is needed only of agents that set no limits: if a controller starts
without a power budget, such agents do not send it, and their GPUs count as unknown."""

SILENT_SECONDS = 5.0
"""Time without a frame after which an agent's limits no longer count: as for the status of agents."""

CALM_SECONDS = 10.0
"""Time since the end of a gang after which a GPU's power counts as that of an idle one."""

IDLE_SECONDS = 5.0
"""Least time between two readings of the idle power of a node's GPUs."""

IDLE_AT_ONCE = 200
"""Maximum number of nodes whose idle power is read in one call, so that no cycle waits long: 40 ms at most."""

LINES_SECONDS = 60.0
"""Time after which all orders are made again, although nothing that is known to matter has changed."""

IDLE_STEP_WATTS = 5.0
"""Idle power is rounded up to a multiple of this. It is reported again if it is higher, or lower by twice as much."""


@dataclass(slots=True)
class _Gpu:
    """Newest values of one GPU, in watts; NaN if not reported."""

    least: float = float("nan")
    most: float = float("nan")
    current: float = float("nan")
    own: float = float("nan")
    power: float = float("nan")
    settable: bool = False


@dataclass(slots=True)
class _Agent:
    """Newest frame of one node's agent."""

    agent_node: str
    layout_id: str = ""
    names: list[tuple[str, str]] = field(default_factory=list)
    """(UUID, name) of each value. Those of limits are before those of power."""
    positions: IndexArray = field(default_factory=lambda: np.zeros(0, np.intp))
    """Positions of the values in the gauges of a frame: intp [values]."""
    limit_count: int = 0
    """Number of values that are limits."""
    values: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Values of the newest frame: float64 [values]."""
    received_ns: int = 0
    seen: tuple[object, ...] = ()
    """What the last report was made from."""
    idle_due_ns: int = 0
    """Time at which the idle power is read again."""


_NAMES = {"least": "least", "most": "most", "current": "current", "own": "own"}
_OWN = {"current": "fixed"}


class PowerReports:
    """Reports of all agents. gangs_changed: called with the id of a job whose power limit has changed."""

    def __init__(self, orders: LeasedOrders, gangs_changed: Callable[[str], None] = lambda _job: None) -> None:
        self._orders, self._gangs_changed = orders, gangs_changed
        self._agents: dict[str, _Agent] = {}
        self._busy_ns: dict[tuple[str, int], int] = {}
        self._idle: dict[tuple[str, int], float] = {}
        self._set_ns: dict[str, int] = {}
        self._lines: dict[str, bytes] = {}
        self._known: tuple[object, ...] = ()
        self._lines_due_ns = 0
        self.enabled = False
        """Whether frames are read: only with a power budget."""

    # --- the feed's thread -------------------------------------------------------------------------------------------

    def take(self, agent_node: str, layout: AnyLayout, frame: Frame, received_ns: int) -> None:
        """Take the values of a frame. agent_node: the node's name as the agent announces it."""
        if not self.enabled:
            return
        agent = self._agents.get(frame.node)
        if agent is None:
            agent = self._agents[frame.node] = _Agent(agent_node)
        if agent.layout_id != layout.layout_id:
            places = _places(layout)
            agent.names, agent.layout_id = [place[1:] for place in places], layout.layout_id
            agent.positions = np.array([place[0] for place in places], np.intp)
            agent.limit_count = sum(name != "power" for _, name in agent.names)
        agent.values, agent.received_ns = frame.gauges.take(agent.positions), received_ns

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def measure(self, state: State, now_ns: int) -> list[Event]:
        """Return what has changed since the last reports, and replace the orders. now_ns: monotonic time."""
        self.enabled = in_force(state)
        if not self.enabled:
            self._agents.clear()
            self._lines = {}
            self._orders.replace({}, now_ns)
            return []
        index = index_of(state)
        held = {(slot.node, slot.slot) for slots in index.held.values() for slot in slots}
        for place in held:
            self._busy_ns[place] = now_ns
        events: list[Event] = []
        idle_left = IDLE_AT_ONCE
        pause_seconds = max(IDLE_SECONDS, len(self._agents) / IDLE_AT_ONCE)  # so that each node gets its turn
        for name, agent in list(self._agents.items()):
            node = state.nodes.get(name)
            if node is None or not agent.names:
                continue
            silent = now_ns - agent.received_ns > SILENT_SECONDS * 1e9
            before = state.power.get(name, ())
            seen = (
                silent,
                node.devices,
                node.slots,
                agent.layout_id,
                agent.values[: agent.limit_count].tobytes(),
                before,
            )
            if seen == agent.seen:
                if now_ns < agent.idle_due_ns or not idle_left:
                    continue
                idle_left -= 1
            agent.seen, agent.idle_due_ns = seen, now_ns + round(pause_seconds * 1e9)
            slots = self._slots(node, agent, _gpus(agent), now_ns, before)
            if slots != before:
                events.append(PowerSeen(name, slots))
        self._note_changes(state)
        limits = tuple((one, state.jobs[one].attempt, state.jobs[one].power_limit_watts) for one in index.power_limited)
        known = (frozenset(limits), frozenset(index.held), len(state.power), len(self._agents), bool(events))
        if known != self._known or now_ns >= self._lines_due_ns:
            self._known, self._lines_due_ns = known, now_ns + round(LINES_SECONDS * 1e9)
            self._lines = self._new_lines(state, now_ns)
        self._orders.replace(self._lines, now_ns)
        return events

    def _note_changes(self, state: State) -> None:
        limited = index_of(state).power_limited
        for job_id in limited:
            if (at_ns := state.jobs[job_id].power_set_ns) != self._set_ns.get(job_id, 0):
                self._set_ns[job_id] = at_ns
                self._gangs_changed(job_id)
        for gone in self._set_ns.keys() - limited:
            del self._set_ns[gone]

    def _new_lines(self, state: State, now_ns: int) -> dict[str, bytes]:
        """Return the order for each agent. One that is silent, but may still listen, keeps its last one."""
        index, found = index_of(state), {}
        for name, limits in wanted_limits(state, account_of(state, index), index).items():
            agent, node = self._agents.get(name), state.nodes.get(name)
            if agent is None or node is None:
                continue
            if now_ns - agent.received_ns > SILENT_SECONDS * 1e9 and agent.agent_node in self._lines:
                found[agent.agent_node] = self._lines[agent.agent_node]
                continue
            if not any(limits):
                continue
            names = node.devices or sorted({gpu for gpu, _ in agent.names})
            pairs = {gpu: watts for gpu, watts in zip(names, limits, strict=False) if watts}
            found[agent.agent_node] = order_line(pairs)
        return found

    def _slots(
        self, node: Node, agent: _Agent, known: Mapping[str, _Gpu], now_ns: int, before: tuple[SlotPower, ...]
    ) -> tuple[SlotPower, ...]:
        """Return the GPU of each slot of the node."""
        together = not node.devices
        names = list(node.devices or sorted(known))
        silent = now_ns - agent.received_ns > SILENT_SECONDS * 1e9
        if together and len(names) != node.slots:
            return self._by_share(node, known, now_ns, before)
        gpus = [known.get(name, _Gpu()) for name in names[: node.slots]]
        settable = not silent and all(one.settable for one in gpus) if together else not silent
        found = []
        current = max((one.current for one in gpus if np.isfinite(one.current)), default=float("nan"))
        for number, one in enumerate(gpus):
            limit = current if together else one.current
            last = before[number] if number < len(before) else None
            if silent:
                own = [other.own for other in gpus] if together else [one.own]
                limit = max([value for value in (*own, limit) if np.isfinite(value)], default=limit)
            if not np.isfinite(limit):
                return before  # its limits come with a later frame
            may = settable and one.settable
            least, most = (one.least, one.most) if may else (limit, limit)
            idle = least if last is None else last.idle_watts
            idle = self._idle_watts(node, number, one.power, now_ns, together, idle)
            found.append(SlotPower(least, most, limit, min(idle, limit), may, together))
        return tuple(found)

    def _by_share(
        self, node: Node, known: Mapping[str, _Gpu], now_ns: int, before: tuple[SlotPower, ...]
    ) -> tuple[SlotPower, ...]:
        """Return the slots of a node that has more or fewer slots than GPUs: each has its share of their limits."""
        own = [max(one.own, one.current) if np.isfinite(one.own) else one.current for one in known.values()]
        if not node.slots or not np.isfinite(own).all():
            return before
        limit = sum(own) / node.slots
        power = sum(one.power for one in known.values()) / node.slots
        idle = before[0].idle_watts if before else limit
        idle = self._idle_watts(node, 0, power, now_ns, True, idle)
        return (SlotPower(limit, limit, limit, min(idle, limit), False, True),) * node.slots

    def _idle_watts(self, node: Node, number: int, power: float, now_ns: int, together: bool, before: float) -> float:
        """Return the idle power of a slot's GPU in steps; `before` while it is busy, or was until CALM_SECONDS ago."""
        places = [(node.name, one) for one in range(node.slots)] if together else [(node.name, number)]
        busy_ns = max(self._busy_ns.get(place, 0) for place in places)
        place = (node.name, number)
        if not np.isfinite(power) or now_ns - busy_ns < CALM_SECONDS * 1e9:
            return before
        mean = self._idle.get(place, power)
        mean += 0.5 * (power - mean)
        self._idle[place] = mean
        if before - 2 * IDLE_STEP_WATTS < mean <= before:
            return before
        return float(np.ceil(mean / IDLE_STEP_WATTS) * IDLE_STEP_WATTS)


def _gpus(agent: _Agent) -> dict[str, _Gpu]:
    """Return the newest values of the agent's GPUs, by UUID."""
    gpus: dict[str, _Gpu] = {}
    fixed: dict[str, float] = {}
    for (gpu, name), value in zip(agent.names, agent.values.tolist(), strict=True):
        if name == "fixed":
            fixed[gpu] = value
            gpus.setdefault(gpu, _Gpu())
        else:
            setattr(gpus.setdefault(gpu, _Gpu()), name, value)
    for gpu, one in gpus.items():
        one.settable = all(map(math.isfinite, (one.least, one.most, one.current)))
        if not one.settable:
            one.current = fixed.get(gpu, one.current)
    return gpus


def _places(layout: AnyLayout) -> list[tuple[int, str, str]]:
    """Return (position, UUID, name of the value) of the gauges of the layout that count here, limits first."""
    found = []
    for position, column in enumerate(layout.whole().gauges):
        if column.metric not in (SETTABLE, LIMIT, POWER):
            continue
        labels = dict(column.labels)
        gpu, limit = labels.get("gpu", ""), labels.get("limit", "")
        names = {POWER: {"": "power"}, SETTABLE: _NAMES, LIMIT: _OWN}[column.metric]
        if gpu and limit in names:
            found.append((position, gpu, names[limit]))
    return sorted(found, key=lambda one: one[2] == "power")
