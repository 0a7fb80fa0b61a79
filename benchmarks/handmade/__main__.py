"""``python -m benchmarks.handmade --seed S --json``: `gangwatch detect` on traces written by hand, misses first.

Progress is on standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from benchmarks.handmade.cases import CASES, Case
from gangwatch.commands.offline.detect import detect

CONFIDENT = 0.9
COSTLY = 1.05
ACCUSING = ("straggler", "hang", "health")


def write(case: Case, path: Path, waits: bool = True) -> None:
    """Write the trace as JSON lines. waits: whether the ranks report their waits."""
    seconds, wait = case.times(case.own)
    steps, ranks = seconds.shape
    width = ranks // case.stages
    lines = []
    for n in range(steps):
        for r in range(ranks):
            if case.lost is not None and case.lost[n, r]:
                continue
            number = n if case.numbers is None else int(case.numbers[n])
            row: dict[str, Any] = {"rank": r, "step": number, "seconds": round(float(seconds[n, r]), 6)}
            row["node"] = f"host{r // case.per_node}"
            if case.layout:
                row |= {"dp_rank": r % width, "stage": r // width}
            if case.experts:
                row["ep_rank"] = r % case.experts
            if waits:
                row["wait_seconds"] = round(float(wait[n, r]), 6)
            if case.tokens is not None:
                row["tokens"] = float(case.tokens[n, r])
            lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")


def judge(case: Case, path: Path) -> dict[str, Any]:
    """Return what `gangwatch detect` says about a file, and whether it is right.

    The outcome is "right", "missed" (a fault of 5 % or more without a confident verdict), "false" (a confident
    accusation of a healthy rank) or "small" (a fault below 5 %, not found).
    """
    result = CliRunner().invoke(detect, [str(path), "--json"], catch_exceptions=False)
    if result.exit_code:
        return {"outcome": "error", "output": result.output}
    document = json.loads(result.stdout)
    verdicts = [v for one in document.get("recordings", [document]) for v in one["verdicts"]]
    sure = [v for v in verdicts if v["kind"] in ACCUSING and v["confidence"] >= CONFIDENT]
    named = [set(v["ranks"]) or {v["rank"]} for v in sure]
    culprits, cost = set(case.culprits), case.cost()
    if any(not who <= culprits for who in named):
        outcome = "false"
    elif named or not culprits:
        outcome = "right"
    else:
        outcome = "missed" if cost >= COSTLY else "small"
    keys = ("kind", "cause", "confidence", "rank", "ranks", "detected_step", "sentence")
    return {
        "outcome": outcome,
        "cost": round(cost, 3),
        "culprits": sorted(culprits),
        "named": sorted(set().union(*named)),
        "verdicts": [{k: v[k] for k in keys} for v in verdicts],
    }


def main() -> None:
    """Judge all cases, and print what is wrong before what is right."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handmade", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise (default 1)")
    parser.add_argument("--only", help="names of cases, separated by commas (default: all)")
    parser.add_argument("--without-waits", action="store_true", help="ranks report no waits")
    parser.add_argument("--write", type=Path, help="write the traces to this folder, and detect nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [make.__name__ for make in CASES]
    unknown = sorted(set(names) - {make.__name__ for make in CASES})
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; cases: {', '.join(make.__name__ for make in CASES)}")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for index, make in enumerate(CASES):
            if make.__name__ not in names:
                continue
            case = make(np.random.default_rng([options.seed, index]))
            target = options.write or Path(folder)
            target.mkdir(parents=True, exist_ok=True)
            path = target / f"{make.__name__}.jsonl"
            print(f"{names.index(make.__name__) + 1} of {len(names)}: {make.__name__}", file=sys.stderr)
            write(case, path, not options.without_waits)
            if not options.write:
                found[make.__name__] = {"case": (make.__doc__ or "").strip()} | judge(case, path)
    if options.write:
        return
    order = ("error", "false", "missed", "small", "right")
    rows = dict(sorted(found.items(), key=lambda item: order.index(item[1]["outcome"])))
    if options.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        cost, named = row.get("cost"), row.get("named")
        print(f"{row['outcome']:7} {name:26} cost {cost} culprits {row.get('culprits')} named {named}")
    print(", ".join(f"{word}: {sum(row['outcome'] == word for row in rows.values())}" for word in order))


if __name__ == "__main__":
    main()
