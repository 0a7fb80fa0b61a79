"""Queue shares: the slots that each queue of the hierarchy holds, and its limits."""

from __future__ import annotations

from scheduler_feedback.core.state import Order, Policy, Queue, State, TypeQuotas
from scheduler_feedback.policies.index.type_holdings import TypeHoldings


class Shares:
    """Number of slots that each queue holds, and the limits of the queues.

    held: number of slots by queue, with the slots of all queues below it. A gang's slots count from its start or its
        reservation.
    limited: whether any queue has a limit.
    types: the same for each GPU type; None if quotas count all types alike.
    """

    __slots__ = ("_chains", "held", "limited", "queues", "types")

    def __init__(self, policy: Policy) -> None:
        self.queues: dict[str, Queue] = {queue.name: queue for queue in policy.queues}
        self.limited = any(most_slots(queue) is not None for queue in policy.queues)
        self.held: dict[str, int] = dict.fromkeys(self.queues, 0)
        self._chains: dict[str, tuple[str, ...]] = {}
        self.types = TypeHoldings() if quotas_by_type(policy) else None

    def chain(self, queue: str) -> tuple[str, ...]:
        """Return the queue and all its parent queues, the queue first; () if the policy does not name the queue."""
        chain = self._chains.get(queue)
        if chain is None:
            found: list[str] = []
            name = queue
            while name in self.queues and name not in found:
                found.append(name)
                name = self.queues[name].parent
            chain = self._chains[queue] = tuple(found)
        return chain

    def owner(self, queue: str) -> str | None:
        """Return the name of the queue, or of its nearest parent queue, that has a quota; None if none has."""
        return next((name for name in self.chain(queue) if self.queues[name].quota is not None), None)

    def quota(self, name: str) -> int:
        """Return the quota of a queue in slots of all GPU types, after trades; 0 if it has none."""
        traded = self.types.total(name) if self.types is not None else None
        return (self.queues[name].quota or 0) if traded is None else traded

    def use(self, queue: str, slots: int) -> None:
        """Add to the number of slots that the queue and its parents hold. A negative number subtracts."""
        if self.queues:
            for name in self.chain(queue):
                self.held[name] += slots

    def rank_queues(self, state: State, now_ns: int) -> None:
        """Apply the decay to the past usage of each queue, and sort the queues for fair sharing.

        Queues below their quota are first. Among the other queues, the one with the least usage / weight is first.
        """
        if not self.queues:
            return
        seconds = (now_ns - state.queue_use_ns) / 1e9 if state.queue_use_ns else 0.0
        fading = 0.5 ** (seconds / state.policy.usage_half_life_seconds)
        state.queue_use_ns = now_ns
        for name in self.queues:
            state.queue_use[name] = state.queue_use.get(name, 0.0) * fading + self.held[name] * seconds
        ranked = sorted(self.queues, key=lambda name: self._rank_key(state, name))
        state.queue_turns = {name: number for number, name in enumerate(ranked)}

    def _rank_key(self, state: State, queue: str) -> tuple[tuple[bool, float], ...]:
        """Return the sort key of a queue: (whether it borrows, usage / weight) of each parent and of the queue."""
        return tuple(
            (
                self.queues[name].quota is not None and self.held[name] >= self.quota(name),
                state.queue_use.get(name, 0.0) / self._weight(name),
            )
            for name in reversed(self.chain(queue))
        )

    def _weight(self, name: str) -> float:
        """Return the queue's weight. A queue that has traded for more, slower slots has the right to use more."""
        queue = self.queues[name]
        if self.types is None or not queue.quota:
            return queue.weight
        return queue.weight * max(self.quota(name), 1) / queue.quota

    def left(self, queue: str) -> int | None:
        """Return how many more slots the queue may take; None if neither the queue nor a parent has a limit."""
        left = [
            most - self.held[name] for name in self.chain(queue) if (most := most_slots(self.queues[name])) is not None
        ]
        return min(left, default=None)

    def never(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """Return (name, limit) of the first queue, from this queue upward, whose limit is below `ranks`. None if there
        is none.

        A job with this many ranks could not start even if these queues were empty.
        """
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and ranks > most:
                return name, most
        return None

    def room(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """Return (name, limit) of the first queue, from this queue upward, that has fewer than `ranks` slots left. None
        if there is none."""
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and self.held[name] + ranks > most:
                return name, most
        return None


def most_slots(queue: Queue) -> int | None:
    """Return the maximum number of slots that the queue may hold; None if it has no limit."""
    if queue.borrow or queue.quota is None:
        return queue.limit
    return queue.quota if queue.limit is None else min(queue.quota, queue.limit)


def quotas_by_type(policy: Policy) -> bool:
    """Return whether each queue with a quota is entitled to slots of every GPU type."""
    if policy.type_quotas is TypeQuotas.ALIKE or policy.order is not Order.FAIR or not policy.preempt:
        return False
    return any(queue.quota is not None for queue in policy.queues)
