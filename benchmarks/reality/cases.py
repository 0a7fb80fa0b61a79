"""Cases: which job runs for a seed, and what disturbs it or what it does itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import Kind

DATASET_BYTES = 32 << 20
READ_BYTES = 1 << 19
"""Bytes of the dataset that a step reads past the page cache; the same number as in programs/job.py."""

FRAMEWORKS = ("numpy", "ddp", "fsdp2", "pipeline", "moe")

FAULTS: dict[str, frozenset[Kind]] = {
    "cpu-quota-rank": frozenset({Kind.STRAGGLER}),
    "cpu-quota-node": frozenset({Kind.STRAGGLER}),
    "cpu-load-rank": frozenset({Kind.STRAGGLER}),
    "cpu-load-node": frozenset({Kind.STRAGGLER}),
    "slow-link": frozenset({Kind.STRAGGLER, Kind.HEALTH}),
    "slow-links-of-two": frozenset({Kind.STRAGGLER, Kind.HEALTH}),
    "shared-uplink": frozenset({Kind.INTERFERENCE}),
    "disk-throttle": frozenset({Kind.STRAGGLER}),
    "memory-limit": frozenset({Kind.STRAGGLER}),
    "stop-continue": frozenset({Kind.STRAGGLER}),
    "never-arrives": frozenset({Kind.HANG}),
}
"""Kinds of a right verdict, by fault."""

HEALTHY: dict[str, frozenset[Cause]] = {
    "quiet": frozenset(),
    "recompiles": frozenset({Cause.PAUSES}),
    "garbage-collection": frozenset({Cause.PAUSES}),
    "evaluation": frozenset({Cause.EVALUATION, Cause.CHECKPOINT}),
    "checkpoint-synchronous": frozenset({Cause.CHECKPOINT}),
    "checkpoint-asynchronous": frozenset({Cause.CHECKPOINT, Cause.PAUSES}),
    "loader-hiccups": frozenset({Cause.DATA_LOADING, Cause.PAUSES}),
    "uneven-batches": frozenset({Cause.SEQUENCE_LENGTH}),
    "hot-expert": frozenset({Cause.STANDING_OFFSET, Cause.SEQUENCE_LENGTH, Cause.WHOLE_JOB}),
}
"""Causes of a right verdict about the job's own work, by class. No verdict is right, too."""

LAYOUTS = ((2, 1), (2, 2), (2, 2), (3, 1), (4, 1))
"""Nodes, and slots of each. More ranks disturb one another on a machine of two processors (README of the table)."""

WORK = {"numpy": 32, "ddp": 32, "fsdp2": 32, "pipeline": 32, "moe": 64}
"""Size of a rank's batch, by framework: 2 to 4 ms of computation on the host."""
DEVICE_SECONDS = 0.08
"""Time that a batch of that size takes on the rank's device, for which the host waits (`Job.device`)."""

BEFORE_SECONDS = (14.0, 28.0)
"""Range of the time from the first steps to a fault. The time of a healthy run is in run.py."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a job, and a fault or a healthy class."""

    seed: int
    name: str
    """Name of the fault or of the healthy class."""
    framework: str
    nodes: int
    slots: int
    ranks: int
    plan: dict[str, Any]
    """Plan of the training program, without its folder."""
    culprits: tuple[int, ...] = ()
    """Ranks at fault; empty for a healthy class and for a shared uplink."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Size of the fault."""
    limits: dict[str, str] = field(default_factory=dict)
    """Limits of each rank's control groups from the start, in the undisturbed run too."""
    layout: str = ""
    """Value of GANGWATCH_LAYOUT; '' for none."""
    before_seconds: float = BEFORE_SECONDS[0]
    """Time from the first steps to the fault."""

    @property
    def healthy(self) -> bool:
        return self.name in HEALTHY

    @property
    def leaves(self) -> int:
        return 2 if self.name == "shared-uplink" else 1


