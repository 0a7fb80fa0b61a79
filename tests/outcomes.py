"""A pytest plugin that writes the outcome of each test to a file at once: one JSON document per line.

    GANGWATCH_TEST_OUTCOMES=FILE pytest -p tests.outcomes

The main process writes the file, also when workers run the tests. Lines are complete during the run, so a killed run
leaves the outcomes of its finished tests. The last line is {"finished": EXIT_CODE}; a run that was killed has none.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import IO, Any

import pytest

_GROUP = re.compile(r"@[^\]@]*$")
"""pytest-xdist appends "@GROUP" to the id of a test with a group; an "@" before a bracket is part of a parameter."""


def pytest_configure(config: pytest.Config) -> None:
    # No command line option: pytest would take its value for a path while it searches for its root folder.
    path = os.environ.get("GANGWATCH_TEST_OUTCOMES")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(path)), "gangwatch-outcomes")


def id_of(node_id: str) -> str:
    """Return the id of a test without its pytest-xdist group, as the command line accepts it."""
    return _GROUP.sub("", node_id)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why the test was skipped, or the first line of its failure."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext.strip().rpartition("\n")[2]
    return str(text).partition("\n")[0]


class Outcomes:
    """Writes a line for each relevant phase of a test: its call, or a failed set-up or tear-down."""

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
