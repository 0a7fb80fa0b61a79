"""``python -m benchmarks.crosscheck --seed S --runs N --json``: `gangwatch detect` on traces of a queue model."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from benchmarks.crosscheck.score import judged, summary
from benchmarks.crosscheck.trace import WAITS, generate, write
from gangwatch.commands.offline.detect import detect


def detected(path: Path) -> list[dict[str, Any]]:
    """Return the verdicts that `gangwatch detect --json` prints for a file."""
    result = CliRunner().invoke(detect, [str(path), "--json"], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(f"gangwatch detect {path}: exit code {result.exit_code}: {result.output}")
    document = json.loads(result.stdout)
    return [v for one in document.get("recordings", [document]) for v in one["verdicts"]]


def main() -> None:
    """Judge traces, and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crosscheck", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first trace; the others follow (default 1)")
    parser.add_argument("--runs", type=int, default=40, help="number of traces (default 40)")
    parser.add_argument("--most-ranks", type=int, default=512, help="largest job (default 512)")
    parser.add_argument("--most-samples", type=int, default=40_000, help="most samples of a trace (default 40000)")
    parser.add_argument("--waits", choices=WAITS, help="how all files report waits (default: at random)")
    parser.add_argument("--out", type=Path, help="result file (JSON lines) to continue")
    parser.add_argument("--write", type=Path, help="write the traces to this folder, and detect nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    results: dict[int, dict[str, Any]] = {}
    if options.out and options.out.exists():
        results = {r["seed"]: r for r in map(json.loads, options.out.read_text().splitlines()) if r["seed"] in seeds}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            if seed in results:
                continue
            trace = generate(seed, options.most_ranks, options.most_samples, options.waits)
            if options.write:
                options.write.mkdir(parents=True, exist_ok=True)
                write(trace, options.write / f"{seed}.jsonl")
                continue
            path = Path(folder) / "trace.jsonl"
            write(trace, path)
            results[seed] = judged(trace, detected(path))
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(results[seed]) + "\n")
    if options.write:
        return
    figures = summary(list(results.values()))
    print(json.dumps(figures) if options.json else text(figures))


def text(figures: dict[str, Any]) -> str:
    """Return the figures as a table, misses first."""
    lines = [f"missed  {json.dumps(one)}" for one in figures["missed"]]
    lines += [f"wrong   {json.dumps(one)}" for one in figures["wrong"]]
    lines += [f"{key}: {value}" for key, value in figures.items() if key not in ("missed", "wrong", "classes")]
    lines.append("| class | traces | found, waits known | accusations right | with any verdict | calibration error |")
    lines.append("|---|---|---|---|---|---|")
    for name, one in figures["classes"].items():
        error = one["calibration"]
        lines.append(
            f"| {name} | {one['traces']} | {one['found_known']} | {one['accusations_right']} | {one['noted']} "
            f"| {error['error']} ({error['verdicts']}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
