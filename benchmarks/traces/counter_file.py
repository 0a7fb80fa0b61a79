"""Lines of counters for a trace's file: one for each rank and sample."""

from __future__ import annotations

import numpy as np

from benchmarks.traces.counters import counters_of, course_of, node_counters, red_herrings
from benchmarks.traces.hardware import Hardware, make_hardware
from benchmarks.traces.job import Job
from benchmarks.traces.model import FloatArray

GROUPS = {
    "profiling": ("sm_active", "tensor_active", "dram_active"),
    "host": ("cpu_waiting", "io_waiting"),
    "rank": ("runqueue_wait", "processor"),
    "network": (
        "nic_transmit_bytes", "nic_receive_bytes", "nic_congestion", "nic_sequence_errors", "nic_physical_errors",
        "nic_pause_sent", "nic_pause_received",
    ),
}  # fmt: skip
"""Groups of counters that a cluster may not collect: DCGM's profiling metrics, pressure of the host, accounting of the
rank's processes, and the NICs'."""


def counter_rows(job: Job, seed: int) -> tuple[list[str], FloatArray]:
    """Return the lines of counters, and the end in seconds of each executed step on each rank: float64 [e, n].

    Sets the cause in the job's truth. The same seed and job always give the same lines.
    """
    rng = np.random.default_rng([seed, job.layout.ranks, 20261129])
    seconds = float(sum(job.seconds))
    hardware = make_hardware(job, rng, seconds)
    job.truth.cause = hardware.origin
    course = course_of(job, hardware)
    nodes = job.layout.node_of()
    shift = job.node_factor(rng.uniform(0.0, hardware.interval, job.nodes()))
    wrong = np.zeros((len(course.step), job.layout.ranks))
    if job.clock_error is not None:
        wrong = np.cumsum(job.clock_error[course.step], axis=0)
    windows = max(int((course.begin[-1] - hardware.interval) / hardware.interval), 2)
    values, times = [], []
    of_node: dict[int, dict[str, FloatArray]] = {}
    for rank, node in enumerate(nodes.tolist()):
        edges = shift[rank] + hardware.interval * np.arange(windows + 1)
        if node not in of_node:
            of_node[node] = node_counters(job, hardware, course, job.layout.ranks_of_node(node), edges)
        found = counters_of(job, hardware, course, rank, edges) | of_node[node]
        values.append(found)
        times.append(edges[1:] + np.interp(edges[1:], course.begin[1:], wrong[:, rank]))
    red_herrings(job, hardware, values)
    left_out = {name for group in hardware.lacking for name in GROUPS[group]}
    lost = _lost(job, hardware, windows)
    lines = []
    for rank, (found, at) in enumerate(zip(values, times, strict=True)):
        names = [name for name in found if name not in left_out]
        template = ",".join(f'"{name}":%.5g' for name in names)
        columns = np.stack([found[name] for name in names], axis=1).tolist()
        moments = np.maximum(at, 0.0).tolist()
        lines += [
            f'{{"at":{moments[k]:.3f},"rank":{rank},{template % tuple(columns[k])}}}'
            for k in range(windows)
            if not lost[k, rank]
        ]
    return lines, course.begin[1:, None] + wrong


def _lost(job: Job, hardware: Hardware, windows: int) -> np.ndarray:
    """Return bool [windows, n]: samples that the file does not contain."""
    share = 0.03 if job.lost is not None else 0.002
    lost = hardware.rng.random((windows, job.layout.ranks)) < share
    if job.lost is not None:
        first = int(hardware.rng.integers(windows))
        ranks = job.layout.ranks_of_node(int(hardware.rng.integers(job.nodes())))
        lost[first : first + max(2, windows // 10), ranks] = True
    return lost
