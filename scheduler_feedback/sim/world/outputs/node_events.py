"""Events that the agents of simulated nodes report: XIDs, lost devices, and links that go down and up."""

from __future__ import annotations

import numpy as np

from agent.schema.frame import EventRecord
from scheduler_feedback.core.telemetry.telemetry import DEVICE_LOST, LINK, XID, NodeEvent
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import Fault

WALL_START_NS = 1_800_000_000_000_000_000
"""Wall time, in nanoseconds, at which the world's clock is 0."""

NS = 1_000_000_000

USER_XIDS = (13, 31, 43)
"""XIDs that are an application's own errors: graphics engine exception, MMU fault, reset channel (NVIDIA, "XID
Errors")."""


def fault_events(course: Course, fault: Fault, before: float, now: float) -> list[NodeEvent]:
    """Return the events of a fault between these two times."""
    begun = before < fault.begin <= now
    rank = fault.ranks[0] if fault.ranks else 0
    node, found = course.place.nodes[rank], []
    if fault.disorder == "memory-errors" and begun:
        found.append(xid(course, rank, 63, fault.begin))  # a row was remapped
    if fault.disorder == "detachment" and begun:
        found.append(xid(course, rank, 79, fault.begin))  # the GPU has fallen off the bus
        at_ns = WALL_START_NS + round(fault.begin * NS)
        found.append(NodeEvent(node, EventRecord(DEVICE_LOST, course.place.gpus[rank], at_ns)))
    if fault.disorder == "nic-flap" and before < fault.end and now >= fault.begin:
        turns = np.arange(max(0, np.ceil((before - fault.begin) / 15.0)), (now - fault.begin) / 15.0)
        for turn in turns.tolist():
            at = fault.begin + 15.0 * turn
            if fault.intensity(np.array([at]))[0] > 0:
                name = course.place.nics[rank].rpartition("/")[2]
                for state, after in (("down", 0.0), ("up", 0.4)):
                    at_ns = WALL_START_NS + round((at + after) * NS)
                    found.append(NodeEvent(node, EventRecord(LINK, name, at_ns, {"state": state})))
    return found


def xid(course: Course, rank: int, code: int, at: float) -> NodeEvent:
    """Return the XID event of a rank's GPU at a simulated time."""
    gpu = course.place.gpus[rank]
    record = EventRecord(XID, gpu, WALL_START_NS + round(at * NS), {"code": str(code), "gpu": gpu})
    return NodeEvent(course.place.nodes[rank], record)
