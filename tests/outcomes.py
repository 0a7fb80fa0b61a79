"""pytest plug-in that writes the outcome of each test to a file at once, one JSON document per line.

    GANGWATCH_TEST_OUTCOMES=FILE pytest -p tests.outcomes

The main process writes the file, also when workers run the tests. Lines are complete during the run, so a killed run
leaves the outcomes of its finished tests. The last line is {"finished": EXIT_CODE}; a run that was killed has none.
A line {"test": ..., "seconds": ..., "cpu_seconds": ...} is the time of one phase of a test: set-up, call or tear-down,
and the CPU time of its process and of the children that ended in it. Phases shorter than SHORTEST_SECONDS are left out.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import pytest

from tests import cpu_groups

_GROUP = re.compile(r"@[^\]@]*$")
"""pytest-xdist appends "@GROUP" to the id of a test with a group; an "@" before a bracket is part of a parameter."""


SHORTEST_SECONDS = 0.1
"""Shorter phases of a test are not recorded."""


def pytest_configure(config: pytest.Config) -> None:
    # No command line option: pytest would take its value for a path while it searches for its root folder.
    path = os.environ.get("GANGWATCH_TEST_OUTCOMES")
    if path:
        config.pluginmanager.register(ProcessorTime(), "gangwatch-processor-time")
        if folder := os.environ.get(cpu_groups.VARIABLE):
            config.pluginmanager.register(FileGroups(Path(folder)), "gangwatch-file-groups")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)), "gangwatch-outcomes")


def id_of(node_id: str) -> str:
    """Return the test's id without its pytest-xdist group, as the command line accepts it."""
    return _GROUP.sub("", node_id)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why the test was skipped, or the first line of its failure."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext.strip().rpartition("\n")[2]
    return str(text).partition("\n")[0]


def processor_seconds() -> float:
    """Return the CPU time in seconds of this process and of its children that ended and were waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class ProcessorTime:
    """Plug-in of the process that runs a test: adds to each phase's report the CPU time since the report before."""

    def __init__(self) -> None:
        self._before = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        report.user_properties.append(("cpu_seconds", round(now - self._before, 2)))
        self._before = now
        return report


class FileGroups:
    """Plug-in of the process that runs a test: enters the control group of the test's file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            cpu_groups.enter(self._folder, file)
        return (yield)


class Outcomes:
    """Plug-in that writes a line for the call of a test, for a failed set-up or tear-down, and for the time of each."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w")

    def _write(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write({"test": id_of(report.nodeid), "outcome": report.outcome, "reason": _reason(report)})
        cpu = next((value for name, value in reversed(report.user_properties) if name == "cpu_seconds"), 0.0)
        if report.duration >= SHORTEST_SECONDS:
            document = {"test": id_of(report.nodeid), "seconds": round(report.duration, 2), "cpu_seconds": cpu}
            self._write(document)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "failed", "reason": _reason(report)})

    def pytest_sessionfinish(self, exitstatus: int | pytest.ExitCode) -> None:
        self._write({"finished": int(exitstatus)})
        self._file.close()
