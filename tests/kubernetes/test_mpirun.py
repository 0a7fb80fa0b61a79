"""A real mpirun that starts ranks in other pods of its gang, on real kubelets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes import mpi_job
from tests.kubernetes.harness import wait_for
from tests.kubernetes.real_site import GPUS, NODES, Site

pytestmark = [pytest.mark.xdist_group("real-kubelets"), pytest.mark.timeout(900), pytest.mark.slow]

WORKERS = 3
OTHER = "mpi-waits-for"


@pytest.fixture
def program(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = mpi_job.compiled(tmp_path_factory.mktemp("mpi"))
    for parent in folder.parents[:2]:  # pytest's own folders
        parent.chmod(0o755)
    yield folder
    mpi_job.remove(site)
    site.clear(OTHER)


def test_mpirun_starts_its_ranks_in_the_pods_of_its_gang(site: Site, program: Path) -> None:
    """The gang waits as a whole while there is room for a part of it. Then the ranks reduce over the pods' network."""
    site.add_job(OTHER, len(NODES) * GPUS - WORKERS + 1)
    wait_for("another gang runs", lambda: len(site.running(OTHER)) == len(NODES) * GPUS - WORKERS + 1)
    mpi_job.add(site, WORKERS, program)
    wait_for("it waits, and says why", lambda: site.gangs.condition(mpi_job.NAME))
    assert site.gangs.bound(mpi_job.NAME) == 0, "neither launcher nor workers have a node"
    site.clear(OTHER)

    wait_for("the launcher has ended", lambda: _launcher(site) in ("Succeeded", "Failed"), 120)
    lines = site.kubectl("logs", f"job/{mpi_job.NAME}-launcher").splitlines()
    assert _launcher(site) == "Succeeded", lines
    total = sum(range(WORKERS))
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert ranks == [f"rank {n} of {WORKERS} on {mpi_job.NAME}-worker-{n}: sum {total}" for n in range(WORKERS)], lines
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in site.gangs.pods(mpi_job.NAME)}
    (launcher,) = (node for name, node in nodes.items() if "launcher" in name)
    assert launcher in {node for name, node in nodes.items() if "worker" in name}


def _launcher(site: Site) -> str:
    """Return the phase of the launcher; '' while it has none."""
    found = [pod for pod in site.gangs.pods(mpi_job.NAME) if "launcher" in pod["metadata"]["name"]]
    return str(found[0]["status"].get("phase", "")) if found else ""
