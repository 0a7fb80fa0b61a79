"""Best-case performance of a GPU, its links and its node, from the vendors' data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Properties of one GPU model."""

    name: str
    """Product name of the GPU."""
    peak_flops: float
    """Dense BF16 operations per second at the boost clock."""
    achieved: float
    """Share of the peak that large matrix products reach."""
    memory_bytes_per_second: float
    """Bandwidth of the device memory in bytes per second."""
    boost_hertz: float
    """Highest clock rate of the GPU, in hertz."""
    least_hertz: float
    """Lowest clock rate of the GPU, in hertz."""
    limit_watts: float
    """Power cap in watts."""
    idle_watts: float
    """Power in watts while no kernel runs."""
    spin_watts: float
    """Additional power in watts while a kernel only polls."""
    limit_celsius: float
    """Temperature in degrees Celsius at which the driver starts to lower the clock."""
    nvlink_bytes_per_second: float
    """Bandwidth of all NVLinks of the GPU together, in one direction."""


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
)

H200 = GpuModel(
    name="NVIDIA H200",
    peak_flops=989e12,  # NVIDIA H200 data sheet, SXM
    achieved=0.70,
    memory_bytes_per_second=4.8e12,  # data sheet
    boost_hertz=1.98e9,
    least_hertz=0.345e9,
    limit_watts=700.0,  # data sheet, maximum TDP
    idle_watts=75.0,
    spin_watts=130.0,
    limit_celsius=87.0,
    nvlink_bytes_per_second=450e9,
)

A100 = GpuModel(
    name="NVIDIA A100-SXM4-80GB",
    peak_flops=312e12,  # NVIDIA A100 data sheet
    achieved=0.80,
    memory_bytes_per_second=2.04e12,  # data sheet
    boost_hertz=1.41e9,
    least_hertz=0.21e9,
    limit_watts=400.0,  # data sheet, maximum TDP
    idle_watts=55.0,
    spin_watts=75.0,
    limit_celsius=85.0,
    nvlink_bytes_per_second=300e9,
)

GPUS_PER_NODE = 8
"""Number of GPUs on a node's HGX board, with one NIC per GPU."""

NIC_BYTES_PER_SECOND = 50e9
"""Line rate of a NIC in bytes per second: ConnectX-7, 400 Gb/s."""

NIC_EFFICIENCY = 0.92
"""Share of the line rate that RDMA writes of NCCL's chunk sizes reach as payload."""

NIC_GOODPUT = NIC_BYTES_PER_SECOND * NIC_EFFICIENCY
"""Highest throughput of a NIC, in bytes per second."""

PCIE_BYTES_PER_SECOND = {(5, 16): 63.0e9, (4, 16): 31.5e9, (3, 16): 15.8e9, (5, 8): 31.5e9, (5, 4): 15.8e9}
"""Bandwidth of a PCIe link in bytes per second and direction, by (generation, lanes), after encoding (PCI Express base
specification, 128b/130b)."""

LAUNCH_SECONDS = 4.0e-6
"""Host time in seconds to launch one kernel (CUDA launch latency, 3-5 microseconds)."""

KERNELS_PER_LAYER = 40
"""Number of kernels of a transformer layer, forward and backward, with fused attention."""
