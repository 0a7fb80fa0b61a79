"""The play: four virtual nodes, three jobs and a fault, on this machine, with the real programs.

It uses what a user has: `gangwatch up`, the API, the agents' streams. The disturbance is a process of its own, and the
controller is told nothing of it.

How long a step pauses is measured, not chosen: the machine's processors are shared by eight slots, and a step
pauses (where a GPU would be computing) for just as long as keeps six ranks below ``LOAD`` of all processors. On a
machine with processors enough it does not pause at all.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError

NODES = 4
SLOTS = 2
TRAINING_RANKS = 4
HEAD_RANKS = 6
RANKS_AT_ONCE = 6
LOAD = 0.45
"""Share of all processors that six ranks may take; agents, controller and the operating system need the rest."""


class DemoError(GangwatchError):
    """The demonstration could not be given: says at which point and why."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds of each part. `steady` is the undisturbed part that step times are compared with."""

    warm_up: float
    steady: float
    detect_at_most: float
    after: float

    @classmethod
    def of(cls, seconds: float) -> Schedule:
        """Divide the given length; the parts that the promises need are never shorter than these."""
        return cls(
            warm_up=max(6.0, seconds * 0.08),
            steady=max(10.0, seconds * 0.14),
            detect_at_most=max(30.0, seconds * 0.3),
            after=max(12.0, seconds * 0.16),
        )

    def training_seconds(self, disturbed: bool) -> float:
        """How long the training should run undisturbed so that every part finds it running."""
        return self.warm_up + self.steady + self.after + (18.0 if disturbed else 2.0)


@dataclass(slots=True)
class Play:
    """What happened, in the order it happened; wall times in ns."""

    state_folder: Path
    seed: int
    pace_seconds: float = 0.0
    step_seconds: float = 0.1
    steps: int = 0
    job_ids: dict[str, str] = field(default_factory=dict)
    target: dict[str, Any] | None = None
    disturbance_lines: list[dict[str, Any]] = field(default_factory=list)
    steady_from_ns: int = 0
    after_from_ns: int = 0
    after_until_ns: int = 0


def example(name: str) -> Path:
    """Path of an example program: beside the checkout's packages, or shipped in the wheel. Raises DemoError."""
    package = Path(__file__).resolve().parent
    for candidate in (package.parents[1] / "examples" / name, package / name):
        if candidate.exists():
            return candidate
    raise DemoError(f"examples/{name} is not part of this installation")


def training_command(steps: int, seed: int, pace_seconds: float, folder: Path) -> list[str]:
    """The argument list of one training job whose checkpoint and result lie in `folder`."""
    return [
        sys.executable,
        str(example("train_dp.py")),
        "--steps",
        str(steps),
        "--seed",
        str(seed),
        "--pace-seconds",
        f"{pace_seconds:.4f}",
        "--checkpoint",
        str(folder / "checkpoint"),
        "--checkpoint-every",
        "50",
        "--result",
        str(folder / "result.json"),
    ]


def plain_environment() -> dict[str, str]:
    """This process's environment without what a scheduler or reporter would read in it, one thread a process."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GANGWATCH_", "SLURM_", "OMPI_", "PMI"))
        and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure_pace(folder: Path, seed: int) -> tuple[float, float]:
    """(seconds to pause in a step, expected seconds of a step), from one rank alone on this machine.

    Six ranks that compute c seconds a step stay at LOAD of n processors when a step takes 6 c / (LOAD n). The
    training's ranks compute at the same moment: of this time c is work, or 4 c / n where n is less than four.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compute = float(run_training(training_command(40, seed, 0.0, folder), ranks=1)["step_seconds"])
    processors = len(os.sched_getaffinity(0))
    work = compute * max(1.0, TRAINING_RANKS / processors)
    step = max(work, RANKS_AT_ONCE * compute / (LOAD * processors))
    return step - work, step


def run_training(command: list[str], ranks: int) -> dict[str, Any]:
    """Run a training job of `ranks` processes without gangwatch and read rank 0's result. Raises DemoError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = plain_environment()
    processes = [
        subprocess.Popen(
            command,
            env=environment
            | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    complaints = [process.communicate()[1] for process in processes]
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise DemoError(
                f"rank {rank} of {' '.join(command)} exited with {process.returncode}: {complaints[rank][-500:]}"
            )
    result: dict[str, Any] = json.loads(Path(command[command.index("--result") + 1]).read_text())
    return result
