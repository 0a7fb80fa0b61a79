"""Failures of nodes: a component fails, the gangs on the node end at once, and the node returns after a repair.

Rates by component are those of 54 days of Llama 3 405B's training on 16,384 H100 GPUs (Grattafiori et al., "The Llama 3
Herd of Models", 2024, table 5: unexpected interruptions by root cause). Only causes in the hardware of a node or its
network link count. Times between failures are exponential. Together they come to 2.9 failures per 1,000 nodes and day;
Meta's research clusters had 6.5 and 2.3 (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", HPCA 2025).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import NodeSeen

GPU_DAYS = 16_384 * 54.0
NODE_DAYS = GPU_DAYS / 8
"""Observed time of the published failures: days of GPUs, and of nodes with 8 GPUs."""

BY_GPU = {"GPU": 148, "GPU memory (HBM)": 72, "GPU SRAM": 19, "GPU system processor": 17, "GPU thermal interface": 6,
          "silent data corruption": 6}  # fmt: skip
"""Published failures of components of which each GPU has one."""

BY_NODE = {"network switch or cable": 35, "network interface": 7, "SSD": 3, "power supply": 3, "chassis": 2,
           "IO expansion board": 2, "processor": 2, "memory": 2}  # fmt: skip
"""Published failures of components of a node."""

REPAIR_SECONDS = 86_400.0
"""Mean time until a node returns. No study gives it by component; a day is the default of `spare_repair_seconds`."""


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """One failure of a node."""

    node: str
    """Name of the node."""
    at_ns: int
    """Simulated time of the failure, in nanoseconds."""
    lasts_ns: int
    """Time until the node returns, in nanoseconds."""
    component: str
    """Failed component."""


def drawn(nodes: Sequence[NodeSeen], first_ns: int, last_ns: int, seed: int) -> tuple[NodeFailure, ...]:
    """Draw failures between first_ns and last_ns, in order of time. Draws of a node depend on its name and the seed."""
    found: list[NodeFailure] = []
    for node in nodes:
        draw = random.Random(f"{seed}/failures/{node.node}")
        rates = {name: count / GPU_DAYS * node.slots for name, count in BY_GPU.items()}
        rates |= {name: count / NODE_DAYS for name, count in BY_NODE.items()}
        a_day = sum(rates.values())
        at_ns = first_ns
        while True:
            at_ns += nanoseconds(draw.expovariate(a_day) * 86_400)
            if at_ns >= last_ns:
                break
            (component,) = draw.choices(list(rates), list(rates.values()))
            lasts_ns = nanoseconds(draw.expovariate(1 / REPAIR_SECONDS)) + 1
            found.append(NodeFailure(node.node, at_ns, lasts_ns, component))
            at_ns += lasts_ns
    found.sort(key=lambda failure: (failure.at_ns, failure.node))
    return tuple(found)
