"""Notices about valid settings that have no effect because of another setting."""

from __future__ import annotations

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config
from gangwatch.configuration.in_force import read_in_force
from gangwatch.health.machine import Finding
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.state import Mode, Order, Policy, Sharing, Sizes, TypeQuotas
from scheduler_feedback.policies.index.queue_shares import quotas_by_type

_FAIR = 'policy.order = "fair"'
_PREEMPT = "policy.preempt = true"


def notices(
    policy: Policy,
    jobs_per_slot: int,
    slurm: bool = False,
    slot_memory_mib: int = 0,
    sets_power: bool = True,
    divides: bool = True,
    certified: bool = True,
) -> tuple[str, ...]:
    """Return a sentence for each setting that has no effect: its key, and the change that makes it effective.

    jobs_per_slot, slurm, slot_memory_mib: `cluster.jobs_per_slot`, `slurm.enabled` and `cluster.slot_memory_mib` of the
    same configuration. sets_power, certified: whether it sets `agent.power_limits` and `agent.web_config`. divides:
    `cluster.mig`.
    """
    found = _without_effect(policy, jobs_per_slot, slurm, slot_memory_mib, sets_power, divides, certified)
    return tuple(f"{what}; set {change}" for what, change in found)


def notices_of(config: Config) -> tuple[str, ...]:
    """Return the notices about a configuration."""
    return notices(*_settings(config))


def _settings(config: Config) -> tuple[Policy, int, bool, int, bool, bool, bool]:
    """Return the arguments of ``notices`` for a configuration."""
    cluster, agent = config.cluster, config.agent
    return (
        *(config.policy, cluster.jobs_per_slot, config.slurm.enabled, cluster.slot_memory_mib),
        *(bool(agent.power_limits), cluster.mig, bool(agent.web_config)),
    )


def finding(
    policy: Policy,
    jobs_per_slot: int,
    slurm: bool = False,
    slot_memory_mib: int = 0,
    sets_power: bool = True,
    divides: bool = True,
    certified: bool = True,
) -> Finding:
    """Return the notices as one check result of `gangwatch check`."""
    found = _without_effect(policy, jobs_per_slot, slurm, slot_memory_mib, sets_power, divides, certified)
    if not found:
        return Finding("policy", "found", f'order = "{policy.order.value}"')
    return Finding("policy", "limited", "; ".join(what for what, _ in found), found[0][1])


def finding_of(state: StateFolder, config: Config, named: bool) -> Finding:
    """Return the check result for the policy of the running controller, or for `config` if no controller is running.

    config: the configuration file. named: whether the user gave this file; if so, it is checked.
    """
    if not named and state.controller() is not None:
        try:
            in_force = read_in_force(state)
        except GangwatchError as error:
            return Finding("policy", "limited", str(error), "gangwatch reload writes the file again")
        config = config if in_force is None else in_force.config
    return finding(*_settings(config))


