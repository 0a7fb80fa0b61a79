"""What a GPU, its links and its node can do at their best, from the makers' sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU.

    peak_flops: dense BF16 at the boost clock, per second. achieved: share of it that large matrix products reach.
    memory_bytes_per_second: of the device memory. boost_hertz, least_hertz: highest and lowest clock.
    limit_watts: the power cap; idle_watts: drawn with no kernel running; spin_watts: added by a kernel that polls.
    limit_celsius: where the driver begins to slow the clock down. nvlink_bytes_per_second: one direction, all links.
    """

    name: str
    peak_flops: float
    achieved: float
    memory_bytes_per_second: float
    boost_hertz: float
    least_hertz: float
    limit_watts: float
    idle_watts: float
    spin_watts: float
    limit_celsius: float
    nvlink_bytes_per_second: float
    pcie_generation: int
    pcie_width: int


H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    peak_flops=989e12,  # NVIDIA H100 data sheet, SXM: 1,979 TFLOPS BF16 with sparsity, half of it dense
    achieved=0.70,  # large GEMMs reach 60-75 % of the dense peak at the power cap (cuBLAS on H100, MLPerf notes)
    memory_bytes_per_second=3.35e12,  # data sheet
    boost_hertz=1.98e9,  # nvidia-smi -q -d CLOCK, Max Clocks SM
    least_hertz=0.345e9,  # lowest graphics clock in nvidia-smi -q -d SUPPORTED_CLOCKS
    limit_watts=700.0,  # data sheet, maximum TDP
    idle_watts=75.0,  # nvidia-smi of an idle SXM board: 65-80 W
    spin_watts=130.0,  # a GPU polling in a collective draws about 200 W
    limit_celsius=87.0,  # nvidia-smi -q -d TEMPERATURE, GPU Target/Slowdown range of SXM boards
    nvlink_bytes_per_second=450e9,  # 18 links of 25 GB/s each way
    pcie_generation=5,
    pcie_width=16,
)

GPUS_PER_NODE = 8
"""HGX boards; one NIC beside each GPU."""

NIC_BYTES_PER_SECOND = 50e9
"""ConnectX-7, 400 Gb/s."""

NIC_EFFICIENCY = 0.92
"""Share of the line rate left to payload and reached by RDMA writes of NCCL's chunk sizes."""

PCIE_BYTES_PER_SECOND = {(5, 16): 63.0e9, (4, 16): 31.5e9, (3, 16): 15.8e9, (5, 8): 31.5e9, (5, 4): 15.8e9}
"""By generation and width, one direction after encoding (PCI Express base specification, 128b/130b)."""

LAUNCH_SECONDS = 4.0e-6
"""Host time to launch one kernel (CUDA launch latency, 3-5 microseconds)."""

KERNELS_PER_LAYER = 40
"""Kernels of a transformer layer, forward and backward, with a fused attention."""
