"""A pytest plugin that writes the outcome of each test to a file as it comes: one JSON document a line.

    GANGWATCH_TEST_OUTCOMES=FILE pytest -p tests.outcomes

Written by the process that was started, also where workers run the tests. Lines are complete while the run goes on, so
a run that is killed leaves the outcomes of the tests that ran. The last line is {"finished": EXIT_CODE}; a run that did
not end by itself has none.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import IO, Any

import pytest

_GROUP = re.compile(r"@[^\]@]*$")
"""pytest-xdist appends "@GROUP" to the id of a test with a group; a bracket after an "@" belongs to a parameter."""


def pytest_configure(config: pytest.Config) -> None:
    # No option of the command line: pytest takes an option's value for a path while it looks for its root folder.
    path = os.environ.get("GANGWATCH_TEST_OUTCOMES")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)), "gangwatch-outcomes")


def id_of(node_id: str) -> str:
    """The id of a test without its pytest-xdist group, as the command line takes it."""
    return _GROUP.sub("", node_id)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why the test was skipped, or the first line of what it failed with."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext.strip().rpartition("\n")[2]
    return str(text).partition("\n")[0]


class Outcomes:
    """Writes a line for each phase of a test that says something: its call, or a set-up or tear-down that failed."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w")

    def _write(self, document: dict[str, Any]) -> None:
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write({"test": id_of(report.nodeid), "outcome": report.outcome, "reason": _reason(report)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "failed", "reason": _reason(report)})

    def pytest_sessionfinish(self, exitstatus: int | pytest.ExitCode) -> None:
        self._write({"finished": int(exitstatus)})
        self._file.close()
