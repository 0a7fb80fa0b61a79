"""Updates of a fleet: timestamps by the node's wall clock, each value returned once, NaN without new data."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from agent.schema.frame import Column, Frame, Layout, Member, OpenRecord, StepRecord, Tier, make_layout
from scheduler_feedback.core.fabric import Fabric, Leaf
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, CPU
from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.core.telemetry.telemetry_update import Look

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND
BOOTED = {"n0": 0, "n1": 5000 * SECOND}
"""Seconds by which each node was booted later than the first; its monotonic clock is behind by as much."""


def layout(
    node: str, rank: int, attempt: int = 1, switch: str = "0:9", nic: str = "mlx5_0", model: str | None = None
) -> Layout:
    """Return a layout of one rank with its GPU, the NIC near the GPU, and its processes' counters."""
    member = (("attempt", str(attempt)), ("gang", "g"))
    gpu, address = f"GPU-{node}", f"0:{rank}"
    model = f"model of {node}" if model is None else model
    gauges = (
        Column("gangwatch_gpu_owner_info", (*member, ("gpu", gpu), ("rank", str(rank)))),
        Column("gangwatch_gpu_info", (("gpu", gpu), ("model", model), ("pci_address", address))),
        Column("gangwatch_topology_rail_info",
               (("nic", nic), ("pci_address", address), ("rail", str(rank)), ("switch", switch))),
        Column("gangwatch_gpu_sm_clock_hertz", (("gpu", gpu),)),
    )  # fmt: skip
    counters = tuple(Column(metric, (*member, ("rank", str(rank)))) for metric in CONSUMED)
    return make_layout(node, (Tier("process", 1.0),), gauges, counters)


