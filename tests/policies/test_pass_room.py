"""The slots that a preemption pass has left to give."""

from __future__ import annotations

from scheduler_feedback.policies.queue.pass_room import Room


def keeps(room: Room, slots: int, spares: int = 0) -> bool:
    """Leave a gang its slots if no other job has them."""
    if not room.has(slots, spares):
        return False
    room.keep(slots, spares)
    return True


def test_a_job_that_may_not_borrow_leaves_the_spares() -> None:
    room = Room(idle=1, movable=2, idle_spares=4, movable_spares=1)
    assert (room.most(borrows=False), room.most(borrows=True)) == (3, 8)
    assert (room.idle(borrows=False), room.idle(borrows=True)) == (1, 5)
    room.take(3, borrows=False)
    assert room and (room.most(borrows=False), room.most(borrows=True)) == (0, 5)


def test_a_job_that_may_borrow_takes_idle_slots_then_spares_then_others() -> None:
    room = Room(idle=1, movable=2, idle_spares=2, movable_spares=3)
    room.take(1, borrows=True)
    assert (room.most(borrows=False), room.idle(borrows=True)) == (2, 2), "the idle slot"
    room.take(4, borrows=True)
    assert (room.most(borrows=False), room.idle(borrows=True)) == (2, 0), "the idle spares, and two of gangs that stop"
    assert not keeps(room, 2, spares=2) and keeps(room, 1, spares=1)
    room.take(1, borrows=True)
    assert room.most(borrows=False) == 1, "a slot of a gang that stops"
    room.take(1, borrows=False)
    assert not room


def test_a_job_that_exceeds_the_spares_takes_slots_of_gangs_that_stop() -> None:
    room = Room(idle=0, movable=2, idle_spares=0, movable_spares=2)
    room.take(3, borrows=True)
    assert (room.most(borrows=False), room.most(borrows=True)) == (1, 1)
    assert not keeps(room, 1, spares=1) and keeps(room, 1, spares=0)


def test_a_gang_keeps_its_slots_only_while_no_other_job_has_them() -> None:
    room = Room(idle=2, movable=3)
    room.take(2, borrows=False)
    assert keeps(room, 2) and not keeps(room, 2) and keeps(room, 1)
    assert not room and keeps(room, 0)


def test_a_job_larger_than_the_idle_slots_takes_those_of_gangs_that_stop() -> None:
    room = Room(idle=1, movable=4, idle_spares=1)
    room.take(2, borrows=False)
    room.take(1, borrows=True)
    assert room.most(borrows=False) == 3, "the idle spare, because no other slot is idle any more"
    assert keeps(room, 3) and not room


def test_slots_beyond_the_usable_ones_count_as_none() -> None:
    room = Room(idle=-2, movable=1, idle_spares=1)
    assert room and room.most(borrows=True) == 1
    room.take(1, borrows=True)
    assert not room
