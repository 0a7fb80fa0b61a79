"""pytest plug-in that distributes tests to the workers of pytest-xdist: groups as a whole, the longest first.

    pytest -p tests.distribution -n 3

Tests marked `xdist_group` share an expensive setup, ports, or a folder, so one worker runs the whole group.
pytest-xdist's own option (--dist loadgroup) writes the group into the ids of tests, which pytest 9.2 no longer reads;
the marks then have no effect, without a warning (pytest-xdist issue 1386). Here each worker writes the groups of its
tests to a file, and the distributing process reads it.

FIRST lists the groups that take minutes, mostly waiting, because a late start would delay the end of the run. Tests
marked `slow` come next, then all others.
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

FIRST = ("ordinary", "dashboards-live", "real-kubelets", "slurm", "kubernetes", "front-door", "accasim")

FAVOURED, GENTLE = FIRST[:2], 5
"""Groups that keep their priority; all other tests get this nice value. These groups run for minutes in real time and
limit the delay of job starts and scrapes, so a lack of CPU time alone would fail them."""

_INPUT = "gangwatch_groups"


def group_of(item: pytest.Item) -> str:
    """Return the test's group; '' if any worker may run the test."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return ""
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


def rank_of(item: pytest.Item) -> int:
    """Return the test's position in the order: lower starts earlier."""
    group = group_of(item)
    if group in FIRST:
        return FIRST.index(group)
    return len(FIRST) + (item.get_closest_marker("slow") is None)


class Worker:
    """Plug-in in a worker. It sorts the collected tests as all workers do, and writes their groups to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gentle = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=rank_of)  # stable: keeps the order within a file
        self._path.write_text(json.dumps({item.nodeid: group_of(item) for item in items}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self._gentle and group_of(item) not in FAVOURED:
            self._gentle = True
            os.nice(GENTLE)


class Distributor:
    """Plug-in in the process that distributes the tests."""

    @cached_property
    def folder(self) -> Path:
        """Return the folder in which each worker writes its groups. It is created only if there are workers."""
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
    """Return the scheduler of pytest-xdist. folder: where each worker has written its groups."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Scheduler that assigns whole groups, and single tests that have none."""

        def schedule(self) -> None:
            if self.collection is None:
                written = next(folder.iterdir(), None)  # None: no test was found, which pytest reports
                self._groups: dict[str, str] = {} if written is None else json.loads(written.read_text())
            super().schedule()

        def _reschedule(self, node: WorkerController) -> None:
            # A worker must know its next test before it ends one. It gets no more than that: later tests should go to
            # the first free worker, not wait behind a test of minutes.
            if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
                return
            super()._reschedule(node)

        def _split_scope(self, nodeid: str) -> str:
            return self._groups[nodeid] or nodeid

    config.option.loadscopereorder = False  # which would start with the groups of most tests
    return Groups(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a run of the serial tests alone, leave out files without the word: their collection takes a minute."""
    if config.option.markexpr != "serial" or collection_path.suffix != ".py":
        return None
    return None if "serial" in collection_path.read_text() else True


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(Path(config.workerinput[_INPUT])), "gangwatch-worker")
    else:
        config.pluginmanager.register(Distributor(), "gangwatch-distributor")
