"""A few steps of the state machine that checks invariants; ``python -m benchmarks.invariants`` runs millions."""

from __future__ import annotations

import json
import subprocess
import sys

SEED, LENGTH, STEPS = 1, 40, 5000
"""The steps are the same in every run of one commit, so that the test fails only if the commit is at fault."""


def test_the_invariants_hold_over_random_steps() -> None:
    command = [sys.executable, "-m", "benchmarks.invariants", "--seed", str(SEED), "--length", str(LENGTH)]
    run = subprocess.run(
        [*command, "--steps", str(STEPS), "--index-every", "1", "--json"], capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stderr}\nshortest steps: {' '.join(command[1:])} --index-every 1 --shrink"
    document = json.loads(run.stdout)
    assert document["steps"] >= STEPS and document["entries"]["started"] > 1000
