"""Shares: what each queue of the hierarchy holds, and what it may hold."""

from __future__ import annotations

from scheduler_feedback.core.state import Policy, Queue, State


class Shares:
    """held: slots that each named queue holds with all below it; a gang counts from its start, or its claim, on.

    limited: whether any queue may be kept from starting something by what it holds.
    """

    __slots__ = ("_chains", "held", "limited", "queues")

    def __init__(self, policy: Policy) -> None:
        self.queues: dict[str, Queue] = {queue.name: queue for queue in policy.queues}
        self.limited = any(most_slots(queue) is not None for queue in policy.queues)
        self.held: dict[str, int] = dict.fromkeys(self.queues, 0)
        self._chains: dict[str, tuple[str, ...]] = {}

    def chain(self, queue: str) -> tuple[str, ...]:
        """The queue and all above it, from below; () where no policy names it."""
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
        """The queue holds so many more."""
        if self.queues:
            for name in self.chain(queue):
                self.held[name] += slots

    def rank_queues(self, state: State, now_ns: int) -> None:
        """Let time pass over what the queues have used, and say how they stand: under quota first, then by use."""
        if not self.queues:
            return
        seconds = (now_ns - state.queue_use_ns) / 1e9 if state.queue_use_ns else 0.0
        fading = 0.5 ** (seconds / state.policy.usage_half_life_seconds)
        state.queue_use_ns = now_ns
        for name in self.queues:
            state.queue_use[name] = state.queue_use.get(name, 0.0) * fading + self.held[name] * seconds
        ranked = sorted(self.queues, key=lambda name: self._standing(state, name))
        state.queue_turns = {name: number for number, name in enumerate(ranked)}

    def _standing(self, state: State, queue: str) -> tuple[tuple[bool, float], ...]:
        """From the root down: does it borrow, and how much has it used for its weight."""
        return tuple(
            (
                self.queues[name].quota is not None and self.held[name] >= (self.queues[name].quota or 0),
                state.queue_use.get(name, 0.0) / self.queues[name].weight,
            )
            for name in reversed(self.chain(queue))
        )

    def left(self, queue: str) -> int | None:
        """Slots that the queue may still take; None: no limit binds it."""
        left = [
            most - self.held[name] for name in self.chain(queue) if (most := most_slots(self.queues[name])) is not None
        ]
        return min(left, default=None)

    def never(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """The queue whose limit so many ranks exceed even while it is empty, and that limit; None: there is none."""
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and ranks > most:
                return name, most
        return None

    def room(self, queue: str, ranks: int) -> tuple[str, int] | None:
        """The queue at whose limit so many more ranks would not fit, and that limit; None where they do."""
        for name in self.chain(queue):
            most = most_slots(self.queues[name])
            if most is not None and self.held[name] + ranks > most:
                return name, most
        return None


def most_slots(queue: Queue) -> int | None:
    """Slots that the queue may hold at all."""
    if queue.borrow or queue.quota is None:
        return queue.limit
    return queue.quota if queue.limit is None else min(queue.quota, queue.limit)
