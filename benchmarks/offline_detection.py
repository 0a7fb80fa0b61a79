"""``python -m benchmarks.offline_detection --json``: cost of `gangwatch detect` on a large file of JSON lines.

The file has one straggler. The peer is a loop in the same run that decodes each line with Python's json and keeps
nothing: its ratio shows whether the machine was slow. CPU and memory are those of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STRAGGLER, SLOWER = 77, 1.3
NODE_RANKS = 8
DECODE = "import json, sys\nfor line in open(sys.argv[1], 'rb'):\n    json.loads(line)"


def write(path: Path, ranks: int, steps: int, seed: int) -> None:
    """Write the steps of a job in which a rank computes more slowly from the middle on."""
    random = np.random.default_rng(seed)
    own = 1.0 + random.normal(0.0, 0.01, (steps, ranks)) + random.normal(0.0, 0.02, ranks)
    own[steps // 2 :, STRAGGLER % ranks] *= SLOWER
    seconds = own.max(axis=1) + 0.05
    with path.open("w") as file:
        for step, (length, each) in enumerate(zip(seconds.tolist(), own.tolist(), strict=True)):
            file.writelines(
                f'{{"job":"large","step":{step},"rank":{rank},"seconds":{length:.6f},'
                f'"wait_seconds":{length - mine:.6f},"node":"n{rank // NODE_RANKS}","gpu":"{rank % NODE_RANKS}"}}\n'
                for rank, mine in enumerate(each)
            )


def measured(command: list[str], output: Path) -> dict[str, float]:
    """Run a command with its output in a file. Return its CPU time and its largest memory. Raises
    CalledProcessError."""
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {"cpu_seconds": round(used.ru_utime + used.ru_stime, 2), "rss_mib": round(used.ru_maxrss / 1024)}


def run(ranks: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the figures of one file."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-offline-") as name:
        path, output = Path(name, "large.jsonl"), Path(name, "output")
        write(path, ranks, steps, seed)
        size = path.stat().st_size
        peer = measured([sys.executable, "-c", DECODE, str(path)], output)
        ours = measured([sys.executable, "-m", "gangwatch", "detect", str(path), "--json"], output)
        accused = {one["rank"] for one in json.loads(output.read_text())["verdicts"] if one["kind"] == "straggler"}
    return {
        "ranks": ranks,
        "steps": steps,
        "file_mib": round(size / 2**20),
        "ours": ours,
        "peer": peer,
        "cpu_ratio": round(ours["cpu_seconds"] / peer["cpu_seconds"], 2),
        "right": accused == {STRAGGLER % ranks},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline_detection", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, default=4096, help="ranks of the job (default 4096)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the job (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the step times (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args()
    if options.ranks < 2 or options.steps < 2:
        parser.error("--ranks and --steps: at least 2")
    document = run(options.ranks, options.steps, options.seed)
    if options.json:
        print(json.dumps(document))
    else:
        print("\n".join(f"{name}: {value}" for name, value in document.items()))


if __name__ == "__main__":
    main()
