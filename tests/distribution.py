"""A pytest plugin that hands tests to the workers of pytest-xdist: groups as a whole, the longest first.

    pytest -p tests.distribution -n 3

Tests marked `xdist_group` share what is expensive to set up, ports, or a folder: one worker runs all of a group.
pytest-xdist's own way to do so (--dist loadgroup) writes the group into the ids of tests, which pytest 9.2 no longer
reads; the marks then silently mean nothing (pytest-xdist issue 1386). Here each worker writes the groups of its tests
to a file, and the process that hands them out reads it.

FIRST are the groups that take minutes, most of it waiting: what begins late is waited for at the end. Then come tests
marked `slow`, then all others.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

FIRST = ("ordinary", "dashboards-live", "slurm", "kubernetes", "front-door", "accasim")

FAVOURED, GENTLE = FIRST[:2], 5
"""Groups that keep their priority; all other tests get this nice value. They run for minutes in real time, with a limit
on how late a job may start or a scrape may be: without processors they would fail for that alone."""

_INPUT = "gangwatch_groups"


def group_of(item: pytest.Item) -> str:
    """Name of the group that the test runs in; empty: any worker may run it."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return ""
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


def rank_of(item: pytest.Item) -> int:
    """Where a test stands in the order: lower begins earlier."""
    group = group_of(item)
    if group in FIRST:
        return FIRST.index(group)
    return len(FIRST) + (item.get_closest_marker("slow") is None)


class Worker:
    """In a worker: sorts what it collected, as every other does, and tells the groups."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gentle = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=rank_of)  # stable: in a file as written
        self._path.write_text(json.dumps({item.nodeid: group_of(item) for item in items}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self._gentle and group_of(item) not in FAVOURED:
            self._gentle = True
            os.nice(GENTLE)


class Distributor:
    """In the process that hands out the tests."""

    @cached_property
    def folder(self) -> Path:
        """Where each worker writes what it collected. Without workers it is never made."""
        return Path(tempfile.mkdtemp(prefix="gangwatch-groups-"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_INPUT] = str(self.folder / node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return _scheduler(config, log, self.folder)

    def pytest_unconfigure(self) -> None:
        if "folder" in vars(self):
            shutil.rmtree(self.folder, ignore_errors=True)


def _scheduler(config: pytest.Config, log: Any, folder: Path) -> Any:
    """folder: where each worker has written its groups once it has collected."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """A unit of work is a group, or a test without one."""

        def schedule(self) -> None:
            if self.collection is None:
                told = next(folder.iterdir()).read_text()
                self._groups: dict[str, str] = json.loads(told)
            super().schedule()

        def _reschedule(self, node: WorkerController) -> None:
            # A worker must know its next test before it ends one. It is not given more than that: what begins late
            # should wait for whoever is free first, not behind a test of minutes.
            if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
                return
            super()._reschedule(node)

        def _split_scope(self, nodeid: str) -> str:
            return self._groups[nodeid] or nodeid

    config.option.loadscopereorder = False  # which would begin with the groups of the most tests
    return Groups(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(Path(config.workerinput[_INPUT])), "gangwatch-worker")
    else:
        config.pluginmanager.register(Distributor(), "gangwatch-distributor")
