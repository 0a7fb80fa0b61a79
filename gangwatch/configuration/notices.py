"""What a valid configuration asks for and will not get: settings that another setting leaves without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.schema.errors import GangwatchError
from gangwatch.configuration.in_force import read_in_force
from gangwatch.health.machine import Finding
from gangwatch.state_folder import StateFolder

if TYPE_CHECKING:
    from scheduler_feedback.core.state import Policy

_FAIR = 'policy.order = "fair"'
_PREEMPT = "policy.preempt = true"


def notices(policy: Policy) -> tuple[str, ...]:
    """A sentence for each setting without effect: its key, and the change that gives it one."""
    return tuple(f"{what}; set {change}" for what, change in _without_effect(policy))


def finding(policy: Policy) -> Finding:
    """The same for `gangwatch check`."""
    found = _without_effect(policy)
    if not found:
        return Finding("policy", "found", f'order = "{policy.order.value}"')
    return Finding("policy", "limited", "; ".join(what for what, _ in found), found[0][1])


def finding_of(state: StateFolder, policy: Policy, named: bool) -> Finding:
    """The same of the policy that the running controller works by, or of this one.

    policy: of the configuration that was read; it is taken where its file was named, or where no controller runs.
    """
    if named or state.controller() is None:
        return finding(policy)
    try:
        in_force = read_in_force(state)
    except GangwatchError as error:
        return Finding("policy", "limited", str(error), "gangwatch reload, which writes it again")
    return finding(policy if in_force is None else in_force.config.policy)


def _without_effect(policy: Policy) -> list[tuple[str, str]]:
    """What has no effect, and the change that gives it one; the same change for all."""
    from scheduler_feedback.core.state import Order

    # A quota beyond which a queue may not borrow is a limit, which every order keeps.
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
        what = "what others borrow of its 'quota' comes back only when their jobs end"
        return [(f"policy.queues: {', '.join(shared)}: {what}", _PREEMPT)]
    return []
