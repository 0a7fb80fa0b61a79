"""Fuzz target: the reader of real speeds for simulations."""

from __future__ import annotations

import random

from benchmarks.fuzz.openb import _parser, _table
from benchmarks.fuzz.target import Target
from scheduler_feedback.sim.speeds import measured_speeds

SPEEDS = """workload,gpu_type,ranks,level,rate
bert,t4,1,node,10.5
bert,t4,8,rack,40
"gpt, small",a100,16,spine,1e3
gpt,,64,cluster,0.25
"""
"""Speeds in the format of `gangwatch simulate --speeds`."""


def _make(chance: random.Random) -> bytes:
    return _table(chance, SPEEDS)


_READER = "scheduler_feedback.sim.speeds.measured_speeds"

TARGETS = (
    Target(
        "measured-speeds",
        _make,
        _parser(measured_speeds.read_speeds, b"workload,gpu_type"),
        (f"{_READER}:read_speeds", f"{_READER}:measured_speeds"),
    ),
)
