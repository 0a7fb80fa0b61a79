"""Telemetry: what a detector sees, as arrays. The seam between whatever measures and whatever judges.

Three things fill it: the fleet (frames of real agents), the simulated world (its fast exit), and readers of recorded
traces. A detector can't tell which, and must not.

It is a stream. Each ``Telemetry`` holds what is NEW since the one before: steps that every known rank has finished,
windows of counters that have closed, events. A detector keeps what it needs of the past, and so never sees the future.
An empty ``Telemetry`` (time passed, nothing came) is as much a message as a full one.

All times are wall nanoseconds on the judge's clock. Absent is NaN, never zero. An empty name or a coordinate of -1 is
unknown.

Ranks of all jobs stand one after the other in one axis of N columns, job after job in the order of ``Telemetry.jobs``,
so that 100,000 GPUs are one set of arrays. ``Grouping`` cuts that axis into groups (role peers, a node, a tensor
group) and buckets them by size for arithmetic over all groups at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from agent.schema.frame import EventRecord
from scheduler_feedback.core.telemetry.gang_attempts import Consumed, FloatArray, IntArray

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]


# --- counters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the counters: what it is, its unit, and the series of the catalogue that it is made of (their sum).

    of: whose it is: 'gpu' (the rank's GPU), 'nic' (the NIC beside it), 'host' (its node, the same for all its ranks),
    'rank' (its processes). rate: whether it is a counter's advance a second, or a gauge.
    labels: for a label, the values that count, where not all of the metric's series do. 'pcie_link' alone is no sum:
    it is generation times lanes over what both could be.
    """

    name: str
    unit: str
    of: str
    rate: bool
    metrics: tuple[str, ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()


def _gpu(name: str, unit: str, rate: bool, *metrics: str, **labels: tuple[str, ...]) -> Feature:
    return Feature(name, unit, "gpu", rate, metrics, tuple(labels.items()))


def _nic(name: str, unit: str, *metrics: str, **labels: tuple[str, ...]) -> Feature:
    return Feature(name, unit, "nic", True, metrics, tuple(labels.items()))


_THERMAL = ("sw_thermal", "hw_thermal")
_POWER = ("power_cap", "hw_power_brake")
_PRESSURE = "gangwatch_host_pressure_waiting_seconds_total"

FEATURES: tuple[Feature, ...] = (
    _gpu("sm_active", "ratio", False, "gangwatch_gpu_sm_active_ratio"),
    _gpu("tensor_active", "ratio", False, "gangwatch_gpu_tensor_active_ratio"),
    _gpu("dram_active", "ratio", False, "gangwatch_gpu_dram_active_ratio"),
    _gpu("sm_clock", "hertz", False, "gangwatch_gpu_sm_clock_hertz"),
    _gpu("power", "watts", False, "gangwatch_gpu_power_watts"),
    _gpu("temperature", "celsius", False, "gangwatch_gpu_temperature_celsius"),
    _gpu("thermal_throttle", "ratio", True, "gangwatch_gpu_throttle_seconds_total", reason=_THERMAL),
    _gpu("power_throttle", "ratio", True, "gangwatch_gpu_throttle_seconds_total", reason=_POWER),
    _gpu("memory_errors", "1/s", True, "gangwatch_gpu_ecc_errors_total"),
    _gpu("nvlink_bytes", "bytes/s", True, "gangwatch_nvlink_transmit_bytes_total"),
    _gpu("nvlink_errors", "1/s", True, "gangwatch_nvlink_errors_total", "gangwatch_nvlink_recovery_attempts_total"),
    _gpu("pcie_link", "ratio", False, "gangwatch_pcie_link_generation", "gangwatch_pcie_link_lanes",
         "gangwatch_pcie_link_generation_maximum", "gangwatch_pcie_link_lanes_maximum"),
    _gpu("pcie_errors", "1/s", True, "gangwatch_gpu_pcie_replays_total", "gangwatch_gpu_pcie_errors_total"),
    _nic("nic_transmit_bytes", "bytes/s", "gangwatch_rdma_port_transmit_bytes_total"),
    _nic("nic_receive_bytes", "bytes/s", "gangwatch_rdma_port_receive_bytes_total"),
    _nic("nic_congestion", "1/s", "gangwatch_rdma_cnp_handled_total", "gangwatch_rdma_ecn_marked_packets_total"),
    _nic("nic_pause_received", "1/s", "gangwatch_rdma_pause_frames_total", direction=("receive",)),
    _nic("nic_pause_sent", "1/s", "gangwatch_rdma_pause_frames_total", direction=("transmit",)),
    _nic("nic_physical_errors", "1/s", "gangwatch_rdma_port_symbol_errors_total",
         "gangwatch_rdma_physical_symbol_errors_total", "gangwatch_rdma_physical_uncorrected_symbols_total"),
    _nic("nic_sequence_errors", "1/s", "gangwatch_rdma_out_of_sequence_total",
         "gangwatch_rdma_sequence_naks_received_total", "gangwatch_rdma_ack_timeouts_total"),
    Feature("cpu_waiting", "ratio", "host", True, (_PRESSURE,), (("resource", ("cpu",)),)),
    Feature("io_waiting", "ratio", "host", True, (_PRESSURE,), (("resource", ("io",)),)),
    Feature("runqueue_wait", "ratio", "rank", True, ("gangwatch_rank_runqueue_wait_seconds_total",)),
    Feature("processor", "ratio", "rank", True, ("gangwatch_rank_cpu_seconds_total",)),
)  # fmt: skip
"""Rows of the counters, in this order. A rate of a time is a share: seconds a second."""

FEATURE: Mapping[str, int] = {feature.name: row for row, feature in enumerate(FEATURES)}
"""Row of a feature by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Windows of counters that have closed since the last look; w windows, N ranks.

    at_ns: int64 [w], rising, the end of each window. seconds: how long one is.
    values: float32 [features, w, N]. A gauge is the newest sample inside of the window. A rate is the advance between
    the newest sample inside and the one before it, over the time between those two: a ten-second counter gives one
    value every ten windows and NaN between, never 0, 0, ..., 10x. NaN too where a sample is missing, came too late for
    its window, came twice with one time, or where the counter began anew.
    lag_seconds: float32 [N], how long before a window's end the traffic of each rank was sampled, by the newest window:
    nodes sample at moments of their own. NaN where that is not known; None where it is of no rank.
    """

    at_ns: IntArray
    seconds: float
    values: Float32Array
    lag_seconds: Float32Array | None = None


def no_counters(ranks: int) -> Counters:
    """No window, for this many ranks."""
    return Counters(np.zeros(0, np.int64), 1.0, np.zeros((len(FEATURES), 0, ranks), np.float32))


UNKNOWN_STATE = -1
"""Of a rank's processes: no agent reports it. All other states are ``agent.schema.process_state.ProcessState``."""


# --- jobs -------------------------------------------------------------------------------------------------------------

RESOURCES = ("host", "pcie_switch", "nic", "uplink")
"""Kinds of things that jobs can share, from near to far. 'host': a machine's processors, memory and disks; 'uplink':
the bundle of links from a rail or leaf switch into the fabric."""


@dataclass(frozen=True, eq=False)
class Shape:
    """Who the n ranks of one attempt of a job are, and where they stand. Constant for the attempt; compared by `is`.

    job, attempt: of the gang. ranks: int64 [n], rising.
    nodes, gpus, nics: name of each rank's node, UUID of its GPU, name of the NIC beside it ('node-3/mlx5_0').
    data, stage, tensor, expert: int64 [n], coordinates of the rank in the job's parallel layout.
    rail: int64 [n], number of the rail of its NIC.
    sharing: for each kind of RESOURCES that is known, the name of that resource for each rank, unique over the
    cluster; a kind that is missing, or an empty name, is not known. Ranks of two jobs with one name share it.
    """

    job: str
    attempt: int
    ranks: IntArray
    nodes: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    data: IntArray | None = None
    stage: IntArray | None = None
    tensor: IntArray | None = None
    expert: IntArray | None = None
    rail: IntArray | None = None
    sharing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.ranks)
        for name in ("nodes", "gpus", "nics"):
            if len(getattr(self, name)) not in ((count,) if name == "nodes" else (0, count)):
                raise ValueError(f"shape of {self.job}: {len(getattr(self, name))} {name} for {count} ranks")
        for name in ("data", "stage", "tensor", "expert", "rail"):
            if (values := getattr(self, name)) is not None and len(values) != count:
                raise ValueError(f"shape of {self.job}: {len(values)} coordinates '{name}' for {count} ranks")
        for kind, names in self.sharing.items():
            if kind not in RESOURCES or len(names) != count:
                raise ValueError(f"shape of {self.job}: sharing {kind!r} with {len(names)} names for {count} ranks")

    def __len__(self) -> int:
        return len(self.ranks)

    def coordinate(self, name: str) -> IntArray:
        """int64 [n]: 'data', 'stage', 'tensor', 'expert' or 'rail' of each rank, -1 where unknown."""
        values: IntArray | None = getattr(self, name)
        return np.full(len(self), -1, np.int64) if values is None else values

    @cached_property
    def place(self) -> Mapping[int, int]:
        """Each rank's place among the ranks."""
        return {rank: place for place, rank in enumerate(self.ranks.tolist())}

    @cached_property
    def resources(self) -> frozenset[tuple[str, str]]:
        """(kind, name) of everything that the ranks stand on and others may share."""
        return frozenset((kind, name) for kind, names in self.sharing.items() for name in names if name)

    @cached_property
    def roles(self) -> IndexArray:
        """[n]: number of the rank's role: ranks of one role (stage, expert layout) do the same work and are peers."""
        return _number(self.coordinate("stage"))

    @cached_property
    def groups(self) -> Mapping[str, IndexArray]:
        """For each way in which ranks overlap, the number of each rank's group [n]; ways that are unknown are left out.

        'node': ranks of a node; 'tensor': that share a layer (one data rank and stage); 'data': replicas of the same
        weights (one stage and tensor rank); 'pipeline': one model (one data rank); 'rail': NICs on one rail.
        """
        data, stage, tensor = self.coordinate("data"), self.coordinate("stage"), self.coordinate("tensor")
        found = {"node": _number(np.unique(np.asarray(self.nodes), return_inverse=True)[1])}
        if (data >= 0).all():
            found["pipeline"] = _number(data)
            if (tensor >= 0).all():
                found["tensor"] = _number(data, stage)
                found["data"] = _number(stage, tensor)
            elif (stage >= 0).all():
                found["data"] = _number(stage)
        rail = self.coordinate("rail")
        if (rail >= 0).all():
            found["rail"] = _number(rail)
        return found


