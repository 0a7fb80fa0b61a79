"""Run of the whole test suite: the implementation of `make test`.

    python -m tests.run [--workers N] [--unsteady FILE] [PYTEST ARGUMENT...]

Hundreds of tests start real daemons at the same time, so a failed test is run once more, alone. A test that passes then
is unsteady: it is written to a file and counts against a budget; over budget, the run fails. Tests are run again only
after pytest's exit code 1 (tests failed, ExitCode.TESTS_FAILED). Any other code, a signal or a run without recorded
failures gives no information about the tests, so the run fails. The tests to run again come from this run's own
outcomes (tests/outcomes.py), never from pytest's cache, which an earlier run may have left.

Tests run with bytecode files (PYTHONDONTWRITEBYTECODE is removed), as the product does at users.

The files that took the longest are listed, because the whole run has a time limit (CONTRIBUTING.md).

The last line is "N passed, N failed, ...", as in pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import cpu_groups

BUDGET = 3
"""Number of tests in total that may pass only in their second run."""

WORKERS = 3
"""For two CPUs: tests of real programs mostly wait, so two workers would leave CPUs idle."""

MANY_FILES = 100
"""Number of test files without bytecode from which they are translated before the tests start."""

SLOWEST = 20
"""Number of listed files that took the longest."""

UNSTEADY = Path(".cache") / "unsteady-tests.txt"

TESTS_FAILED, NO_TESTS = 1, 5  # pytest.ExitCode


@dataclass(slots=True)
class Run:
    """Result of one pytest process."""

    code: int
    """Exit code; negative: the signal that ended the process."""
    finished: bool
    """Whether it wrote its last line, with the same exit code."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reason by failed test; a test fails if any of its phases fails."""
    skipped: dict[str, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    seconds: Counter[str] = field(default_factory=Counter)
    """Time of the tests by file."""
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU time of the tests by file, in seconds."""


def translate_tests(processes: int) -> None:
    """Write pytest's bytecode of the test files, divided among processes, if many have none.

    pytest rewrites the assertions of each file when it is first imported, 40 s of CPU time in all. Without this, every
    worker would rewrite all files at the same time.
    """
    files = [
        str(file)
        for file in sorted(Path("tests").rglob("test_*.py"))
        if not any((file.parent / "__pycache__").glob(f"{file.stem}.*-pytest-*.pyc"))
    ]
    if len(files) < MANY_FILES:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    running = [
        subprocess.Popen([*command, *files[first::processes]], env=environment(), stdout=subprocess.DEVNULL)
        for first in range(processes)
    ]
    for process in running:
        process.wait()  # what cannot be collected fails in the run


def environment() -> dict[str, str]:
    """Return the environment of the tests and of the programs that they start.

    It lacks PYTHONDONTWRITEBYTECODE. With it, each daemon that a test starts would compile the product: 2.0 s of CPU
    time instead of 1.0 s. GOGC makes Go programs collect garbage four times less often: kube-apiserver starts with
    4.0 s of CPU time instead of 5.0 s, and uses 0.4 GB instead of 0.3 GB.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"GOGC": "400"} | kept


def run_pytest(arguments: Sequence[str], outcomes: Path, groups: Path | None) -> Run:
    """Run pytest. Return its exit code and the outcomes that it recorded. groups: folder of the control groups."""
    outcomes.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.outcomes", "-p", "tests.distribution", *arguments]
    variables = {**environment(), "GANGWATCH_TEST_OUTCOMES": str(outcomes), cpu_groups.VARIABLE: str(groups or "")}
    code = subprocess.call(command, env=variables)
    made = Run(code, False)
    for line in outcomes.read_text().splitlines() if outcomes.exists() else ():
        try:
            document = json.loads(line)
        except ValueError:
            continue  # an incomplete line
        if "finished" in document:
            made.finished = document["finished"] == code
        elif "seconds" in document:
            file = document["test"].partition("::")[0]
            made.seconds[file] += document["seconds"]
            made.cpu[file] += document.get("cpu_seconds", 0.0)
        elif document["outcome"] == "failed":
            made.failed[document["test"]] = document["reason"]
        elif document["outcome"] == "skipped":
            made.skipped[document["test"]] = document["reason"]
        else:
            made.passed.add(document["test"])
    made.passed -= made.failed.keys()
    for test in made.failed:
        made.skipped.pop(test, None)
    return made


