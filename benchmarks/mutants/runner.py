"""Execution of the mutants' tests in several processes."""

from __future__ import annotations

import multiprocessing
import queue
import sys
from collections.abc import Sequence

from benchmarks.mutants.catalogue import named_tests
from benchmarks.mutants.mutant import Mutant
from benchmarks.mutants.worker import Result, Worker, copied

_Message = tuple[int, str, str, float] | str
"""Message of a worker: (index of the mutant, outcome, detail, seconds), or a text at its end.

The text is '' after the last mutant, else the reason why the worker stops. Messages are plain values, because a worker
imports the modules of the copy, so its classes differ from ours.
"""


def _work(mutants: Sequence[tuple[int, Mutant]], results: multiprocessing.Queue[_Message]) -> None:
    """Run the tests of these mutants in this process, and put each result into the queue."""
    tests = sorted({test for _, mutant in mutants for test in named_tests(mutant)})
    with copied() as folder:
        worker = Worker(folder, tests)
        if worker.ready != 0:
            results.put(f"pytest ended with {worker.ready} while it collected the named tests")
            return
        for index, mutant in mutants:
            result = worker.judge(mutant, named_tests(mutant))
            results.put((index, result.outcome, result.detail, result.seconds))
    results.put("")


def shares(mutants: Sequence[Mutant], jobs: int) -> list[list[tuple[int, Mutant]]]:
    """Distribute the mutants, each with its index, among processes.

    Mutants with the same tests go to the same process, which runs these tests without a mutant only once.
    """
    groups: dict[tuple[str, ...], list[tuple[int, Mutant]]] = {}
    for index, mutant in enumerate(mutants):
        groups.setdefault(named_tests(mutant), []).append((index, mutant))
    divided: list[list[tuple[int, Mutant]]] = [[] for _ in range(max(1, min(jobs, len(groups))))]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(divided, key=len).extend(group)
    return divided


def run(mutants: Sequence[Mutant], jobs: int) -> list[Result]:
    """Run the tests of all mutants in `jobs` processes, with progress on stderr.

    Raises RuntimeError if a process does not finish.
    """
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[_Message] = context.Queue()
    workers = [context.Process(target=_work, args=(share, results)) for share in shares(mutants, jobs)]
    for worker in workers:
        worker.start()
    done: list[Result] = []
    ended = 0
    while ended < len(workers):
        try:
            said = results.get(timeout=5.0)
        except queue.Empty:
            if dead := [worker for worker in workers if worker.exitcode not in (None, 0)]:
                raise RuntimeError(f"a worker ended with exit code {dead[0].exitcode}") from None
            continue
        if isinstance(said, str):
            if said:
                raise RuntimeError(said)
            ended += 1
            continue
        index, outcome, detail, seconds = said
        done.append(Result(mutants[index], outcome, detail, seconds))
        mark = "" if outcome == "killed" else f"\n    {detail}"
        print(
            f"{len(done):4d}/{len(mutants)} {outcome:8s} {seconds:6.1f} s  {mutants[index].title}{mark}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    for worker in workers:
        worker.join()
    if len(done) != len(mutants):
        raise RuntimeError(f"{len(mutants) - len(done)} of {len(mutants)} mutants were not judged")
    return done