def case(seed: int) -> Case:
    """Return the case of a seed. Even seeds are faults, odd ones healthy classes; each class comes in turn."""
    draw = random.Random(seed)
    turn, odd = divmod(seed, 2)
    name = list(HEALTHY if odd else FAULTS)[turn % len(HEALTHY if odd else FAULTS)]
    framework = _framework(name, draw)
    nodes, slots = _layout(name, framework, draw)
    ranks = 2 if name == "shared-uplink" else nodes * slots
    loader = {"disk-throttle": "direct", "memory-limit": "mapped"}.get(name, "memory")
    plan = {
        "framework": framework,
        "seed": seed,
        "work": WORK[framework],
        "device_seconds": DEVICE_SECONDS,
        "layers": 4,
        "gradient_floats": 1 << 18,
        "loader": loader,
        "own": _own(name, ranks, draw) if odd else {"class": "quiet"},
        "steps": 10**9,
    }
    # The rank needs a tenth of a processor. Load in its group uses up the rest of this.
    quota = round(20_000 * min(0.5, 1.0 / ranks))
    limits = {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": str(quota)} if name.startswith("cpu-load") else {}
    layout = {"pipeline": f"data={ranks // 2},pipeline=2", "moe": f"expert={ranks}"}.get(framework, "")
    culprits, numbers = ((), {}) if odd else _fault(name, nodes, slots, draw)
    before = random.Random(f"before {seed}").uniform(*BEFORE_SECONDS)
    return Case(seed, name, framework, nodes, slots, ranks, plan, culprits, numbers, limits, layout, before)


def _framework(name: str, draw: random.Random) -> str:
    if name == "hot-expert":
        return "moe"
    drawn = draw.choice(FRAMEWORKS[1:] if name == "recompiles" else FRAMEWORKS)
    # The stages of a pipeline must agree on the size of a batch.
    return "ddp" if (name, drawn) == ("uneven-batches", "pipeline") else drawn


def _layout(name: str, framework: str, draw: random.Random) -> tuple[int, int]:
    if name in ("shared-uplink", "slow-links-of-two"):
        return 4, 1
    allowed = [one for one in LAYOUTS if framework != "pipeline" or one[0] * one[1] % 2 == 0]
    return draw.choice(allowed)


def _fault(name: str, nodes: int, slots: int, draw: random.Random) -> tuple[tuple[int, ...], dict[str, float]]:
    """Return the culprits and the size of a fault. Ranks fill the nodes in order."""
    if name == "shared-uplink":
        return (), {}
    node = draw.randrange(nodes)
    if name == "slow-links-of-two":
        culprits = tuple(sorted(draw.sample(range(nodes), 2)))
    elif name in ("cpu-quota-node", "cpu-load-node", "slow-link"):
        culprits = tuple(range(node * slots, (node + 1) * slots))
    else:
        culprits = (draw.randrange(nodes * slots),)
    factor = draw.choice((2.0, 3.0, 4.0)) if "link" in name or "load" in name else draw.choice((1.3, 1.6, 2.0, 3.0))
    numbers = {"factor": factor, "share": draw.uniform(0.2, 0.5), "seed": float(draw.randrange(1 << 30))}
    if name == "memory-limit":
        numbers["share"] = draw.uniform(0.5, 0.9)
    return culprits, numbers | {"step_bytes": READ_BYTES, "mapped_bytes": DATASET_BYTES}


def _own(name: str, ranks: int, draw: random.Random) -> dict[str, Any]:
    """Return the healthy class with its parameters, for programs/job.py."""
    numbers: dict[str, dict[str, Any]] = {
        "recompiles": {"every": draw.choice((40, 80)), "ranks": draw.choice((list(range(ranks)), [ranks - 1])),
                       "backend": draw.choice(("aot_eager", "eager"))},
        "garbage-collection": {"every": draw.choice((30, 60)), "objects": draw.choice((100_000, 300_000))},
        "evaluation": {"every": draw.choice((40, 60)), "batches": draw.choice((10, 20))},
        "checkpoint-synchronous": {"every": draw.choice((40, 60)), "times": draw.choice((4, 8))},
        "checkpoint-asynchronous": {"every": draw.choice((40, 60))},
        "loader-hiccups": {"every": draw.choice((30, 60)), "mebibytes": draw.choice((16, 32))},
        "uneven-batches": {"sigma": draw.choice((0.15, 0.3))},
        "hot-expert": {"from": 120, "expert": draw.randrange(ranks), "popularity": draw.choice((1.5, 2.0, 3.0))},
    }  # fmt: skip
    return {"class": name, **numbers.get(name, {})}
