"""Telemetry: the detectors' input as arrays. It separates measuring from detecting.

There are three sources: the fleet (frames of real agents), the simulated world (without frames), and readers of
recorded traces. Detectors must not depend on the source.

Telemetry is a stream. Each ``Telemetry`` contains only NEW data since the last one: steps that every known rank has
finished, closed windows of counters, events. A detector stores the history that it needs and never sees the future. An
empty ``Telemetry`` is valid input too: time passed without data.

All times are wall nanoseconds on the detector's clock. A missing value is NaN, never zero. An empty name or a
coordinate of -1 is unknown.

The ranks of all jobs form one axis of N columns, in the order of ``Telemetry.jobs``, so that 100,000 GPUs are one set
of arrays. ``Grouping`` divides that axis into groups (role peers, a node, a tensor group) and buckets them by size, for
arithmetic on all groups at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from agent.schema.frame import EventRecord
from scheduler_feedback.core.telemetry.series.consumption_trail import Consumed
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]


# --- counters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feature:
    """One value per rank that detectors use: the sum of some series of the catalogue. It is one row of
    Counters.values."""

    name: str
    """Name of the feature."""
    unit: str
    """Unit of the feature's values."""
    of: str
    """Owner of the series: 'gpu' (the rank's GPU), 'nic' (the NIC next to that GPU), 'host' (the node, the same for all
    its ranks) or 'rank' (the rank's processes)."""
    rate: bool
    """Whether the value is a counter's increase per second; if not, it is a gauge."""
    metrics: tuple[str, ...]
    """Metrics whose series are summed. 'pcie_link' is no sum: it is generation times lanes over their maxima."""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Label values that a series must have to be summed; empty: all series of the metrics are summed."""


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
    Feature("tcp_bytes", "bytes/s", "rank", True, ("gangwatch_rank_tcp_sent_bytes_total",)),
    Feature("tcp_busy", "ratio", "rank", True, ("gangwatch_rank_tcp_busy_seconds_total",)),
    Feature("transmit_queue", "ratio", "rank", True, ("gangwatch_rank_transmit_queue_seconds_total",)),
)  # fmt: skip
"""All features, in the order of the rows of Counters.values. The rate of a counter of seconds is a share: seconds per
second."""

FEATURE: Mapping[str, int] = {feature.name: row for row, feature in enumerate(FEATURES)}
"""Row of each feature in Counters.values, by the feature's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Counter values of N ranks in the w windows that have closed since the previous ``Telemetry``."""

    at_ns: IntArray
    """int64 [w], increasing: the end of each window."""
    seconds: float
    """Length of one window, in seconds."""
    values: Float32Array
    """float32 [features, w, N]. A gauge is the newest sample inside the window. A rate is the increase between the
    newest sample inside the window and the sample before it, over the time between the two. A ten-second counter
    therefore has one value every ten windows and NaN in between, never 0, 0, ..., 10x. A value is also NaN if a sample
    is missing, came too late for its window or repeats a time, and after a counter reset."""
    lag_seconds: Float32Array | None = None
    """float32 [N]: time from each rank's newest traffic sample to the end of the newest window, because nodes sample at
    different times. NaN if unknown; None if no rank has it."""


def no_counters(ranks: int) -> Counters:
    """Return counters without a window, for this many ranks."""
    return Counters(np.zeros(0, np.int64), 1.0, np.zeros((len(FEATURES), 0, ranks), np.float32))


UNKNOWN_STATE = -1
"""State of a rank's processes that no agent reports. Other states are ``agent.schema.process_state.ProcessState``."""


# --- jobs -------------------------------------------------------------------------------------------------------------

RESOURCES = ("host", "pcie_switch", "nic", "uplink")
"""Kinds of resources that jobs can share, from near to far. 'host': a machine's processors, memory and disks; 'uplink':
the links from a rail or leaf switch into the fabric."""


