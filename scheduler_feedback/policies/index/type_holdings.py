"""Slots of each GPU type that queues with a quota hold, and those to which they are entitled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.job import Slot


class TypeHoldings:
    """Slots of each GPU type by queue. The queues are those with a quota; the others are not counted.

    held: queue -> GPU type -> slots that its gangs hold or have reserved. entitled: queue -> GPU type -> slots to which
        it is entitled, after trades; empty while the types are not divided (``gpu_types.type_quotas``).
    """

    __slots__ = ("_counted", "entitled", "held")

    def __init__(self) -> None:
        self.held: dict[str, dict[str, int]] = {}
        self.entitled: Mapping[str, Mapping[str, int]] = {}
        self._counted: dict[str, tuple[str, dict[str, int]]] = {}

    def hold(self, job_id: str, queue: str | None, slots: Iterable[Slot], nodes: Mapping[str, Node]) -> None:
        """Count these slots for the job, instead of those counted for it before. queue: the queue with the quota."""
        self.release(job_id)
        if queue is None:
            return
        counts: dict[str, int] = {}
        for slot in slots:
            if (node := nodes.get(slot.node)) is not None:
                counts[node.gpu_type] = counts.get(node.gpu_type, 0) + 1
        self._counted[job_id] = queue, counts
        held = self.held.setdefault(queue, {})
        for name, count in counts.items():
            held[name] = held.get(name, 0) + count

    def release(self, job_id: str) -> None:
        """Stop counting slots for the job."""
        queue, counts = self._counted.pop(job_id, ("", {}))
        for name, count in counts.items():
            held = self.held[queue]
            held[name] -= count
            if not held[name]:
                del held[name]

    def of(self, job_id: str, gpu_type: str) -> int:
        """Return the number of slots of the type that are counted for the job."""
        return self._counted.get(job_id, ("", {}))[1].get(gpu_type, 0)

    def types_of(self, job_id: str) -> Iterable[str]:
        """Return the GPU types of the slots that are counted for the job."""
        return self._counted.get(job_id, ("", {}))[1]

    def excess(self, queue: str, gpu_type: str) -> int:
        """Return how many slots of the type the queue holds beyond those to which it is entitled; negative: fewer."""
        return self.held.get(queue, {}).get(gpu_type, 0) - self.entitled.get(queue, {}).get(gpu_type, 0)

    def total(self, queue: str) -> int | None:
        """Return the number of slots of all types to which the queue is entitled; None if they are not divided."""
        shares = self.entitled.get(queue)
        return None if shares is None else sum(shares.values())

    def own_first(self, queue: str | None, ranks: int, types: Sequence[int], names: Sequence[str]) -> Sequence[int]:
        """Return the numbers of GPU types in the order in which a job of the queue uses them.

        First are those of which the queue still has enough slots of its own. types: the fastest first. names: of all
        types, by number.
        """
        if queue is None or queue not in self.entitled:
            return types
        return sorted(types, key=lambda number: self.excess(queue, names[number]) + ranks > 0)
