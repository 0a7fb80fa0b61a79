"""Queue shares: the slots that each queue of the hierarchy holds, and its limits."""

from __future__ import annotations

from scheduler_feedback.core.state import Policy, Queue, State


class Shares:
    """Slots held by queue.

    held: slots of each configured queue and all queues below it. A gang counts from its start, or from its reservation.
    limited: whether any queue has a limit.
    """

    __slots__ = ("_chains", "held", "limited", "queues")

    def __init__(self, policy: Policy) -> None:
        self.queues: dict[str, Queue] = {queue.name: queue for queue in policy.queues}
        self.limited = any(most_slots(queue) is not None for queue in policy.queues)
        self.held: dict[str, int] = dict.fromkeys(self.queues, 0)
        self._chains: dict[str, tuple[str, ...]] = {}

    def chain(self, queue: str) -> tuple[str, ...]:
        """Return the queue and all queues above it, from the bottom up; () if the policy does not name it."""
        chain = self._chains.get(queue)
        if chain is None:
            found: list[str] = []
            name = queue
            while name in self.queues and name not in found:
                found.append(name)
                name = self.queues[name].parent
            chain = self._chains[queue] = tuple(found)
        return chain

    def use(self, queue: str, slots: int) -> None:
        """Add slots to what the queue holds; negative to subtract."""
        if self.queues:
            for name in self.chain(queue):
                self.held[name] += slots

    def rank_queues(self, state: State, now_ns: int) -> None:
        """Update the decayed usage of the queues and their order: queues below quota first, then by usage."""
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
        """Return from the root down, for each queue: whether it borrows, and its usage divided by its weight."""
        return tuple(
            (
                self.queues[name].quota is not None and self.held[name] >= (self.queues[name].quota or 0),
                state.queue_use.get(name, 0.0) / self.queues[name].weight,
            )
            for name in reversed(self.chain(queue))
        )

    def left(self, queue: str) -> int | None:
        """Return the slots that the queue may still take; None if it has no limit."""
        left = [
            most - self.held[name] for name in self.chain(queue) if (most := most_slots(self.queues[name])) is not None
        ]
        return min(left, default=None)

    def never(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """Return the queue, with its limit, that could not hold this many ranks even if empty; None if all could."""
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and ranks > most:
                return name, most
        return None

    def room(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """Return the queue, with its limit, that this many more ranks would exceed; None if they fit."""
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and self.held[name] + ranks > most:
                return name, most
        return None


def most_slots(queue: Queue) -> int | None:
    """Return the most slots that the queue may hold; None if unlimited."""
    if queue.borrow or queue.quota is None:
        return queue.limit
    return queue.quota if queue.limit is None else min(queue.quota, queue.limit)
