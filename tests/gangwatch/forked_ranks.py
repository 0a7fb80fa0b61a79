"""Ranks of torch programs, forked from one process that has imported torch: ``python forked_ranks.py MODULE...``.

Importing torch takes most of the time of a short training. The process imports the modules, then reads lines from
standard input: JSON objects with ``script``, ``ranks`` and ``environment``. It runs the script once for each rank, and
answers each line with a JSON list of [exit code, output, errors] by rank.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class ForkedRanks:
    """Client of such a process. Use it as a context manager."""

    def __init__(self, python: str, modules: Sequence[str], path: str) -> None:
        """Start the process. path: its PYTHONPATH."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")}
        environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [python, __file__, *modules], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> ForkedRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, script: str, ranks: int, environment: Mapping[str, str]) -> list[str]:
        """Run a script to its end. Return what the ranks printed. Asserts that all exit with 0."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"script": script, "ranks": ranks, "environment": dict(environment)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        for code, _, errors in answers:
            assert code == 0, errors
        return [output for _, output, _ in answers]


def start(request: Mapping[str, Any], rank: int, output: IO[str], errors: IO[str]) -> int:
    """Start a rank. Return the number of its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        os.environ.update(request["environment"])
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["ranks"])})
        sys.argv = [request["script"]]
        runpy.run_path(request["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def answer(request: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    """Run a script. Return (exit code, output, errors) by rank."""
    ranks = range(request["ranks"])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as opened:
        paths = [(Path(name, f"{rank}.out"), Path(name, f"{rank}.err")) for rank in ranks]
        files = [[opened.enter_context(path.open("w")) for path in both] for both in paths]
        children = [start(request, rank, *files[rank]) for rank in ranks]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [(codes[rank], paths[rank][0].read_text(), paths[rank][1].read_text()) for rank in ranks]


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()