@dataclass(frozen=True, eq=False)
class Shape:
    """The n ranks of one attempt of a job, with their nodes, devices and coordinates. Constant; compared by `is`."""

    job: str
    """Job id."""
    attempt: int
    """Number of the attempt."""
    ranks: IntArray
    """Rank numbers, increasing: int64 [n]."""
    nodes: tuple[str, ...]
    """Node of each rank, in the order of `ranks`."""
    gpus: tuple[str, ...] = ()
    """UUID of each rank's GPU."""
    nics: tuple[str, ...] = ()
    """NIC next to each rank's GPU ('node-3/mlx5_0')."""
    data: IntArray | None = None
    """int64 [n]: data-parallel coordinate of each rank in the job's layout."""
    stage: IntArray | None = None
    """int64 [n]: pipeline stage of each rank."""
    tensor: IntArray | None = None
    """int64 [n]: tensor-parallel coordinate of each rank."""
    expert: IntArray | None = None
    """int64 [n]: expert-parallel coordinate of each rank."""
    rail: IntArray | None = None
    """int64 [n]: number of the rail of each rank's NIC."""
    sharing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each known kind of RESOURCES: name of each rank's resource, unique in the cluster. If the kind is missing or
    the name is empty, the resource is unknown. Ranks of two jobs with the same name share the resource."""
    models: tuple[str, ...] = ()
    """Model of each rank's GPU ('NVIDIA H100 80GB HBM3'); '' if unknown. Empty if no model is known."""

    def __post_init__(self) -> None:
        count = len(self.ranks)
        for name in ("nodes", "gpus", "nics", "models"):
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
        """Return int64 [n]: 'data', 'stage', 'tensor', 'expert' or 'rail' of each rank; -1 if unknown."""
        values: IntArray | None = getattr(self, name)
        return np.full(len(self), -1, np.int64) if values is None else values

    @cached_property
    def place(self) -> Mapping[int, int]:
        """Map from each rank number to its index in `ranks`."""
        return {rank: place for place, rank in enumerate(self.ranks.tolist())}

    @cached_property
    def resources(self) -> frozenset[tuple[str, str]]:
        """Resources, as (kind, name), that the ranks use and that other jobs may use too."""
        return frozenset((kind, name) for kind, names in self.sharing.items() for name in names if name)

    @cached_property
    def roles(self) -> IndexArray:
        """int [n ranks]: number of each rank's role. Ranks of one role (stage, expert layout) do the same work and are
        peers.
        """
        return _number(self.coordinate("stage"))

    @cached_property
    def groups(self) -> Mapping[str, IndexArray]:
        """For each type of group: int [n ranks], the number of each rank's group. Unknown types are omitted.

        'node': ranks of a node; 'tensor': ranks that share a layer (same data rank and stage); 'data': replicas of the
        same weights (same stage and tensor rank); 'pipeline': one model (same data rank); 'rail': NICs on one rail.
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
    """Return int [n]: a number for each entry, from 0 in sorted order. Entries that are equal in all columns get the
    same number."""
    result = _ranked(columns[0])
    for column in columns[1:]:
        then = _ranked(column)
        result = _ranked(result * (then.max(initial=0) + 1) + then)
    return result


def _ranked(values: npt.NDArray[np.generic]) -> IndexArray:
    """Return int [n]: the position of each of the n values among the sorted distinct values.

    Small integers are counted instead of sorted, which takes a tenth of the time for the groups of 100,000 ranks.
    """
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
    """Steps of one job that were finished since the previous ``Telemetry``: k steps in order of completion, n ranks."""

    number: IntArray
    """int64 [k]: step numbers of the job. They may have gaps, and may decrease after a restart from a checkpoint."""
    end_ns: IntArray
    """int64 [k, n]: end of the step on each rank, as wall time in nanoseconds."""
    seconds: FloatArray
    """float64 [k, n]: time from the end of the rank's previous step to the end of this one; NaN if the rank's report of
    this step is missing."""
    wait_seconds: FloatArray
    """float64 [k, n]: part of `seconds` spent waiting in collectives; NaN if unknown."""
    tokens: FloatArray | None = None
    """float64 [k, n]: tokens processed by the rank; None if no rank reports them."""
    squares: FloatArray | None = None
    """float64 [k, n]: sum of squared sequence lengths; None if no rank reports it."""
    forward_seconds: FloatArray | None = None
    """float64 [k, n]: time of the forward pass; None if not measured (only in offline traces)."""
    backward_seconds: FloatArray | None = None
    """float64 [k, n]: time of the backward pass; None if not measured."""

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True, eq=False)
class JobTelemetry:
    """Telemetry of one attempt of a job with n ranks."""

    shape: Shape
    """Ranks of the attempt and their places."""
    steps: StepTable | None = None
    """New steps. None if no rank has ever reported a step; only counters are then available."""
    given_open_steps: IntArray | Callable[[], IntArray] | None = None
    """The array `open_steps`, or a function that returns it: most ticks need none of these arrays."""
    given_open_collectives: IntArray | Callable[[], IntArray] | None = None
    """The array `open_collectives`, or a function that returns it."""
    given_steps_finished: IntArray | Callable[[], IntArray] | None = None
    """The array `steps_finished`, or a function that returns it."""
    consumed: Callable[[IntArray], Consumed] | None = None
    """Returns what the ranks' processes had consumed at the given times [n] (each on its host's wall clock). None if no
    source counts consumption."""
    shared_machine: npt.NDArray[np.bool_] | None = None
    """bool [n]: whether other nodes of the cluster are on the rank's machine."""
    given_frames: Callable[[], tuple[tuple[str, int], ...]] | None = None
    """Returns `frames`; None if there are none."""
    process_states: Callable[[], IntArray] | None = None
    """Returns int64 [n], the newest ProcessState of each rank's processes; UNKNOWN_STATE if no agent reports it. None
    if no source reports states."""
    device_memory: Callable[[], FloatArray] | None = None
    """Returns float64 [n], the newest device memory of each rank in bytes, of the device on which it uses most; NaN if
    it is unknown. None if no source reports it."""
    blocked: Callable[[], Mapping[int, Blocked]] | None = None
    """Returns the newest report of each rank that makes no progress, by rank number. None if no source has reports."""

    @property
    def open_steps(self) -> IntArray | None:
        """int64 [n, 3]: number of the step in progress, its start, and when it was last reported; -1 for never."""
        return _array(self.given_open_steps)

    @property
    def open_collectives(self) -> IntArray | None:
        """int64 [n, 3]: number of the collective in progress, its start, and when it was last reported; -1 for
        never."""
        return _array(self.given_open_collectives)

    @property
    def steps_finished(self) -> IntArray | None:
        """int64 [n]: number of each rank's newest finished step; -1 for none."""
        return _array(self.given_steps_finished)

    @property
    def frames(self) -> tuple[tuple[str, int], ...]:
        """Newest frame of each node that this telemetry is computed from, for the evidence of a verdict."""
        return () if self.given_frames is None else self.given_frames()


