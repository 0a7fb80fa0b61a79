"""Execution of fuzz targets in worker processes. Seed, target and number identify an input."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import pkgutil
import random
import resource
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import benchmarks.fuzz
from benchmarks.fuzz.lines import Lines, reached
from benchmarks.fuzz.target import OUTCOMES, Target

INPUT_SECONDS = 10.0
"""Seconds after which one input counts as a hang. The slowest parser takes milliseconds."""

MEMORY_BYTES = 4 << 30
"""Maximum memory of a worker in bytes. A parser that needs more for one input fails with MemoryError."""

MOST_FAILURES = 3
"""Maximum number of failures whose inputs are kept for each chunk; other failures are only counted."""


class HangError(Exception):
    """Parsing of one input took longer than INPUT_SECONDS."""


@dataclass
class Failure:
    """An exception that a parser must not raise. data: the input; None if the worker process died."""

    target: str
    seed: int
    number: int
    error: str
    where: str
    data: bytes | None


@dataclass
class Chunk:
    """Results of one target for a range of consecutive inputs."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest: int = -1


def targets() -> dict[str, Target]:
    """Return the targets of all modules in this package, by name. Raises ValueError for a duplicate name."""
    found: dict[str, Target] = {}
    for module in sorted(pkgutil.iter_modules(benchmarks.fuzz.__path__), key=lambda one: one.name):
        if module.name == "__main__":
            continue
        for target in getattr(importlib.import_module(f"benchmarks.fuzz.{module.name}"), "TARGETS", ()):
            if target.name in found:
                raise ValueError(f"two targets are named {target.name}")
            found[target.name] = target
    return found


def made(target: Target, seed: int, number: int) -> bytes:
    """Return the target's input with this number."""
    return target.make(random.Random(f"{seed}/{target.name}/{number}"))


def _ring(_: int, __: FrameType | None) -> None:
    raise HangError(f"no end within {INPUT_SECONDS:g} s")


def parsed(target: Target, data: bytes) -> str:
    """Parse the input and return the outcome. Unexpected exceptions are raised, including HangError."""
    signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
    try:
        outcome = target.parse(data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    if outcome not in OUTCOMES:
        raise AssertionError(f"{target.name}: parse returned {outcome!r}, which is none of {OUTCOMES}")
    return outcome


def prepare() -> None:
    """Prepare a worker process: an alarm for hangs, a memory limit, and no log output."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _ring)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def run(name: str, seed: int, start: int, count: int) -> Chunk:
    """Run inputs `start` to `start + count` of the target in this process."""
    target = targets()[name]
    chunk = Chunk(name)
    began = time.perf_counter()
    for number in range(start, start + count):
        data = made(target, seed, number)
        at = time.perf_counter()
        try:
            chunk.outcomes[parsed(target, data)] += 1
        except Exception as error:
            chunk.failed += 1
            if len(chunk.failures) < MOST_FAILURES:
                chunk.failures.append(Failure(name, seed, number, _words(error), _place(error), data))
        took = time.perf_counter() - at
        if took > chunk.slowest_seconds:
            chunk.slowest_seconds, chunk.slowest = took, number
    chunk.seconds = time.perf_counter() - began
    return chunk


def cover(name: str, seed: int, count: int) -> Lines:
    """Return the lines that the target's first `count` inputs execute. Failures are ignored here."""
    target = targets()[name]
    return reached(
        target.covers,
        (partial(parsed, target, data) for data in (made(target, seed, number) for number in range(count))),
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _place(error: Exception) -> str:
    """Return the innermost line of gangwatch's code in the traceback, as an identifier of the failure."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in frames if "/benchmarks/" not in frame.filename and "/site-packages/" not in frame.filename
    ]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"


# --- a failure in a file ---------------------------------------------------------------------------------------------


def save(failure: Failure, folder: Path) -> Path:
    """Save a failed input so that `--replay` can repeat it, and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.target}-{failure.seed}-{failure.number}.json"
    data = None if failure.data is None else base64.b64encode(failure.data).decode()
    document = {"target": failure.target, "seed": failure.seed, "number": failure.number, "error": failure.error,
                "where": failure.where, "data": data}  # fmt: skip
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def replay(path: Path) -> str:
    """Parse a saved input again and return the outcome. Call ``prepare`` in this process first.

    Raises the parser's error, or ValueError if the file has another format.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    target = targets().get(document["target"])
    if target is None:
        raise ValueError(f"{path}: there is no target {document['target']!r}")
    data = document.get("data")
    return parsed(
        target, made(target, document["seed"], document["number"]) if data is None else base64.b64decode(data)
    )
