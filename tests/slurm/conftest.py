"""Fixtures: one test Slurm cluster for the session. Its tests run in one worker, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import absent, component
from tests.slurm.bed import PACKAGES, AbsentError, Bed, find
from tests.slurm.site import Site


@pytest.fixture(scope="session")
def running_bed() -> Iterator[Bed]:
    for program, package in PACKAGES.items():
        component(program, package)
    try:
        find()
    except AbsentError as error:
        absent(str(error))
    with Bed(64) as bed:
        yield bed


@pytest.fixture
def bed(running_bed: Bed) -> Iterator[Bed]:
    """Test cluster without jobs, whose nodes are idle. Its jobs are removed after the test."""
    yield running_bed
    running_bed.export({})
    running_bed.reset()


@pytest.fixture
def site(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Site]:
    """gangwatch with its own state folder on the test cluster. The ranks get the sockets of its agents."""
    folder = bed.folder / f"site{len(list(bed.folder.glob('site*')))}"
    folder.mkdir(mode=0o700)
    bed.export({"GANGWATCH_SOCKET": f"{folder}/run/{{node}}.sock"})
    made = Site(bed, folder)
    yield made
    made.stop()


@pytest.fixture
def work(bed: Bed) -> Path:
    """Folder for the files of a job's ranks: checkpoints, sockets, process ids."""
    folder = bed.folder / f"work{len(list(bed.folder.glob('work*')))}"
    folder.mkdir()
    return folder