def _array(given: IntArray | Callable[[], IntArray] | None) -> IntArray | None:
    return given() if callable(given) else given


# --- events -----------------------------------------------------------------------------------------------------------

XID = "xid"  # detail: code (decimal); gpu: its UUID
RECOVERY_ACTION = "recovery-action"  # detail: action, one of RECOVERY_ACTIONS; gpu: its UUID
LINK = "link"  # detail: state 'up' or 'down'; entity: the NIC ('mlx5_0') or NVLink ('GPU-.../3')
DEVICE_LOST = "device-lost"  # a GPU or NIC that the machine no longer has
PART_REPLACED = "part-replaced"  # detail: gpu: UUID of the new one, as an operator reports
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
"""Names of the recovery actions, indexed by the value of NVML's field 230 (nvml.h,
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event of one node, as the node's agent reported it."""

    node: str
    """Name of the node."""
    event: EventRecord
    """The event. Detectors ignore kinds that are not in EVENT_KINDS."""


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """All telemetry that is new since the previous ``Telemetry`` of the same stream."""

    now_ns: int
    """Wall time at which this telemetry was collected, in nanoseconds."""
    jobs: tuple[JobTelemetry, ...]
    """All known jobs, including jobs without new data. The order does not change while the set of jobs is the same."""
    counters: Counters
    """Counters with N columns: the ranks of `jobs` in order."""
    events: tuple[NodeEvent, ...] = ()
    """Events of nodes that were reported since the previous ``Telemetry``."""
    last_received_ns: Mapping[str, int] = field(default_factory=dict)
    """Time at which the last frame of each known agent was received, by name of the node."""
    _columns: list[slice] = field(default_factory=list, init=False, repr=False)
    """The result of `columns`, once it has been computed."""

    def columns(self) -> Sequence[slice]:
        """Return the range of columns that each job has in the counters, in the order of `jobs`."""
        if len(self._columns) != len(self.jobs):
            ends = list(accumulate(len(job.shape) for job in self.jobs))
            self._columns[:] = [slice(first, end) for first, end in zip((0, *ends), ends, strict=False)]
        return self._columns


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Groups of similar size, padded to the same size so that one array contains them."""

    index: IndexArray
    """int [groups, size]: index of each entry's column. N is padding that sorts below all values, N + 1 above all
    values."""
    real: npt.NDArray[np.bool_]
    """bool [groups, size]: whether an entry is a column; if not, it is padding."""
    middle: int
    """Position of the lower median of every group after sorting. The padding makes this position the same for all
    groups."""
    group: IndexArray
    """int [groups]: number of each group in the grouping."""


class Grouping:
    """Partition of N columns into groups of any size, arranged for arithmetic on all groups at once.

    Groups whose sizes differ by at most a factor of 1.25 share a bucket, so padding costs at most a quarter.

    of: int [N], group of each column. sizes: int [groups], number of columns of each group.
    order, starts: the columns by group, and the position in that order at which each group begins.
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
        """Whether the columns of each group are consecutive."""
        return bool((self.of[1:] >= self.of[:-1]).all())

    def spread(self, values: Float32Array, out: Float32Array) -> Float32Array:
        """Return an array [N] with the value of each column's group. values: [groups], one value per group. out: [N],
        an array that may be reused."""
        return np.repeat(values, self.sizes) if self._in_order else np.take(values, self.of, out=out, mode="clip")

    def members(self, group: int) -> IndexArray:
        """Return the columns of one group."""
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
