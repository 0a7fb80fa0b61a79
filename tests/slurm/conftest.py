"""One Slurm for the whole session; its tests run in one worker, one after another."""

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
    """An empty bed with all nodes idle, and again empty afterwards."""
    yield running_bed
    running_bed.export({})
    running_bed.reset()


@pytest.fixture
def site(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site with its own state folder; the ranks of the bed get its agents' sockets."""
    folder = bed.folder / f"site{len(list(bed.folder.glob('site*')))}"
    folder.mkdir(mode=0o700)
    bed.export({"GANGWATCH_SOCKET": f"{folder}/run/{{node}}.sock"})
    made = Site(bed, folder)
    yield made
    made.stop()


@pytest.fixture
def work(bed: Bed) -> Path:
    """A folder for the ranks of a job: checkpoints, sockets, process ids."""
    folder = bed.folder / f"work{len(list(bed.folder.glob('work*')))}"
    folder.mkdir()
    return folder
