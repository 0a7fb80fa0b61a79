"""Owner series for joins, from the kubelet, the driver and the processes. They end with their job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.block import Block
from agent.collectors.host.kubelet_pods import ALLOCATABLE_NS, KEEP_NS, KubeletCollector, PodTable
from agent.collectors.host.owners import OwnerCollector
from agent.gpu_inventory import GpuDevice, GpuProcess, Inventory
from agent.rank_attribution import Attribution
from agent.schema.clock import ManualClock
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.kubelet.kubelet import Kubelet
from agent.sources.kubelet.pod_resources import Container, Pod
from tests.agent.catalogued import assert_catalogued, gauge
from tests.agent.test_attribution import write_rank
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.processes import ProcTree

GPU = "GPU-00000000-2222-3333-4444-555555555555"
OTHER = "GPU-00000001-2222-3333-4444-555555555555"
UID = "0123abcd-4567-89ef-0123-456789abcdef"
CGROUP = f"/kubepods/burstable/pod{UID}/{'f0' * 32}"


class World:
    """Simulated node with a kubelet, processes and GPUs, and the two collectors that read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(monotonic_ns=1_000_000_000_000)
        self.processes = ProcTree(folder / "proc")
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.kubelet = FakeKubelet(folder / "kubelet.sock")
        self.inventory = Inventory()
        self.inventory.gpus = (GpuDevice(GPU, 0, 0), GpuDevice(OTHER, 1, 1))
        self.table = PodTable()
        self.attribution = Attribution(None, str(folder / "proc"), self.clock, str(self.logs))
        self.lister = KubeletCollector(
            self.kubelet.path, self.table, self.clock, kubelet=Kubelet(self.kubelet.path, 10.0)
        )
        self.owners = self.collector()

    def collector(self, **arguments: object) -> OwnerCollector:
        return OwnerCollector(
            self.attribution,
            self.table,
            self.inventory,
            proc_root=str(self.folder / "proc"),
            sys_root=str(self.folder / "sys"),
            clock=self.clock,
            **arguments,  # type: ignore[arg-type]
        )

    def start_pod(self, name: str = "llama-0", gpu: str = GPU, uid: str = UID) -> None:
        self.kubelet.pods.append(Pod("team", name, (Container("main", (("nvidia.com/gpu", gpu),)),)))
        (self.logs / f"team_{name}_{uid}").mkdir()

    def rows(self) -> list[dict[str, str]]:
        """Return the labels of each owner series, without empty labels."""
        block = self.owners.collect()
        assert_catalogued(block)
        assert (block.gauges[2:] == 1.0).all()
        return [
            {key: word for key, word in column.labels if word}
            for column in block.gauge_columns
            if column.metric == "gangwatch_gpu_owner_info"
        ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.kubelet:
        yield made


POD_ROW = {"gpu": GPU, "namespace": "team", "pod": "llama-0", "container": "main", "gang": f"pod-{UID}"}


def test_a_pod_and_its_rank_are_an_owner(world: World) -> None:
    assert world.rows() == []
    world.start_pod()
    world.clock.advance(1)
    world.lister.collect()
    assert world.rows() == [POD_ROW]
    world.processes.add(77, CGROUP, environment={"RANK": "5", "TORCHELASTIC_RESTART_COUNT": "1"})
    world.inventory.processes = (GpuProcess(77, GPU),)
    assert world.rows() == [POD_ROW | {"rank": "5", "attempt": "1"}]
    block = world.owners.collect()
    assert world.owners.collect() is block, "the same owners: the same block, and no new layout"


def test_an_ended_job_is_removed_within_a_minute(world: World) -> None:
    world.start_pod()
    world.lister.collect()
    world.processes.add(77, CGROUP, environment={"RANK": "5"})
    world.inventory.processes = (GpuProcess(77, GPU),)
    world.clock.advance(1)
    assert world.rows() == [POD_ROW | {"rank": "5"}]
    # The process ends; the driver's processes are polled only every half minute.
    world.processes.remove(77)
    assert world.rows() == [POD_ROW]
    world.kubelet.pods.clear()
    world.lister.collect()
    assert world.rows() == [POD_ROW], "the kubelet was polled just now"
    world.clock.advance(10)
    world.lister.collect()
    assert world.rows() == []


def test_an_unreachable_kubelet_affects_only_its_series_and_recovers(world: World) -> None:
    world.start_pod()
    world.processes.add(9, "/system.slice/slurmstepd.scope/job_871/step_0/user/task_0")
    world.inventory.processes = (GpuProcess(9, OTHER),)
    slurm = {"gpu": OTHER, "gang": "slurm-871.0", "slurm_job": "871"}
    world.lister.collect()
    assert world.rows() == [POD_ROW, slurm]
    world.kubelet.stop()
    for _ in range(3):
        world.clock.advance(10)
        with pytest.raises(SourceError, match="List"):
            world.lister.collect()
        assert world.rows() == [POD_ROW, slurm], "a restart removes nothing"
    world.clock.advance(KEEP_NS / 1e9)
    assert world.rows() == [slurm], "unconfirmed owners are removed within a minute"
    world.kubelet.start()
    world.lister.collect()
    assert world.rows() == [POD_ROW, slurm]


def test_a_process_of_an_unlisted_pod_triggers_a_request_to_the_kubelet(world: World) -> None:
    world.lister.collect()
    world.start_pod()
    world.clock.advance(2)
    world.lister.collect()
    assert world.kubelet.calls == 2, "List and GetAllocatableResources; the next poll is not due"
    world.processes.add(77, CGROUP)
    world.inventory.processes = (GpuProcess(77, GPU),)
    assert world.rows() == [{"gpu": GPU, "namespace": "team", "pod": "llama-0", "gang": f"pod-{UID}"}]
    world.lister.collect()
    assert world.kubelet.calls == 3
    assert world.rows() == [POD_ROW]
    world.lister.collect()
    assert world.kubelet.calls == 3, "one request for the new pod"


def test_a_reused_pid_does_not_inherit_the_gpu(world: World) -> None:
    world.processes.add(77, "/slurm/uid_1/job_871/step_0/task_0", start_time=100)
    world.inventory.processes = (GpuProcess(77, GPU),)
    assert [row["slurm_job"] for row in world.rows()] == ["871"]
    world.processes.add(77, "/slurm/uid_2/job_999/step_0/task_0", start_time=200)
    assert world.rows() == []
    assert world.rows() == []
    world.inventory.processes = (GpuProcess(77, GPU),)
    assert [row["slurm_job"] for row in world.rows()] == ["999"], "the driver was polled again and reports it"


def test_ranks_of_the_local_backend_are_owners(world: World, tmp_path: Path) -> None:
    write_rank(tmp_path / "ranks" / "n0", os.getpid(), rank=3, slot="1")
    attribution = Attribution(str(tmp_path / "ranks" / "n0"), clock=world.clock)
    collector = OwnerCollector(attribution, world.table, world.inventory, slots=(GPU, OTHER), clock=world.clock)
    row = {"gpu": OTHER, "gang": "j-000001", "attempt": "2", "rank": "3"}
    labels = collector.collect().gauge_columns[2].labels
    assert {key: word for key, word in labels if word} == row
    slots_of_processors = OwnerCollector(attribution, world.table, world.inventory, clock=world.clock)
    assert len(slots_of_processors.collect().gauge_columns) == 2


def test_job_files_give_owners(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "0").write_text("871\n\n872 1000\n")
    (folder / "1").write_bytes(b"\xff")
    (folder / "..hidden name").write_text("1")
    world.owners = world.collector(job_files=str(folder))
    assert world.rows() == [{"gpu": GPU, "slurm_job": "871"}, {"gpu": GPU, "slurm_job": "872"}]
    (folder / "0").unlink()
    assert world.rows() == []
    world.start_pod()
    world.lister.collect()
    folder.rename(tmp_path / "moved")
    with pytest.raises(SourceError, match="jobs"):
        world.owners.collect()
    (tmp_path / "moved").rename(folder)
    world.clock.advance(1)
    assert world.rows() == [POD_ROW]


def test_rdma_devices_are_found_by_their_address(world: World, tmp_path: Path) -> None:
    address = "0000:3b:02.1"
    (tmp_path / "sys" / "devices" / address).mkdir(parents=True)
    (tmp_path / "sys" / "class" / "infiniband" / "mlx5_3").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "infiniband" / "mlx5_3" / "device").symlink_to(tmp_path / "sys" / "devices" / address)
    world.kubelet.pods = [Pod("team", "p", (Container("main", (("vendor.com/vf", address),)),))]
    world.lister.collect()
    block = world.owners.collect()
    assert_catalogued(block)
    labels = {"container": "main", "device": "mlx5_3", "namespace": "team", "pci_address": address, "pod": "p"}
    assert gauge(block, "gangwatch_rdma_owner_info", resource="vendor.com/vf", **labels) == 1