@dataclass(slots=True)
class Verdict:
    """Combined result of all pytest processes."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unsteady: dict[str, str] = field(default_factory=dict)
    """Reason of the first failure, by test."""
    broken: list[str] = field(default_factory=list)
    """Runs that did not finish."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Time of the tests by file, in all runs."""
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU time of the tests by file in seconds, in all runs."""

    def take(self, name: str, first: Run, again: Run | None, *, may_be_empty: bool = False) -> None:
        """Add a run, and the second run of its failed tests. may_be_empty: whether the user selected only some
        tests."""
        self.passed += len(first.passed)
        self.skipped |= first.skipped
        for run in (first, again):
            if run is not None:
                self.seconds += run.seconds
                self.cpu += run.cpu
        if may_be_empty and first.code == NO_TESTS and first.finished:
            return
        if again is None:
            self.failed |= first.failed
            if first.code != 0 or not first.finished:
                self.broken.append(_broken(name, first))
            return
        recovered = {test: why for test, why in first.failed.items() if test in again.passed}
        self.passed += len(recovered)
        self.unsteady |= recovered
        self.failed |= {
            test: again.failed.get(test, why) for test, why in first.failed.items() if test not in recovered
        }
        if again.code not in (0, TESTS_FAILED) or not again.finished:
            self.broken.append(_broken(f"{name}, run again", again))

    def complaints(self, budget: int) -> list[str]:
        """Return the reasons why the whole run fails; [] if it passes. budget: accepted number of unsteady tests."""
        found = list(self.broken)
        if self.failed:
            found.append(f"{len(self.failed)} tests failed, also when they ran again")
        if len(self.unsteady) > budget:
            found.append(f"{len(self.unsteady)} tests passed only when they ran again; {budget} may")
        if not self.passed and not found:
            found.append("no test ran")
        return found


def _broken(name: str, run: Run) -> str:
    if run.code == TESTS_FAILED:
        return f"{name}: pytest's exit code is 1, and no failed test was recorded"
    how = f"was ended by signal {-run.code}" if run.code < 0 else f"ended with exit code {run.code}"
    return f"{name}: pytest {how}{'' if run.finished else ' before it was done'}"


def report(verdict: Verdict, unsteady_file: Path, budget: int, seconds: float) -> list[str]:
    """Write the unsteady tests to the file, each with its first failure. Return the last lines of the run's output."""
    unsteady_file.parent.mkdir(parents=True, exist_ok=True)
    unsteady_file.write_text("".join(f"{test}\t{why}\n" for test, why in sorted(verdict.unsteady.items())))
    lines = [""]
    reasons = Counter(verdict.skipped.values())
    if reasons:
        lines.append("Skipped, and what brings it:")
        lines += [f"  {count:4d}  {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])]
    if verdict.seconds:
        lines.append(
            f"Slowest files: seconds ({sum(verdict.seconds.values()):.0f} in all), "
            f"seconds of CPU time ({sum(verdict.cpu.values()):.0f} in all):"
        )
        slowest = [file for file, _ in verdict.seconds.most_common(SLOWEST)]
        slowest += [file for file, _ in verdict.cpu.most_common(SLOWEST) if file not in slowest]
        lines += [f"  {verdict.seconds[file]:7.1f}  {verdict.cpu[file]:7.1f}  {file}" for file in slowest]
    if verdict.unsteady:
        lines.append(f"Unsteady (failed, and passed when run again), written to {unsteady_file}:")
        lines += [f"  {test}" for test in sorted(verdict.unsteady)]
    if verdict.failed:
        lines.append("Failed:")
        lines += [f"  {test}  {why}" for test, why in sorted(verdict.failed.items())]
    lines += [f"Error: {complaint}" for complaint in verdict.complaints(budget)]
    counts = [f"{verdict.passed} passed", f"{len(verdict.failed)} failed", f"{len(verdict.skipped)} skipped"]
    if verdict.unsteady:
        counts.append(f"{len(verdict.unsteady)} unsteady")
    if verdict.broken:
        counts.append(f"{len(verdict.broken)} errors")
    lines.append(f"===== {', '.join(counts)} in {seconds:.2f}s =====")
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes that run tests in parallel")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tests that may pass only when run again")
    parser.add_argument("--unsteady", type=Path, default=UNSTEADY, help="file for the tests that passed only then")
    options, selection = parser.parse_known_args(arguments)
    passes = (
        ("in parallel", ["-n", str(options.workers), "-m", "not serial"]),
        ("one by one", ["-m", "serial"]),
    )
    verdict, began = Verdict(), time.monotonic()
    interrupted = False
    if not selection:
        translate_tests(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="gangwatch-tests-") as name, cpu_groups.groups() as groups:
        folder = Path(name)
        try:
            for title, own in passes:
                first = run_pytest([*own, *selection], folder / "outcomes", groups)
                again = None
                if first.code == TESTS_FAILED and first.finished and first.failed:
                    sys.stdout.write(f"\n{len(first.failed)} tests failed; they run again, alone.\n")
                    sys.stdout.flush()
                    (folder / "failed").write_text("".join(f"{test}\n" for test in first.failed))
                    again = run_pytest([f"@{folder / 'failed'}"], folder / "outcomes", groups)
                verdict.take(title, first, again, may_be_empty=bool(selection))
        except KeyboardInterrupt:
            verdict.broken.append("interrupted")
            interrupted = True
        if groups is not None:
            verdict.cpu = cpu_groups.seconds(groups)
        lines = report(verdict, options.unsteady, options.budget, time.monotonic() - began)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    if interrupted:
        return 130
    return 1 if verdict.complaints(options.budget) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