def _number(*columns: npt.NDArray[np.generic]) -> IndexArray:
    """Number the distinct rows of these columns: [n] from 0, in their order."""
    result = _ranked(columns[0])
    for column in columns[1:]:
        then = _ranked(column)
        result = _ranked(result * (then.max(initial=0) + 1) + then)
    return result


def _ranked(values: npt.NDArray[np.generic]) -> IndexArray:
    """[n]: the place of each value among the distinct ones. Small whole numbers are counted instead of sorted, which
    for the groups of 100,000 ranks takes a tenth of the time."""
    if len(values) and values.dtype.kind == "i":
        whole: IndexArray = values.astype(np.intp)
        if whole.min() >= 0 and whole.max() < 4 * len(whole):
            numbers: IndexArray = np.cumsum(np.bincount(whole) > 0) - 1
            found: IndexArray = numbers[whole]
            return found
    places: IndexArray = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.intp)
    return places


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Steps of one job that were finished since the last look; k steps in the order of their completion, n ranks.

    number: int64 [k], the job's own numbering: it may skip, and may fall back after a restart from a checkpoint.
    end_ns: int64 [k, n]. seconds: float64 [k, n], from the end of the rank's previous step to the end of this one; NaN
    where the rank's report of this step is missing.
    wait_seconds: float64 [k, n], the part of `seconds` spent waiting in collectives; NaN where unknown.
    tokens: float64 [k, n] processed by the rank; squares: the sum of squared sequence lengths; None where no rank
    reports them. forward_seconds, backward_seconds: float64 [k, n], None where not measured (offline traces).
    """

    number: IntArray
    end_ns: IntArray
    seconds: FloatArray
    wait_seconds: FloatArray
    tokens: FloatArray | None = None
    squares: FloatArray | None = None
    forward_seconds: FloatArray | None = None
    backward_seconds: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True, eq=False)
class JobTelemetry:
    """One attempt of a job.

    steps: None where no rank has ever reported a step: the job is then watched by its counters alone.
    open_steps, open_collectives: int64 [n, 3]: number of what is begun and not ended, since when, when it was last
    seen so; -1 for never. steps_finished: int64 [n], number of the newest finished step of each rank, -1 for none.
    consumed: what the ranks' processes had used up at asked times [n] (each of its host's wall clock); None where
    nothing counts it. shared_machine: bool [n], whether other nodes of the cluster stand on the rank's machine.
    frames: newest frame of each node that this rests on: what a person looks up.
    process_states: gives int64 [n], the newest ProcessState of each rank's processes, UNKNOWN_STATE where no agent
    reports it; None where nothing does.
    """

    shape: Shape
    steps: StepTable | None = None
    open_steps: IntArray | None = None
    open_collectives: IntArray | None = None
    steps_finished: IntArray | None = None
    consumed: Callable[[IntArray], Consumed] | None = None
    shared_machine: npt.NDArray[np.bool_] | None = None
    frames: tuple[tuple[str, int], ...] = ()
    process_states: Callable[[], IntArray] | None = None


# --- events -----------------------------------------------------------------------------------------------------------

XID = "xid"  # detail: code (decimal); gpu: its UUID
RECOVERY_ACTION = "recovery-action"  # detail: action, a word of RECOVERY_ACTIONS; gpu: its UUID
LINK = "link"  # detail: state 'up' or 'down'; entity: the NIC ('mlx5_0') or NVLink ('GPU-.../3')
DEVICE_LOST = "device-lost"  # a GPU or NIC that the machine had and no longer shows
PART_REPLACED = "part-replaced"  # detail: gpu: UUID of the new one; an operator says so
EVENT_KINDS = (XID, RECOVERY_ACTION, LINK, DEVICE_LOST, PART_REPLACED)

RECOVERY_ACTIONS = (
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "imex",
    "bus-reset",
    "system-reboot",
)
"""Values of NVML's recovery-action field 230 from 0 on (nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event of one node, as its agent told it. event.kind: one of EVENT_KINDS; others are passed over."""

    node: str
    event: EventRecord


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """All that is new since the last look.

    now_ns: the time of looking. jobs: every job that is known, also those with nothing new; the order is kept as long
    as the set is. counters: N columns, the ranks of `jobs` one after the other.
    heard_ns: when each known agent was last heard, by node.
    """

    now_ns: int
    jobs: tuple[JobTelemetry, ...]
    counters: Counters
    events: tuple[NodeEvent, ...] = ()
    heard_ns: Mapping[str, int] = field(default_factory=dict)

    def columns(self) -> list[slice]:
        """Each job's columns in the counters."""
        ends = np.cumsum([len(job.shape) for job in self.jobs]).tolist()
        return [slice(end - len(job.shape), end) for end, job in zip(ends, self.jobs, strict=True)]


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Groups of nearly one size. index [groups, size]: columns, with N for a place that is padded below all values and
    N + 1 for one above, so that the lower median of every group stands at the same place, `middle`, when sorted.
    real [groups, size]: which places are no padding. group [groups]: their numbers in the grouping."""

    index: IndexArray
    real: npt.NDArray[np.bool_]
    middle: int
    group: IndexArray


class Grouping:
    """A partition of N columns into groups of any sizes, laid out for arithmetic on all groups at once.

    Sizes within a factor of 1.25 share a bucket, so that padding costs at most a quarter. of: int [N], group of each
    column. sizes [groups]. order, starts: the columns by group, and where in that order each group begins.
    """

    PADDING = 1.25

    def __init__(self, of: Sequence[int] | IndexArray) -> None:
        self.of = _number(np.asarray(of, np.int64)) if len(of) else np.zeros(0, np.intp)
        self.sizes = np.bincount(self.of) if len(self.of) else np.zeros(0, np.intp)
        self.order = np.argsort(self.of, kind="stable").astype(np.intp)
        self.starts = (np.cumsum(self.sizes) - self.sizes).astype(np.intp)
        self.buckets: tuple[Bucket, ...] = tuple(self._buckets())

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def _in_order(self) -> bool:
        """Whether the groups stand one after the other."""
        return bool((self.of[1:] >= self.of[:-1]).all())

    def spread(self, values: Float32Array, out: Float32Array) -> Float32Array:
        """[groups] -> [N]: each group's value for all of its columns. out: [N], to be used for it where that helps."""
        return np.repeat(values, self.sizes) if self._in_order else np.take(values, self.of, out=out, mode="clip")

    def members(self, group: int) -> IndexArray:
        """The columns of one group."""
        start = int(self.starts[group])
        return self.order[start : start + int(self.sizes[group])]

    def _buckets(self) -> Iterator[Bucket]:
        columns = len(self.order)
        by_size = np.argsort(self.sizes, kind="stable")
        at = 0
        while at < len(by_size):
            end = int(np.searchsorted(self.sizes[by_size], int(self.sizes[by_size[at]] * self.PADDING), side="right"))
            groups = by_size[at:end]
            at = end
            size = int(self.sizes[groups[-1]])
            counts = self.sizes[groups][:, None]
            middle = (size - 1) // 2
            place = np.arange(size)
            real = place < counts
            below = place - counts < middle - (counts - 1) // 2
            columns_of = self.order[np.minimum(self.starts[groups][:, None] + place, columns - 1)]
            index = np.where(real, columns_of, np.where(below, columns, columns + 1))
            yield Bucket(index.astype(np.intp), real, middle, groups.astype(np.intp))