def test_minor_numbers_come_from_the_kernel_driver_if_nvml_has_none(world: World) -> None:
    world.processes.add_gpu("0000:1b:00.0", GPU, 3)
    world.processes.add_gpu("0000:2b:00.0", OTHER, 2)
    world.kubelet.pods = [Pod("team", "p", (Container("main", (("nvidia.com/gpu", "nvidia3"),)),))]
    world.lister.collect()
    for gpus in ((), (GpuDevice(GPU, 0), GpuDevice(OTHER, 1))):
        world.inventory.gpus = gpus
        assert [row["gpu"] for row in world.rows()] == [GPU]
    world.inventory.gpus = (GpuDevice(GPU, 0, 0),)
    block = world.owners.collect()
    assert gauge(block, "gangwatch_owner_devices_unresolved") == 1, "no GPU of this node has that number"


def test_pods_of_one_name_are_not_distinguished_by_a_guess(world: World) -> None:
    world.start_pod()
    (world.logs / f"team_llama-0_{UID[:-1]}0").mkdir()
    world.lister.collect()
    assert world.rows() == [{key: word for key, word in POD_ROW.items() if key != "gang"}]


# --- the kubelet's collector -----------------------------------------------------------------------------------------


def test_devices_are_counted_by_resource(world: World) -> None:
    world.kubelet.allocatable = [("nvidia.com/gpu", GPU), ("nvidia.com/gpu", OTHER), ("rdma/hca", "0")]
    world.start_pod()
    block = world.lister.collect()
    assert_catalogued(block)
    assert gauge(block, "gangwatch_kubelet_pods") == 1
    assert gauge(block, "gangwatch_kubelet_devices_allocatable", resource="nvidia.com/gpu") == 2
    assert gauge(block, "gangwatch_kubelet_devices_allocated", resource="nvidia.com/gpu") == 1
    assert gauge(block, "gangwatch_kubelet_devices_allocated", resource="rdma/hca") == 0
    world.kubelet.allocatable.clear()
    world.clock.advance(ALLOCATABLE_NS / 1e9)
    block = world.lister.collect()
    assert gauge(block, "gangwatch_kubelet_devices_allocatable", resource="nvidia.com/gpu") == 0
    with pytest.raises(KeyError):
        gauge(block, "gangwatch_kubelet_devices_allocated", resource="rdma/hca")


def test_a_kubelet_without_allocatable_resources_is_supported(world: World) -> None:
    class Old:
        def list(self) -> tuple[Pod, ...]:
            return (Pod("team", "p", (Container("main", (("nvidia.com/gpu", GPU),)),)),)

        def allocatable(self) -> tuple[tuple[str, str], ...]:
            raise UnsupportedError("unimplemented")

    collector = KubeletCollector(world.kubelet.path, PodTable(), world.clock, kubelet=Old())
    block = collector.collect()
    assert gauge(block, "gangwatch_kubelet_devices_allocated", resource="nvidia.com/gpu") == 1
    absent = gauge(block, "gangwatch_kubelet_devices_allocatable", resource="nvidia.com/gpu")
    assert absent != absent


def test_a_node_without_a_kubelet_has_no_such_collector(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no folder"):
        KubeletCollector(str(tmp_path / "none" / "kubelet.sock"), PodTable())
    collector = KubeletCollector(str(tmp_path / "kubelet.sock"), PodTable())
    with pytest.raises(SourceError, match="No such file"):
        collector.collect()
    assert isinstance(collector._block, Block)
