"""Owners of devices: device names, and the combination of several sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.device_owners import (
    GPU_DRIVER,
    MAX_OWNERS,
    GpuOwner,
    Join,
    ProcessOwner,
    RdmaOwner,
    join_owners,
    resolve,
    resolve_claimed,
    resolve_file,
)
from agent.gpu_inventory import GpuDevice, GpuProcess, MigDevice, parse_information
from agent.rank_attribution import Owner
from agent.schema.errors import SourceError
from agent.sources.kubelet.pod_resources import ClaimedDevice, Container, Pod


def uuid(kind: str, digit: int) -> str:
    return f"{kind}-{digit:08x}-2222-3333-4444-555555555555"


G0, G1, G2 = (uuid("GPU", number) for number in range(3))
M1, M2, M3 = (uuid("MIG", number) for number in (1, 2, 3))
GPUS = (
    GpuDevice(G0, 0, 1),
    GpuDevice(G1, 1, 0, "0000:1b:00.0", (MigDevice(M1, 7, 0, 19, 0), MigDevice(M2, 9, 0, 19, 2))),
    # Two compute instances in one GPU instance.
    GpuDevice(G2, 2, 2, "", (MigDevice(M3, 3, 0, 9, 0), MigDevice(uuid("MIG", 4), 3, 1, 9, 0))),
)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (G0, (G0, "")),
        (f"{G0}::7", (G0, "")),
        (uuid("GPU", 99), (uuid("GPU", 99), "")),
        (M1, (G1, M1)),
        (f"{M2}::0", (G1, M2)),
        (uuid("MIG", 99), None),
        (f"MIG-{G1}/7/0", (G1, M1)),
        (f"MIG-{G1}/8/0", (G1, f"MIG-{G1}/8/0")),
        ("nvidia0", (G1, "")),
        ("nvidia1", (G0, "")),
        ("nvidia0/gi9", (G1, M2)),
        ("nvidia0/gi9/vgpu1", (G1, M2)),
        ("nvidia1/vgpu3", (G0, "")),
        ("nvidia2/gi3", None),
        ("nvidia7", None),
        ("nvidiactl", None),
        ("0", None),
        ("", None),
        ("::3", None),
    ],
)
def test_ids_of_device_plugins_are_resolved(device: str, expected: tuple[str, str] | None) -> None:
    assert resolve(device, GPUS) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("gpu-1", (G0, "")),
        ("gpu-0-mig-19-2-1", (G1, M2)),
        ("gpu-0-mig-1g10gb-19-0", (G1, M1)),
        ("gpu-0-mig-1g10gb-19-4", None),
        ("gpu-2-mig-9-0-4", None),
        ("gpu-9", None),
        ("gpu-vfio-1", None),
    ],
)
def test_names_in_resource_claims_are_resolved(device: str, expected: tuple[str, str] | None) -> None:
    assert resolve_claimed(device, GPUS) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("0", (G0, "")), ("1.7", (G1, M1)), (G2, (G2, "")), (M1, (G1, M1)), ("5", None), ("x", None)]
)
def test_names_of_job_files_are_resolved(name: str, expected: tuple[str, str] | None) -> None:
    assert resolve_file(name, GPUS) == expected


@given(st.text(max_size=40))
def test_arbitrary_names_are_resolved_to_a_gpu_or_none(name: str) -> None:
    for of in (resolve, resolve_claimed, resolve_file):
        found = of(name, GPUS)
        assert found is None or found[0].startswith("GPU-")


# --- joining ---------------------------------------------------------------------------------------------------------


def pod(name: str, *devices: str, container: str = "main", resource: str = "nvidia.com/gpu") -> Pod:
    return Pod("team", name, (Container(container, tuple((resource, device) for device in devices)),))


def test_a_container_and_its_process_are_one_owner() -> None:
    join = Join(GPUS)
    join.pods([pod("llama-0", f"{G0}::3")], {("team", "llama-0"): "u-1"})
    join.processes([(GpuProcess(7, G0), Owner("team", "llama-0", "", "pod-u-1", "0", "5"))])
    assert join.owners().gpus == (GpuOwner(G0, "", Owner("team", "llama-0", "main", "pod-u-1", "0", "5")),)


def test_processes_that_share_a_gpu_have_separate_owners() -> None:
    join = Join(GPUS)
    join.pods([pod("a", f"{G0}::0"), pod("b", f"{G0}::1")], {})
    join.processes(
        [
            (GpuProcess(7, G0), Owner("team", "a", "", "pod-1", "", "0")),
            (GpuProcess(8, G0), Owner("team", "b", "", "pod-2", "", "0")),
            (GpuProcess(9, G0), Owner("team", "b", "", "pod-2", "", "1")),
            (GpuProcess(10, G1, M1), Owner(slurm_job="871")),
        ]
    )
    assert join.owners().processes == (
        ProcessOwner(G0, "", 7, Owner("team", "a", "main", "pod-1", "", "0")),
        ProcessOwner(G0, "", 8, Owner("team", "b", "main", "pod-2", "", "0")),
        ProcessOwner(G0, "", 9, Owner("team", "b", "main", "pod-2", "", "1")),
        ProcessOwner(G1, M1, 10, Owner(slurm_job="871")),
    )


def test_pods_that_share_a_gpu_are_separate_owners() -> None:
    join = Join(GPUS)
    join.pods([pod("a", f"{G0}::0", f"{G0}::1"), pod("b", f"{G0}::2"), pod("c", M1)], {})
    assert join.owners().gpus == (
        GpuOwner(G0, "", Owner("team", "a", "main")),
        GpuOwner(G0, "", Owner("team", "b", "main")),
        GpuOwner(G1, M1, Owner("team", "c", "main")),
    )


def test_a_process_is_not_assigned_to_one_of_two_containers_by_guess() -> None:
    both = Pod("team", "p", tuple(Container(name, (("nvidia.com/gpu", G0),)) for name in "ab"))
    join = Join(GPUS)
    join.pods([both], {})
    join.processes([(GpuProcess(7, G0), Owner("team", "p", "", "pod-u", "", "3"))])
    assert [one.owner for one in join.owners().gpus] == [
        Owner("team", "p", "", "pod-u", "", "3"),
        Owner("team", "p", "a"),
        Owner("team", "p", "b"),
    ]


def test_a_job_file_and_its_process_are_one_owner() -> None:
    join = Join(GPUS)
    join.jobs([("0", "871"), ("1.7", "872"), ("9", "873")])
    process = Owner("", "", "", "slurm-871.0", "0", "4", "871")
    join.processes([(GpuProcess(7, G0), process)])
    owners = join.owners()
    assert owners.gpus == (GpuOwner(G0, "", process), GpuOwner(G1, M1, Owner(slurm_job="872")))
    assert owners.unresolved == 1


def test_a_local_rank_from_two_sources_is_one_owner() -> None:
    join = Join(GPUS)
    rank = Owner(gang="j-000001", attempt="1", rank="0")
    join.rank(G0, rank)
    join.processes([(GpuProcess(7, G0), rank), (GpuProcess(8, G0), rank)])
    assert join.owners().gpus == (GpuOwner(G0, "", rank),)


def test_claims_and_rdma_devices_have_owners() -> None:
    claimed = (ClaimedDevice(GPU_DRIVER, "n", "gpu-1", "c"), ClaimedDevice("dra.net", "n", "pci-0000-3b-02-1", "c"))
    pods = [
        Pod("team", "claims", (Container("main", (), claimed),)),
        pod("sriov", "0000:3B:02.1", resource="nvidia.com/mlnx_nics"),
        pod("shared", "17", resource="rdma/hca_shared_devices_a"),
        pod("other", "17", resource="vendor.com/fpga"),
    ]
    join = Join(GPUS, {"0000:3b:02.1": "mlx5_3"})
    join.pods(pods, {})
    owners = join.owners()
    assert owners.gpus == (GpuOwner(G0, "", Owner("team", "claims", "main")),)
    assert owners.rdma == (
        RdmaOwner("", "", "rdma/hca_shared_devices_a", "team", "shared", "main"),
        RdmaOwner("mlx5_3", "0000:3b:02.1", "dra.net", "team", "claims", "main"),
        RdmaOwner("mlx5_3", "0000:3b:02.1", "nvidia.com/mlnx_nics", "team", "sriov", "main"),
    )
    assert owners.unresolved == 0


def test_the_number_of_owners_is_limited_and_the_rest_is_counted() -> None:
    join = Join(GPUS)
    join.pods([pod(f"p{number}", f"{G0}::{number}") for number in range(MAX_OWNERS + 40)], {})
    owners = join.owners()
    assert (len(owners.gpus), owners.left_out) == (MAX_OWNERS, 40)


words = st.sampled_from(["", "x", "y"])
owner = st.builds(Owner, words, words, words, words, words, words, words)


@given(st.lists(owner, max_size=6))
def test_joined_owners_keep_all_known_fields_and_add_none(parts: list[Owner]) -> None:
    owners = join_owners(parts)
    assert owners == sorted(set(owners)) == join_owners([*reversed(parts), *parts])
    for one in owners:
        for field in Owner.__slots__:
            value = getattr(one, field)
            assert not value or value in {getattr(part, field) for part in parts}
    for part in parts:
        assert any(
            all(getattr(part, field) in ("", getattr(one, field)) for field in Owner.__slots__) for one in owners
        )


def test_the_information_file_of_the_driver_is_parsed() -> None:
    lines = ("Model: \t\t NVIDIA H100", "IRQ:   \t\t 18", f"GPU UUID: \t {G0}", "Bus Location: \t 0000:1B:00.0")
    text = "\n".join((*lines, "Device Minor: \t 3\n"))
    assert parse_information(text) == (G0, 3, "0000:1b:00.0")
    for broken in ("", text.replace(G0, "GPU-????????-????-????-????-????????????"), text.replace("3\n", "x\n")):
        with pytest.raises(SourceError):
            parse_information(broken)
