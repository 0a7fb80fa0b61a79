"""Count the slots of one GPU type that a preemption pass has left to give, on spare nodes and on all others."""

from __future__ import annotations


class Room:
    """The slots of one GPU type that a preemption pass may still give to jobs.

    idle, idle_spares: number of idle slots on nodes that are no spares, and on spare nodes. movable, movable_spares:
    the same for slots of gangs that may be stopped. Only jobs that may borrow use slots on spare nodes.

    Jobs take idle slots first, as a placement does: otherwise a job that could start on an idle spare node would cause
    a stop, or a job could be chosen that cannot start before the next pass. Of idle slots, they take those on spare
    nodes last. Of the others, they take those on spare nodes first, because fewer jobs can use these.
    """

    __slots__ = ("_all", "_all_spares", "_idle", "_idle_spares")

    def __init__(self, idle: int, movable: int, idle_spares: int = 0, movable_spares: int = 0) -> None:
        self._idle, self._idle_spares = idle, idle_spares
        self._all, self._all_spares = idle + movable, idle_spares + movable_spares

    def __bool__(self) -> bool:
        """Return whether any slot is left."""
        return self._all > 0 or self._all_spares > 0

    def most(self, borrows: bool) -> int:
        """Return the number of slots that a pending job could use. borrows: whether it may use spare nodes."""
        return max(self._all, 0) + (max(self._all_spares, 0) if borrows else 0)

    def idle(self, borrows: bool) -> int:
        """Return how many of these slots are idle."""
        return max(self._idle, 0) + (max(self._idle_spares, 0) if borrows else 0)

    def take(self, slots: int, borrows: bool) -> None:
        """Give this number of slots, at most ``most(borrows)``, to a pending job."""
        if borrows:
            on_spares = min(max(slots - max(self._idle, 0), 0), max(self._all_spares, 0))
            self._idle_spares -= on_spares
            self._all_spares -= on_spares
            slots -= on_spares
        self._idle -= slots
        self._all -= slots

    def has(self, slots: int, spares: int) -> bool:
        """Return whether a running gang's slots, some of them on spare nodes, were not given to others."""
        return slots - spares <= max(self._all, 0) and spares <= max(self._all_spares, 0)

    def keep(self, slots: int, spares: int) -> None:
        """Leave a running gang its slots, for which ``has`` is true."""
        self._all -= slots - spares
        self._all_spares -= spares
        self._idle = min(self._idle, self._all)
        self._idle_spares = min(self._idle_spares, self._all_spares)