class Site:
    """Two nodes with one rank each, whose agents send one frame per second."""

    def __init__(self, fabric: Fabric | None = None, boots: tuple[str, str] = ("b0", "b1")) -> None:
        self.fleet = Fleet()
        self.look = Look(self.fleet, fabric)
        self.boots = dict(zip(BOOTED, boots, strict=True))
        self.layouts = {node: layout(node, rank) for rank, node in enumerate(BOOTED)}

    def frame(self, node: str, second: int, clock: float = 1.0, opened: bool = True) -> Frame:
        """Return a frame: the rank finished step `second` a tenth of a second ago and is in the next step."""
        rank, at = list(BOOTED).index(node), second * SECOND + 10_000 * SECOND - BOOTED[node]
        member, of_node = Member("g", 1, rank), self.layouts[node]
        inside = (OpenRecord(member, "collective", second, at - SECOND // 20),) if opened else ()
        step = StepRecord(member, second, at - SECOND // 2, SECOND * 4 // 10, SECOND // 10)
        values = np.full(len(of_node.counters), second * SECOND // 4, np.uint64)
        return Frame(
            node, self.boots[node], "a", second, of_node.layout_id, WALL + second * SECOND, at, np.array([at]),
            np.array([1.0, 1.0, 1.0, clock][: len(of_node.gauges)]), values, np.ones(len(values), np.bool_), 2 * second,
            (step, *inside),
        )  # fmt: skip

    def sends(self, second: int, *nodes: str, clock: float = 1.0) -> None:
        for node in nodes or BOOTED:
            one = self.frame(node, second, clock)
            assert self.fleet.observe(self.layouts[node], one, one.wall_ns)


def test_the_shape_names_the_model_of_each_gpu() -> None:
    site = Site()
    known, unknown = site.layouts["n1"], layout("n1", 1, model="")
    for second, of_node, model in ((1, unknown, ""), (2, known, "model of n1")):
        site.layouts["n1"] = of_node
        site.sends(second)
        [job] = site.look.next(WALL + second * SECOND).jobs
        assert job.shape.models == ("model of n0", model)


def test_all_times_are_on_the_wall_clock_whenever_a_node_was_booted() -> None:
    site = Site()
    site.sends(1)
    site.sends(2)
    telemetry = site.look.next(WALL + 2 * SECOND)
    [job] = telemetry.jobs
    assert job.steps is not None and job.consumed is not None and job.open_collectives is not None
    assert job.steps.number.tolist() == [1, 2]
    assert job.steps.end_ns.tolist() == [[WALL + at * SECOND - SECOND // 10] * 2 for at in (1, 2)]
    assert job.open_collectives.tolist() == [[2, WALL + 2 * SECOND - SECOND // 20, WALL + 2 * SECOND]] * 2
    assert job.open_steps is not None and (job.open_steps == -1).all(), "an event that never happened has no time"
    found = job.consumed(np.array([WALL + SECOND * 3 // 2] * 2))
    assert found.at_ns.tolist() == [WALL + SECOND * 3 // 2] * 2
    assert found.values[:, CPU] == pytest.approx([SECOND / 8] * 2)
    assert telemetry.last_received_ns == dict.fromkeys(BOOTED, WALL + 2 * SECOND)
    assert job.frames == (("n0", 2), ("n1", 2))


def test_an_update_is_returned_once() -> None:
    site = Site()
    site.sends(1)
    assert [len(job.steps or ()) for job in site.look.next(WALL + SECOND).jobs] == [1]
    again = site.look.next(WALL + 2 * SECOND)
    assert [job.steps is not None and len(job.steps) for job in again.jobs] == [0]
    assert np.isnan(again.counters.values).all(), "nothing was received since"
    site.sends(3, "n1", clock=0.7)
    partly = site.look.next(WALL + 3 * SECOND)
    clocks = partly.counters.values[FEATURE["sm_clock"], 0]
    assert np.isnan(clocks[0]) and clocks[1] == pytest.approx(0.7)


def test_a_window_is_one_second_at_any_reading_rate() -> None:
    site = Site()
    windows = []
    for tenth in range(10, 40, 2):
        if tenth % 10 == 0:
            site.sends(tenth // 10)
        windows.append(site.look.next(WALL + tenth * SECOND // 10).counters.values.shape[1])
    assert windows == [1, 0, 0, 0, 0] * 3


def test_receive_times_of_nodes_are_on_the_readers_clock() -> None:
    site = Site()
    site.sends(1)
    site.sends(4, "n0")
    telemetry = site.look.next(4 * WALL, WALL + 6 * SECOND)
    assert telemetry.last_received_ns == {"n0": 4 * WALL - 2 * SECOND, "n1": 4 * WALL - 5 * SECOND}
    assert site.look.next(4 * WALL).last_received_ns == {"n0": 4 * WALL, "n1": 4 * WALL - 3 * SECOND}


def test_a_restarted_gang_is_new_for_its_reader() -> None:
    site = Site()
    for second in range(1, 5):
        site.sends(second)
    assert [len(job.steps or ()) for job in site.look.next(WALL).jobs] == [4]
    site.fleet.forget("g")
    assert site.look.next(WALL).jobs == ()
    site.sends(5)
    site.sends(6)
    [job] = site.look.next(WALL).jobs
    assert job.steps is not None and job.steps.number.tolist() == [5, 6]


def test_a_gang_forgotten_and_restarted_between_two_readings_is_another() -> None:
    site = Site()
    for second in range(1, 5):
        site.sends(second)
    site.look.next(WALL)
    site.fleet.forget("g")  # like a Slurm job, whose attempt stays 0
    site.layouts = {node: layout(node, rank + 6) for rank, node in enumerate(BOOTED)}
    for second in (5, 6):
        for node in BOOTED:
            one = site.frame(node, second)
            records = tuple(replace(record, member=Member("g", 1, record.member.rank + 6)) for record in one.records)
            assert site.fleet.observe(site.layouts[node], replace(one, records=records), one.wall_ns)
    [job] = site.look.next(WALL).jobs
    assert job.shape.ranks.tolist() == [6, 7]
    assert job.steps is not None and job.steps.number.tolist() == [5, 6]
    assert not site.look.failed


def test_shared_resources_are_known_only_for_machines_of_one_node() -> None:
    own = Site(boots=("b0", "b1"))
    own.sends(1)
    [job] = own.look.next(WALL).jobs
    assert job.shape.sharing == {
        "host": ("n0", "n1"), "nic": ("n0/mlx5_0", "n1/mlx5_0"), "pcie_switch": ("n0/0:9", "n1/0:9"),
    }  # fmt: skip
    assert job.shared_machine is not None and not job.shared_machine.any()
    assert job.shape.coordinate("rail").tolist() == [0, 1]
    one_machine = Site(boots=("b", "b"))
    one_machine.sends(1)
    [job] = one_machine.look.next(WALL).jobs
    assert job.shape.sharing["host"] == ("", "")
    assert "pcie_switch" not in job.shape.sharing, "devices near a virtual node's GPU are shared with other nodes"
    assert job.shared_machine is not None and job.shared_machine.all()


def test_a_node_that_names_no_machine_does_not_block_telemetry_of_jobs() -> None:
    site = Site(boots=("", ""))
    for second in range(1, 5):
        site.sends(second)
    [job] = site.look.next(WALL).jobs
    assert job.shape.sharing["host"] == ("n0", "n1")
    assert not site.look.failed


def test_uplinks_are_those_of_each_ranks_rail() -> None:
    fabric = Fabric([Leaf("leaf-0", ("n0",), 0), Leaf("leaf-1", ("n0", "n1"), 1)])
    site = Site(fabric)
    site.sends(1)
    [job] = site.look.next(WALL).jobs
    assert job.shape.sharing["uplink"] == ("leaf-0", "leaf-1")
    nowhere = Site(Fabric([Leaf("leaf-9", ("elsewhere",))]))
    nowhere.sends(1)
    assert "uplink" not in nowhere.look.next(WALL).jobs[0].shape.sharing


def test_devices_and_values_of_another_attempt_are_ignored() -> None:
    site = Site()
    site.layouts["n1"] = layout("n1", 1, attempt=2)  # the agent already counts for the next attempt
    site.sends(1)
    site.fleet.forget("g")
    site.layouts["n1"] = layout("n1", 1, attempt=9)
    site.layouts["n0"] = layout("n0", 0, attempt=1)
    frame = site.frame("n0", 2)
    site.fleet.observe(site.layouts["n0"], frame, frame.wall_ns)
    telemetry = site.look.next(WALL + 2 * SECOND)
    [job] = telemetry.jobs
    assert (job.shape.attempt, job.shape.gpus) == (1, ("GPU-n0",))
    assert telemetry.counters.values.shape[2] == 1
    assert telemetry.counters.values[FEATURE["sm_clock"], 0, 0] == 1.0
