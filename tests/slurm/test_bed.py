"""Test Slurm cluster: tests of the cluster itself."""

from __future__ import annotations

import pytest

from tests.slurm.bed import Bed

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow, pytest.mark.timeout(180)]


def test_two_beds_at_once_are_independent(bed: Bed) -> None:
    """The other cluster may belong to another pytest worker or another checkout."""
    with Bed(2) as other:
        number = other.submit("sleep 60", "--nodes=2")
        other.wait_for("its job", lambda: other.job(number)["JobState"] == "RUNNING")
        assert not bed.ask("squeue", "--noheader").strip()
        assert len(bed.nodes_in("idle")) == bed.count
