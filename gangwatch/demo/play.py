"""The demo's scenario: four virtual nodes, three jobs and a fault, on this machine, with the real programs.

It uses only public interfaces: `gangwatch up`, the API and the agents' streams. The disturbance is a separate process
that the controller has no information about.

The ranks share the machine's processors. Each step therefore contains a pause, so that a step takes at least
``STEP_SECONDS`` and six ranks use at most the share ``LOAD`` of all processors. The length of the pause is measured on
the machine.
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
"""Share of all processors that six ranks may use (0 to 1). The agents and the controller need the rest."""

STEP_SECONDS = 0.1
"""Least expected time of a step. So the ranks of a small batch leave most of the machine idle, and other programs that
run beside the demo change its step times little."""

BATCH = 512
"""Samples per rank and step."""


class DemoError(GangwatchError):
    """Failure of the demo itself, not of a check. The message names the failed part and the reason."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Duration of each part of the demo, in seconds."""

    warm_up: float
    steady: float
    """Duration of the part before the disturbance, in seconds. Its step times are the reference."""
    detect_at_most: float
    after: float

    @classmethod
    def of(cls, seconds: float) -> Schedule:
        """Return the durations of the parts for a demo of `seconds`.

        The checks need a minimum duration of each part.
        """
        return cls(
            warm_up=max(6.0, seconds * 0.08),
            steady=max(10.0, seconds * 0.14),
            detect_at_most=max(30.0, seconds * 0.3),
            after=max(12.0, seconds * 0.16),
        )

    def training_seconds(self, disturbed: bool) -> float:
        """Return the duration of the training's steps at normal speed, so that it runs until the last part of the demo.

        disturbed: whether the demo slows a rank of the training.
        """
        return self.warm_up + self.steady + self.after + (18.0 if disturbed else 2.0)


@dataclass(slots=True)
class Play:
    """Record of one run of the demo: its folders, jobs and times. Times are wall times in ns."""

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
    """Return the path of an example program, in the checkout or in the wheel. Raises DemoError if there is none."""
    package = Path(__file__).resolve().parent
    for candidate in (package.parents[1] / "examples" / name, package / name):
        if candidate.exists():
            return candidate
    raise DemoError(f"examples/{name} is not part of this installation")


def training_command(steps: int, seed: int, pace_seconds: float, folder: Path) -> list[str]:
    """Return the command line of a training job that writes its checkpoint and result to `folder`."""
    return [
        sys.executable,
        str(example("train_dp.py")),
        "--steps",
        str(steps),
        "--seed",
        str(seed),
        "--pace-seconds",
        f"{pace_seconds:.4f}",
        "--batch",
        str(BATCH),
        "--checkpoint",
        str(folder / "checkpoint"),
        "--checkpoint-every",
        "50",
        "--result",
        str(folder / "result.json"),
    ]


def plain_environment() -> dict[str, str]:
    """Return this process's environment without variables of schedulers and gangwatch.

    Numerical libraries get one thread per process.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GANGWATCH_", "SLURM_", "OMPI_", "PMI"))
        and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure_pace(folder: Path, seed: int) -> tuple[float, float]:
    """Return (pause per step, expected step time) in seconds, measured with a single rank on this machine.

    The step takes at least STEP_SECONDS, and six ranks together use at most the share LOAD of all processors. On fewer
    than four processors, the training's four ranks share them, and the expected step time is longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compute = float(run_training(training_command(40, seed, 0.0, folder), ranks=1)["step_seconds"])
    processors = len(os.sched_getaffinity(0))
    work = compute * max(1.0, TRAINING_RANKS / processors)
    step = max(work, RANKS_AT_ONCE * compute / (LOAD * processors), STEP_SECONDS)
    return step - work, step


def run_training(command: list[str], ranks: int, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a training job of `ranks` processes without gangwatch and read rank 0's result. Raises DemoError.

    environment: None for that of this process (``plain_environment``).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = plain_environment() if environment is None else environment
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
