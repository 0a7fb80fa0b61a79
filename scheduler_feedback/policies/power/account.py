"""Account of the power that the cluster's GPUs may draw: limits of busy GPUs, and measured power of idle ones.

A busy GPU counts with the higher one of the limit that the scheduler wants and the limit that its agent reports. So a
lowered limit frees watts only after the agent has confirmed it. An idle GPU counts with its measured idle power; its
agent is asked for its lowest limit, so that the next gang starts with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_feedback.core.job import Job, Slot
from scheduler_feedback.core.power import SlotPower
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.power.gpus import Gpus, gpus_of


@dataclass(frozen=True, slots=True)
class Unit:
    """Gangs whose GPUs have one limit: one gang, or several that share slots."""

    jobs: tuple[str, ...]
    """Ids of the gangs, sorted. The first one names the unit."""
    gpus: Gpus
    """Their GPUs; each counts once."""
    parts: tuple[tuple[float, Gpus], ...]
    """The same GPUs by present limit, ascending; 0: none was chosen. More than one only after a gang has joined others.
    """

    @property
    def name(self) -> str:
        return self.jobs[0]

    @property
    def limit_watts(self) -> float | None:
        """Present limit; None if none was chosen, or if the gangs have different ones."""
        return self.parts[0][0] or None if len(self.parts) == 1 else None

    def watts(self, confirmed: bool = False) -> float:
        """Return the sum of the present limits. confirmed: see ``Gpus.watts``."""
        return sum(gpus.watts(limit, confirmed) for limit, gpus in self.parts)


class Account:
    """Watts of one state's GPUs. Valid until a gang starts or ends, or a report arrives."""

    __slots__ = ("_index", "_state", "busy_idle_watts", "idle_watts", "units")

    def __init__(self, state: State, index: SchedulingIndex) -> None:
        self._state, self._index = state, index
        caches = state.__dict__.setdefault("power_caches", _Caches())
        self.units: list[Unit] = list(_units(state, index, caches))
        """Gangs with GPUs, by name."""
        all_idle = sum(caches.idle(name, reported) for name, reported in state.power.items())
        self.busy_idle_watts = sum(unit.gpus.idle_watts for unit in self.units)
        self.idle_watts: float = max(all_idle - self.busy_idle_watts, 0.0)
        """Power of the idle GPUs."""

    @property
    def committed_watts(self) -> float:
        """What all GPUs may draw now."""
        return self.idle_watts + sum(unit.watts(confirmed=True) for unit in self.units)

    @property
    def wanted_watts(self) -> float:
        """What all GPUs may draw once the agents have confirmed the wanted limits."""
        return self.idle_watts + sum(unit.watts() for unit in self.units)

    @property
    def room_watts(self) -> float:
        """Unused part of the budget now; negative if it is exceeded."""
        return self._state.policy.power_budget_watts - self.committed_watts

    def fresh(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return those of the slots that no gang holds."""
        if not self._index.sharers:
            return list(slots)
        return [slot for slot in slots if not self._index.sharers.get(slot)]

    def need_watts(self, slots: Sequence[Slot]) -> float:
        """Return by how much the total rises if a gang starts on these free slots with its lowest limit."""
        gpus = gpus_of(self._state, self.fresh(slots))
        return max(gpus.watts(0.0, confirmed=True) - gpus.idle_watts, 0.0)


class _Caches:
    """GPUs of running gangs, and idle power of nodes, as of the last reports."""

    __slots__ = ("_idle", "gpus")

    def __init__(self) -> None:
        self.gpus: dict[str, tuple[tuple[Slot, ...], dict[str, tuple[SlotPower, ...] | None], Gpus]] = {}
        self._idle: dict[str, tuple[tuple[SlotPower, ...], float]] = {}

    def idle(self, node: str, reported: tuple[SlotPower, ...]) -> float:
        found = self._idle.get(node)
        if found is None or found[0] is not reported:
            found = self._idle[node] = reported, sum(one.idle_watts for one in reported)
        return found[1]

    def of(self, state: State, job_id: str, slots: tuple[Slot, ...]) -> Gpus:
        found, power = self.gpus.get(job_id), state.power
        if found is None or found[0] is not slots or any(power.get(name) is not one for name, one in found[1].items()):
            reports = {slot.node: power.get(slot.node) for slot in slots}
            found = self.gpus[job_id] = slots, reports, gpus_of(state, slots)
        return found[2]


def _units(state: State, index: SchedulingIndex, caches: _Caches) -> Iterable[Unit]:
    for gone in [name for name in caches.gpus if name not in index.held]:
        del caches.gpus[gone]
    mixed = _on_mixed_nodes(state, index)
    seen: set[str] = set()
    for job_id in sorted(index.held):
        if job_id in seen:
            continue
        if job_id not in mixed and (not index.sharers or not index.partners(job_id)):
            gpus = caches.of(state, job_id, index.held[job_id])
            if gpus.kinds or gpus.unknown:
                yield Unit((job_id,), gpus, ((state.jobs[job_id].power_limit_watts, gpus),))
            continue
        group = _connected(index, job_id, mixed)
        seen |= group
        jobs = tuple(sorted(group))
        gpus = gpus_of(state, sorted({slot for one in jobs for slot in index.held[one]}))
        if gpus.kinds or gpus.unknown:
            yield Unit(jobs, gpus, _parts(state, index, jobs))


def _on_mixed_nodes(state: State, index: SchedulingIndex) -> dict[str, set[str]]:
    """Return the gangs on the same nodes, by gang, for nodes on which it is unknown which GPUs a gang has."""
    nodes = {name for name, reported in state.power.items() if reported[0].together}
    on: dict[str, set[str]] = {}
    for job_id, slots in index.held.items() if nodes else ():
        for name in {slot.node for slot in slots} & nodes:
            on.setdefault(name, set()).add(job_id)
    found: dict[str, set[str]] = {}
    for jobs in on.values():
        for job_id in jobs if len(jobs) > 1 else ():
            found.setdefault(job_id, set()).update(jobs)
    return found


def _parts(state: State, index: SchedulingIndex, jobs: Sequence[str]) -> tuple[tuple[float, Gpus], ...]:
    """Return the GPUs of gangs that share slots, by the highest limit of the gangs on each."""
    limits: dict[Slot, float] = {}
    for job_id in jobs:
        for slot in index.held[job_id]:
            limits[slot] = max(limits.get(slot, 0.0), state.jobs[job_id].power_limit_watts)
    found: dict[float, list[Slot]] = {}
    for slot, limit in sorted(limits.items()):
        found.setdefault(limit, []).append(slot)
    return tuple((limit, gpus_of(state, slots)) for limit, slots in sorted(found.items()))


def _connected(index: SchedulingIndex, job_id: str, mixed: Mapping[str, set[str]]) -> set[str]:
    """Return the ids of all jobs whose GPUs have one limit with the job's, directly or through others, and its own."""
    found, left = {job_id}, [job_id]
    while left:
        one = left.pop()
        more = (set(index.partners(one)) | mixed.get(one, set())) - found
        found |= more
        left += more
    return found


def account_of(state: State, index: SchedulingIndex) -> Account:
    """Return the account of the state as it is now."""
    return Account(state, index)


def unit_of(account: Account, job: Job) -> Unit | None:
    """Return the unit of a running gang; None if it has no GPUs with known power."""
    return next((unit for unit in account.units if job.job_id in unit.jobs), None)
