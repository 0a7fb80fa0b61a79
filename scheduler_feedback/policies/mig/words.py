"""MIG instances in words: where a job runs, why it waits, and why a request is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from scheduler_feedback.core.job import Job, JobSpec, Slot
from scheduler_feedback.core.mig import MigProfile, named
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cells.virtual_cluster import uses_cells
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex

MOST_NAMED = 4
"""Maximum number of GPUs, or GPU models, that one sentence names."""


def gpus_in_words(slots: Iterable[Slot]) -> str:
    """Return these GPUs, such as 'GPU 3 of node-1', each once."""
    by_node: dict[str, list[str]] = {}
    for slot in dict.fromkeys(slots):
        by_node.setdefault(slot.node, []).append(str(slot.slot))
    return " and ".join(
        f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} of {node}" for node, numbers in by_node.items()
    )


def instances_in_words(spec: JobSpec) -> str:
    """Return what the job asks for, such as 'a 2g.20gb instance' or '3 instances of 1g.10gb'."""
    return f"a {spec.mig_profile} instance" if spec.ranks == 1 else f"{spec.ranks} instances of {spec.mig_profile}"


def present(index: SchedulingIndex, job: Job, slots: Collection[Slot]) -> str:
    """Return in which instances the job runs, and beside which jobs, to append to a sentence; '' if in none."""
    if not job.spec.mig_profile or not slots:
        return ""
    others = sorted({one for slot in slots for one in index.sharers.get(slot, ()) if one != job.job_id})
    where = gpus_in_words(slots)
    text = f"; in {instances_in_words(job.spec)} of {where}"
    if not others:
        return f"{text}, alone on {'it' if len(set(slots)) == 1 else 'them'}"
    names = ", ".join(f"{one} ({index.state.jobs[one].spec.mig_profile})" for one in others)
    return f"{text}, beside {names}"


def starts_in_words(index: SchedulingIndex, job: Job, slots: Collection[Slot]) -> str:
    """Return in which instances the job starts, and why there, to append to a sentence; '' if in none."""
    if not job.spec.mig_profile:
        return ""
    text = present(index, job, slots)
    if fresh := [slot for slot in slots if slot not in index.divided]:
        return f"{text}; the scheduler divides {gpus_in_words(fresh)} for it"
    return f"{text}; most room for typical instances is left there"


def waits_in_words(state: State, index: SchedulingIndex, job: Job) -> str:
    """Return why no GPU has room for the job's instances now, to append to a sentence; '' if it asks for none."""
    name = job.spec.mig_profile
    if not name:
        return ""
    able = [node for node in state.nodes.values() if named(node.mig_profiles, name) is not None and node.present]
    if job.spec.gpu_types:
        able = [node for node in able if node.gpu_type in job.spec.gpu_types]
    room, whole, full = 0, 0, []
    plan = index.plan
    for node in able:
        profile = named(node.mig_profiles, name)
        number = plan.topology.number[node.name]
        free = plan.free_slots(number)
        for slot in plan.topology.slots[number]:
            busy = index.divided.get(slot)
            if busy is not None and profile is not None and all(busy & profile.mask(one) for one in profile.starts):
                full.append(slot)
            elif busy is None and not free >> slot.slot & 1:
                whole += 1
            else:
                room += 1
    parts = [f"{whole} run{'s' if whole == 1 else ''} other jobs as a whole, or are reserved"] if whole else []
    if full:
        parts.append(f"{len(full)} ha{'s' if len(full) == 1 else 've'} no free slices for it ({_full(index, full)})")
    if room:
        parts.append(f"{room} ha{'s' if room == 1 else 've'} room, which other jobs need first or which is too little")
    total = sum(node.slots for node in able)
    have = f"{total} GPU{'' if total == 1 else 's'} ha{'s' if total == 1 else 've'} this profile"
    head = f"no GPU has room for {name}" if not room else f"too little room for {instances_in_words(job.spec)}"
    return f"; {head}: {have}; of these, {'; '.join(parts) or 'none is available'}"


def _full(index: SchedulingIndex, slots: Sequence[Slot]) -> str:
    texts = []
    for slot in slots[:MOST_NAMED]:
        jobs = ", ".join(f"{one} in {index.state.jobs[one].spec.mig_profile}" for one in index.sharers.get(slot, ()))
        texts.append(f"{gpus_in_words((slot,))}: {jobs}")
    return "; ".join(texts) + (" ..." if len(slots) > MOST_NAMED else "")


# --- refused requests ------------------------------------------------------------------------------------------------


def refused(state: State, spec: JobSpec) -> str | None:
    """Return why the cluster cannot give the job the MIG instances that it asks for, as a sentence; None if it can."""
    name = spec.mig_profile
    if not name:
        return None
    asks = f"asks for the MIG profile {name}"
    if not state.policy.mig:
        return f"{asks}, but the scheduler places no MIG instances: the operator can set mig = true in [policy]"
    if uses_cells(state.policy):
        return f"{asks}, but queues with cells get whole GPUs only: the operator can remove the cells of all queues"
    nodes = [node for node in state.nodes.values() if node.present]
    if not any(node.mig_profiles for node in nodes):
        return f"{asks}, but no GPU of this cluster can be divided by MIG now"
    able = [node for node in nodes if named(node.mig_profiles, name) is not None]
    if spec.gpu_types:
        able = [node for node in able if node.gpu_type in spec.gpu_types]
    if not able:
        types = f" {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""
        return f"{asks}, which no{types} GPU of this cluster has; {profiles_in_words(state)}"
    most = sum(node.slots * len(profile.starts) for node in able if (profile := named(node.mig_profiles, name)))
    if spec.ranks > most:
        return f"asks for {spec.ranks} instances of {name}; the GPUs of this cluster can hold at most {most}"
    return None


def profiles_in_words(state: State) -> str:
    """Return the profiles that exist in the cluster, by GPU model."""
    models: Counter[tuple[str, tuple[MigProfile, ...]]] = Counter()
    for node in state.nodes.values():
        if node.present and node.mig_profiles:
            models[node.gpu_type, node.mig_profiles] += node.slots
    texts = [
        f"{gpu_type or 'its GPUs'} ({count}): {', '.join(one.name for one in profiles)}"
        for (gpu_type, profiles), count in sorted(models.items(), key=lambda item: item[0][0])
    ]
    return "there are " + "; ".join(texts[:MOST_NAMED]) + (" ..." if len(texts) > MOST_NAMED else "")
