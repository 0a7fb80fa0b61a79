"""Invariants of the scheduler over millions of steps: ``python -m benchmarks.invariants --steps 1000000 --json``.

Hypothesis runs the state machine of tests/cluster/state_machine.py with different seeds. A step is, for example, a
submission, a verdict, a lost node, or a kill of the controller followed by a replay. After every cycle the
invariants of docs/explanation/scheduler.md are checked, and after every eighth one the index of the state. The run
ends at the first failure with exit code 1, and prints the steps that lead to it. A seed gives the same steps again
only with the same code: Hypothesis also tries constants that it finds in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cluster.state_machine import Invariants

EXAMPLES = 50
"""Number of examples per seed. Hypothesis uses what it learned from one example's steps in the next ones."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=100, help="most steps in one world")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next rounds' follow")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after this many seconds")
    parser.add_argument("--index-every", type=int, default=8, help="cycles between two checks of the index (default 8)")
    parser.add_argument("--shrink", action="store_true", help="shrink a failure to the fewest steps (minutes)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.index_every < 1:
        parser.error("--index-every must be at least 1")
    if "PYTHONHASHSEED" not in os.environ:  # the steps depend on it, too
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.invariants", *sys.argv[1:]])
    Invariants.index_every = arguments.index_every
    began, seed, failure = time.perf_counter(), arguments.seed, ""
    while Invariants.steps < arguments.steps and time.perf_counter() - began < arguments.seconds:
        try:
            _round(seed, arguments.length, arguments.shrink)
        except Exception as error:
            failure = f"seed {seed}: {type(error).__name__}: {error}"
            print("\n".join([failure, *getattr(error, "__notes__", ())]), file=sys.stderr)
            break
        seed += 1
        passed = time.perf_counter() - began
        rate = Invariants.steps / passed
        print(
            f"\r{Invariants.steps:,} of {arguments.steps:,} steps, {Invariants.cycles:,} cycles, {rate:,.0f} steps/s ",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip
    print(file=sys.stderr)
    document = {
        "steps": Invariants.steps,
        "cycles": Invariants.cycles,
        "worlds": (seed - arguments.seed) * EXAMPLES,
        "seeds": [arguments.seed, seed - 1],
        "wall_seconds": round(time.perf_counter() - began, 1),
        "entries": dict(sorted((kind, count) for kind, count in Invariants.counts.items() if " " not in kind)),
        "failure": failure or None,
    }
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 1 if failure else 0


def _round(seed: int, length: int, shrink: bool) -> None:
    machine = type("Invariants", (Invariants,), {"_hypothesis_internal_use_seed": seed})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=length,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
