"""Leaf switch of each node from the topology file, and the uplinks that jobs share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Member, StepRecord, Tier, make_layout
from scheduler_feedback.core.fabric import Fabric, Leaf
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.fabric_file import nodes_of, read_fabric

SLURM = """
# two leaves below a spine
SwitchName=leaf1 Nodes=n[01-03],login  # a comment
switchname=leaf2 nodes=n[04,06-07] LinkSpeed=100
SwitchName=spine Switches=leaf[1-2]
"""
NAMES = ("n01", "n03", "login", "n04", "n07", "n05")
RAILS = """
[[leaf]]
name = "leaf-0"
nodes = "n[1-2]"
rail = 0
[[leaf]]
name = "leaf-1"
nodes = "n[1-2]"
rail = 1
[[leaf]]
name = "leaf-old"
nodes = "m1"
"""


def written(folder: Path, text: str, name: str = "topology.conf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_leaves_of_slurms_file(tmp_path: Path) -> None:
    fabric = read_fabric(written(tmp_path, SLURM))
    found = {
        name: fabric.uplink(name, rail) for rail in (-1, 3) for name in ("n01", "n03", "login", "n04", "n07", "n05")
    }
    assert found == {"n01": "leaf1", "n03": "leaf1", "login": "leaf1", "n04": "leaf2", "n07": "leaf2", "n05": ""}


def test_each_rail_has_a_leaf_of_its_own(tmp_path: Path) -> None:
    fabric = read_fabric(written(tmp_path, RAILS, "topology.toml"))
    assert [fabric.uplink("n2", rail) for rail in (0, 1, 2, -1)] == ["leaf-0", "leaf-1", "", ""]
    assert fabric.uplink("m1", 5) == "leaf-old"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("topology.conf", "Nodes=n1", "line 1: expected SwitchName=NAME"),
        ("topology.conf", "\nSwitchName=a nodes n1", "line 2: expected SwitchName=NAME"),
        ("topology.conf", "SwitchName=a Nodes=n[3-1]", "line 1: \\[3-1\\] is not a range"),
        ("topology.conf", "SwitchName=a Nodes=n[0-999999999]", "line 1: .*too many"),
        ("topology.conf", "SwitchName=a Nodes=n[1", "line 1: 'n\\[1' is not a list"),
        ("topology.conf", "SwitchName=a Nodes=[1-999],[1-999][1-999],[1-999][1-999]", "more than"),
        ("topology.conf", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "n1 is below a and below b"),
        ("topology.toml", "[[leaf]]\nname = 'a'", "nodes"),
        ("topology.toml", "[[leaf]]\nname = 'a'\nnodes = 'n1'\nrails = 1", "rails"),
        ("topology.toml", "leaf = 1", "array"),
        ("topology.toml", "]", "line 1"),
    ],
)
def test_invalid_topology_file_is_refused_with_its_place(tmp_path: Path, name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read_fabric(written(tmp_path, text, name))
    assert str(tmp_path / name) in str(caught.value)


def test_missing_topology_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_fabric(tmp_path / "none.conf")


@given(st.text(alphabet="n01-,[] \t", max_size=24))
def test_no_list_of_nodes_crashes(text: str) -> None:
    try:
        names = list(nodes_of(text))
    except ValueError:
        return
    assert all("[" not in name and "," not in name for name in names)


def test_jobs_below_one_leaf_share_its_uplinks() -> None:
    """Two jobs run on two nodes each. The leaf switch of the second job's second node is unknown."""
    fabric = Fabric([Leaf("leaf-a", ("n0", "n2")), Leaf("leaf-b", ("n1",))])
    fleet = Fleet()
    reader = Look(fleet, fabric)
    for node, (gang, rank) in {"n0": ("j", 0), "n1": ("j", 1), "n2": ("k", 0), "n3": ("k", 1)}.items():
        layout = make_layout(node, (Tier("steps", 1.0),), (), ())
        record = StepRecord(Member(gang, 1, rank), 1, 9 * 10**8, 10**8)
        frame = Frame(
            node, node, "a", 1, layout.layout_id, 10**9, 10**9, np.array([10**9]), np.zeros(0), np.zeros(0, np.uint64),
            np.zeros(0, np.bool_), 0, (record,),
        )  # fmt: skip
        fleet.observe(layout, frame, 10**9)
    sharing = {job.shape.job: job.shape.sharing for job in reader.next(10**9).jobs}
    assert sharing["j"]["uplink"] == ("leaf-a", "leaf-b")
    assert sharing["k"]["uplink"] == ("leaf-a", "")
    assert "uplink" not in next(iter(Look(fleet).next(10**9).jobs)).shape.sharing
