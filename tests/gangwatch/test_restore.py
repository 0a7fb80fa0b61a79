"""`up` restores the same cluster by default after all processes were killed or the machine was rebooted."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config, load
from gangwatch.configuration.sections import ClusterSection
from gangwatch.health.machine import Gpu
from gangwatch.state_folder import NodePlan, StateFolder, SupervisorRecord, start_time_of, write_atomically
from gangwatch.supervisor import launcher
from gangwatch.supervisor.launcher import make_order, merge_options
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

SLEEPS = ("--", sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as closed:
        yield closed


def kill_everything(door: FrontDoor) -> None:
    """Kill the supervisor with SIGKILL, so that it restarts nothing, and then every daemon."""
    write_record = door.state.supervisor_left()
    assert write_record is not None
    for record in (write_record, *write_record.daemons.values()):
        os.kill(record.pid, signal.SIGKILL)
    wait_until(
        lambda: all(start_time_of(one.pid) != one.start_time for one in (write_record, *write_record.daemons.values())),
        door.logs,
    )


def cluster(door: FrontDoor) -> list[tuple[str, int, bool]]:
    return [(node["node"], node["slots"], node["present"]) for node in door.json("nodes")]


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_up_restores_the_cluster_and_its_jobs_after_all_processes_were_killed(door: FrontDoor, tmp_path: Path) -> None:
    config = tmp_path / "g.toml"
    config.write_text("[policy]\nsuspect_seconds = 77\n")
    door.run("up", "--nodes", "3", "--slots", "2", "--port", "0", "--no-gpus", "--config", str(config))
    before = cluster(door)
    assert before == [(f"node-{index}", 2, True) for index in range(3)]
    job = door.submit("--ranks", "6", *SLEEPS)
    ranks = door.wait_for(job, "running")["ranks"]
    kill_everything(door)
    messages = door.run("up")
    assert "restoring the cluster of the last `gangwatch up`: node-0 (2), node-1 (2), node-2 (2)" in messages.stderr
    assert cluster(door) == before
    assert door.wait_for(job, "running")["ranks"] == ranks, "the job keeps its processes"
    assert '"suspect_seconds":77.0' in door.state.config_file.read_text(), "the configuration is restored too"


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_options_override_the_record_and_a_reboot_restores_them(door: FrontDoor) -> None:
    door.up()
    kill_everything(door)
    messages = door.run("up", "--slots", "3")
    assert "differ from the last" in messages.stderr
    assert cluster(door) == [("node-0", 3, True), ("node-1", 3, True)]

    supervisor = door.state.supervisor()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGTERM)  # as a shutdown sends it to all processes
    wait_until(lambda: door.state.supervisor() is None and door.state.controller() is None, door.logs)
    door.run("up")
    assert cluster(door) == [("node-0", 3, True), ("node-1", 3, True)]


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_down_removes_the_record_unless_it_keeps_jobs(door: FrontDoor) -> None:
    door.run("up", "--nodes", "1", "--slots", "3", "--port", "0", "--no-gpus")
    job = door.submit("--ranks", "3", *SLEEPS)
    ranks = door.wait_for(job, "running")["ranks"]
    door.run("down", "--keep-jobs")
    assert door.state.supervisor_left() is not None
    door.run("up")
    assert [slots for _, slots, _ in cluster(door)] == [3]
    assert door.wait_for(job, "running")["ranks"] == ranks
    door.run("down")
    assert door.state.supervisor_left() is None


# --- the order -------------------------------------------------------------------------------------------------------


def loaded(file: Path | None, options: tuple[str, ...]) -> Config:
    given: dict[str, Any] = {}
    words = iter(options)
    for word in words:
        given[word] = None if word in launcher.FLAGS else next(words)
    number = {name: int(given[f"--{name}"]) for name in ("nodes", "slots", "port") if f"--{name}" in given}
    sections = {"nodes": "cluster.nodes", "slots": "cluster.slots", "port": "controller.port"}
    return load(file, {sections[name]: value for name, value in number.items()})


class Bed:
    """State folder with the record of an earlier `up`, and the messages of the next one."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder(folder / "state")
        self.state.prepare()
        self.messages: list[str] = []

    def write_record(self, order: launcher.Order) -> None:
        """Write the record that this `up` leaves after all its processes have ended."""
        record = SupervisorRecord(1, -1, order.nodes, order.port, order.config, order.options, {}, order.cluster)

        write_atomically(self.state.supervisor_file, msgspec.json.encode(record))

    def order(self, options: str = "", file: Path | None = None) -> launcher.Order:
        self.messages.clear()
        return make_order(self.state, file, tuple(shlex.split(options)), loaded, self.messages.append)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.delenv("GANGWATCH_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(launcher, "find_gpus", lambda _library: ())
    monkeypatch.setattr(launcher, "usable_processors", lambda: 2)
    return Bed(tmp_path)


def test_the_order_of_the_last_up_is_reused_although_the_machine_changed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bed.order("--port 9999")
    assert [node.slots for node in first.nodes] == [4, 4]
    assert bed.messages == []
    bed.write_record(first)
    monkeypatch.setattr(launcher, "usable_processors", lambda: 64)
    again = bed.order()
    assert again == first
    assert again == bed.order("--port 9999")
    assert bed.order("--nodes 3").nodes == tuple(NodePlan(f"node-{index}", 21) for index in range(3))
    assert any("nodes differ" in line for line in bed.messages)
    assert bed.order("--nodes 3").port == 9999
    assert bed.order("--port 1").nodes == first.nodes
    assert any("port differs from the last `gangwatch up`: now 1, before 9999" in line for line in bed.messages)


def test_gpus_stay_with_their_nodes(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Gpu(f"GPU-{index}", "H100") for index in range(8)]
    monkeypatch.setattr(launcher, "find_gpus", lambda _library: tuple(found))
    first = bed.order()
    assert [len(node.devices) for node in first.nodes] == [4, 4]
    bed.write_record(first)
    found.reverse()  # a driver may number them differently after a reboot
    assert bed.order().nodes == first.nodes
    del found[0]
    assert bed.order().nodes == first.nodes
    assert any(line.startswith("warning: the driver no longer lists GPU-7") for line in bed.messages)


def test_a_changed_configuration_overrides_the_record(bed: Bed, tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[cluster]\nnodes = 3\n[controller]\nport = 9000\n")
    first = bed.order("", file)
    bed.write_record(first)
    assert bed.order() == first, "the file is read again without being named"
    file.write_text("[cluster]\nnodes = 2\n[controller]\nport = 9000\n")
    assert len(bed.order().nodes) == 2
    assert any("differ" in line for line in bed.messages)
    other = tmp_path / "other.toml"
    other.write_text("[cluster]\nnodes = 5\n")
    assert len(bed.order("", other).nodes) == 5
    assert "another configuration" in bed.messages[0]
    file.unlink()
    assert len(bed.order().nodes) == 2, "the size of the machine decides"
    assert any("no longer exists" in line for line in bed.messages)


def test_a_record_of_an_earlier_release_is_restored_too(bed: Bed) -> None:
    nodes = (NodePlan("host", 2),)
    bed.write_record(launcher.Order(bed.state, nodes, 9420))
    assert bed.order().nodes == nodes


def test_running_daemons_keep_their_nodes(bed: Bed) -> None:
    first = bed.order("--nodes 3")
    bed.write_record(first)
    record = bed.state.supervisor_left()
    assert record is not None

    this = SupervisorRecord(
        os.getpid(), start_time_of(os.getpid()) or 0, first.nodes, first.port, "", first.options, {}, first.cluster
    )
    write_atomically(bed.state.supervisor_file, msgspec.json.encode(this))
    assert bed.order().nodes == first.nodes
    with pytest.raises(GangwatchError, match="gangwatch down"):
        bed.order("--nodes 4")


def test_new_options_override_earlier_options() -> None:
    earlier = ("--nodes", "4", "--port", "1", "--no-gpus")
    assert merge_options(earlier, ()) == earlier
    assert merge_options(earlier, ("--port", "2", "--slots", "3")) == (
        *("--nodes", "4", "--port", "2", "--no-gpus", "--slots", "3"),
    )
    assert merge_options((), ("--no-gpus",)) == ("--no-gpus",)


def test_a_default_cluster_section_sets_no_nodes() -> None:
    assert (ClusterSection().nodes, ClusterSection().slots) == (None, None)