def _without_effect(
    policy: Policy,
    jobs_per_slot: int,
    slurm: bool,
    slot_memory_mib: int,
    sets_power: bool,
    divides: bool,
    certified: bool,
) -> list[tuple[str, str]]:
    """Return each setting that has no effect, with the change that makes it effective."""
    found = _queues_without_effect(policy)
    if policy.order is Order.ROUND_ROBIN and not policy.preempt:
        found.append(('policy.order: "round-robin" is first come, first served without preemption', _PREEMPT))
    if policy.type_quotas is not TypeQuotas.ALIKE and not slurm and not quotas_by_type(policy):
        value = policy.type_quotas.value
        what = f'policy.type_quotas: "{value}" has no effect without quotas, the fair order and preemption'
        found.append((what, f"a quota for each queue, {_FAIR} and {_PREEMPT}"))
    if policy.power_budget_watts and policy.mode is Mode.OBSERVE:
        found.append(("policy.power_budget_watts: no limit is set in mode observe", 'controller.mode = "act"'))
    if policy.mig and any(queue.cells for queue in policy.queues):
        found.append(("policy.mig: no effect, because queues with cells get whole GPUs", "no cells of queues"))
    if policy.uplink_rails > 1 and not (policy.uplink_slowdown or policy.time_shifts):
        found.append(("policy.uplink_rails: no effect, because uplinks cost nothing", "policy.uplink_slowdown = 0.1"))
    if policy.time_shifts and policy.mode is Mode.OBSERVE:
        found.append(("policy.time_shifts: no step is delayed in mode observe", 'controller.mode = "act"'))
    if slurm:
        return found + _without_effect_with_slurm(policy)
    if policy.power_budget_watts and not sets_power:
        what = (
            "policy.power_budget_watts: gangs wait for watts, and no limit is lowered, because the agents may set none"
        )
        found.append((what, "agent.power_limits (docs/how-to/agent.md)"))
    if policy.mig and not divides:
        what = "policy.mig: no effect, because gangwatch divides no GPU"
        found.append((what, "cluster.mig = true (a cluster of `gangwatch up` only)"))
    if policy.time_shifts and not certified:
        what = "policy.time_shifts: agents without certificates, as on one machine, delay no step"
        found.append((what, "agent.web_config and agent.frame_readers (docs/how-to/certificates.md)"))
    if policy.sharing is not Sharing.NONE and jobs_per_slot < 2:
        what = f'policy.sharing: "{policy.sharing.value}" has no effect, because a slot holds one job'
        found.append((what, "cluster.jobs_per_slot = 2 or more (a cluster of `gangwatch up` only)"))
    if policy.learnt_memory and policy.sharing is Sharing.NONE:
        found.append(("policy.learnt_memory: no effect, because no jobs share slots", "policy.sharing to a rule"))
    elif policy.learnt_memory and not slot_memory_mib:
        what = "policy.learnt_memory: no effect, because the device memory of a slot is unknown"
        found.append((what, "cluster.slot_memory_mib (a cluster of `gangwatch up` only)"))
    return found


def _without_effect_with_slurm(policy: Policy) -> list[tuple[str, str]]:
    found = []
    if policy.mig:
        found.append(("policy.mig: no effect: Slurm starts the jobs and divides the GPUs", "policy.mig = false"))
    if policy.learnt_memory:
        found.append(("policy.learnt_memory: no effect: Slurm starts the jobs", "policy.learnt_memory = false"))
    if policy.sharing is not Sharing.NONE:
        what = "no effect: Slurm starts the jobs, and shares GPUs itself (--gres=shard or --gres=mps)"
        found.append((f"policy.sharing: {what}", 'policy.sharing = "none"'))
    if policy.sizes is not Sizes.IDLE:
        found.append(("policy.sizes: no effect: a Slurm job has a fixed number of ranks", 'policy.sizes = "idle"'))
    if policy.type_quotas is not TypeQuotas.ALIKE:
        what = "no effect: Slurm chooses the nodes (see its GRES limits of an association, such as GrpTRES)"
        found.append((f"policy.type_quotas: {what}", 'policy.type_quotas = "alike"'))
    if policy.dataset_cache_gib:
        what = "no effect: Slurm chooses the nodes, without regard to the datasets in their caches"
        found.append((f"policy.dataset_cache_gib: {what}", "policy.dataset_cache_gib = 0"))
    if names := [queue.name for queue in policy.queues if queue.cells]:
        what = "'cells' have no effect, because Slurm chooses the nodes (see its reservations)"
        found.append((f"policy.queues: {', '.join(names)}: {what}", "no cells"))
    return found


def _queues_without_effect(policy: Policy) -> list[tuple[str, str]]:
    # A quota without borrowing is a limit, which every order enforces.
    shared = [queue.name for queue in policy.queues if queue.quota is not None and queue.borrow]
    weighed = [queue.name for queue in policy.queues if queue.weight != 1.0]
    if policy.order is not Order.FAIR:
        ignored = (("quota", shared), ("weight", weighed))
        return [
            (f"policy.queues: {', '.join(names)}: '{key}' has no effect under order = \"{policy.order.value}\"", _FAIR)
            for key, names in ignored
            if names
        ]
    if shared and not policy.preempt:
        what = "slots of its 'quota' that other queues borrow are returned only when their jobs end"
        return [(f"policy.queues: {', '.join(shared)}: {what}", _PREEMPT)]
    return []
