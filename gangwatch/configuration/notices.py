"""Notices about valid settings that have no effect because of another setting."""

from __future__ import annotations

from agent.schema.errors import GangwatchError
from gangwatch.configuration.in_force import read_in_force
from gangwatch.health.machine import Finding
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.state import Order, Policy

_FAIR = 'policy.order = "fair"'
_PREEMPT = "policy.preempt = true"


def notices(policy: Policy) -> tuple[str, ...]:
    """Return a sentence for each setting without effect: its key, and the change that makes it effective."""
    return tuple(f"{what}; set {change}" for what, change in _without_effect(policy))


def finding(policy: Policy) -> Finding:
    """Return the notices as one check result of `gangwatch check`."""
    found = _without_effect(policy)
    if not found:
        return Finding("policy", "found", f'order = "{policy.order.value}"')
    return Finding("policy", "limited", "; ".join(what for what, _ in found), found[0][1])


def finding_of(state: StateFolder, policy: Policy, named: bool) -> Finding:
    """Return the finding for the running controller's policy, or for `policy`.

    policy: from the configuration file; used if the file was given explicitly (named) or no controller is running.
    """
    if named or state.controller() is None:
        return finding(policy)
    try:
        in_force = read_in_force(state)
    except GangwatchError as error:
        return Finding("policy", "limited", str(error), "gangwatch reload writes the file again")
    return finding(policy if in_force is None else in_force.config.policy)


def _without_effect(policy: Policy) -> list[tuple[str, str]]:
    """Return settings without effect, each with the change that makes it effective; the change is the same for all."""
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
