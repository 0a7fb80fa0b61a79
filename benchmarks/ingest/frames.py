"""Simulated frames of agents on nodes of eight H100 and eight NICs: built once, then updated in place each second.

The layouts have all series of a real agent, from which the agent's own code selects those that the controller
requests. Jobs of many sizes run on the nodes, and their ranks report steps.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.frame import (
    MOST_SAMPLES,
    Column,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    Tier,
    make_layout,
)
from agent.schema.wire import encode_frame, encode_layout, encode_records, with_length
from exporter.frame_formats import selection

GPUS = 8
LINKS = 18
THROTTLES = (
    *("low_utilization", "power_cap", "sw_thermal", "hw_thermal", "hw_power_brake", "sync_boost", "thermal_policy"),
    *("board_limit", "reliability"),
)
LINK_ERRORS = ("replay", "recovery", "crc", "crc_flit", "crc_data")
PCIE_ERRORS = (
    *("correctable", "nak_received", "receiver", "bad_tlp", "nak_sent", "bad_dllp", "non_fatal", "fatal"),
    *("unsupported_request", "lcrc", "lane", "l0_to_recovery"),
)

BIG = 1 << 40
"""A first sequence number that msgpack writes in nine bytes, so that later ones have the same length."""

NODES_A_JOB = (1, 375)
"""Jobs of 8 to 3,000 ranks."""

STEP_SECONDS = (2.0, 20.0)

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Job:
    """The job that runs on a simulated node. Times are on the machine's monotonic clock, in nanoseconds."""

    name: str
    first_rank: int
    """The node's first rank in the job."""
    step_ns: int
    """Length of an undisturbed step. Its first four fifths are computation, the rest is a collective."""
    begun_ns: int = 0
    disturbed_ns: int = 1 << 62
    """Time from which the ranks in `slow` compute slower, with lower clocks; the job's next step is the first disturbed
    one."""
    slower: float = 1.0
    """Factor by which the ranks in `slow` then compute slower."""
    slow: frozenset[int] = frozenset()

    def step_at(self, now_ns: int) -> tuple[int, int, int]:
        """Return the number, the start and the length of the step at this time."""
        undisturbed = -(-(self.disturbed_ns - self.begun_ns) // self.step_ns)  # steps until then, rounded up
        step = (now_ns - self.begun_ns) // self.step_ns
        if step < undisturbed or not self.slow:
            return step, self.begun_ns + step * self.step_ns, self.step_ns
        turned_ns = self.begun_ns + undisturbed * self.step_ns
        length_ns = int(self.step_ns * (0.8 * self.slower + 0.2))
        more = (now_ns - turned_ns) // length_ns
        return undisturbed + more, turned_ns + more * length_ns, length_ns

    def computes_ns(self, rank: int, length_ns: int) -> int:
        """Return how long a rank computes in a step of this length, in ns. For the rest of the step it waits for other
        ranks."""
        return length_ns - self.step_ns // 5 if rank in self.slow else self.step_ns * 4 // 5


def jobs(nodes: int, seed: int, step_seconds: tuple[float, float] = STEP_SECONDS) -> Iterator[Job]:
    """Yield the job of each node. step_seconds: shortest and longest step."""
    random = np.random.default_rng(seed)
    node = 0
    while node < nodes:
        most = min(int(np.exp(random.uniform(*np.log(NODES_A_JOB)))), nodes - node)
        step_ns = int(random.uniform(*step_seconds) * 1e9)
        for offset in range(most):
            yield Job(f"job-{node}", offset * GPUS, step_ns)
        node += most


def whole_layout(node: str, number: int, job: Job) -> Layout:
    """Return the layout of all series of the node, from which the controller requests a part."""
    tiers = [Tier("host", 1.0), Tier("process", 0.5), Tier("pcie", 10.0), Tier("topology", 60.0)]
    tiers += [Tier("attribution", 5.0), Tier("nvml", 10.0)]
    gauges: list[Column] = []
    counters = [
        Column("gangwatch_host_pressure_waiting_seconds_total", (("resource", resource),), 0)
        for resource in ("cpu", "io", "memory")
    ]
    for gpu in range(GPUS):
        first = len(tiers)
        tiers += [Tier(f"{name}/{_pci(gpu)}", seconds) for name, seconds in (("gpu", 1.0), ("gpu-slow", 10.0))]
        tiers += [
            Tier(f"{name}/mlx5_{gpu}", seconds)
            for name, seconds in (("rdma", 1.0), ("rdma-slow", 10.0), ("rdma-ethtool", 10.0))
        ]
        gauges += _gauges(number, gpu, job, first)
        counters += _gpu_counters(number, gpu, first)
        counters += _nic_counters(gpu, first + 2)
        member = (("attempt", "1"), ("gang", job.name), ("rank", str(job.first_rank + gpu)))
        counters += [
            Column(f"gangwatch_rank_{name}_total", member, 1)
            for name in ("cpu_seconds", "runqueue_wait_seconds", "block_io_seconds", "stopped_samples", "samples")
        ]
    return make_layout(node, tiers, gauges, counters)


def _pci(gpu: int) -> str:
    return f"0000:{0x10 + gpu:02x}:00.0"


def _gauges(number: int, gpu: int, job: Job, first_tier: int) -> list[Column]:
    """Return the gauges of a GPU, its NIC and its rank. first_tier: the first of the five tiers of this GPU."""
    uuid, pci, nic = _uuid(number, gpu), _pci(gpu), f"mlx5_{gpu}"
    of_gpu, rank = (("gpu", uuid),), str(job.first_rank + gpu)
    owner = {"attempt": "1", "gang": job.name, "gpu": uuid, "rank": rank}
    owner |= {"container": "", "mig": "", "namespace": "", "pod": "", "slurm_job": ""}
    info = {"driver": "580.82.07", "gpu": uuid, "index": str(gpu), "mig_mode": "", "minor": str(gpu)}
    info |= {"model": "NVIDIA H100 80GB HBM3", "pci_address": pci, "serial": "", "vbios": ""}
    place = {"attempt": "1", "data": str(job.first_rank // GPUS), "expert": "", "gang": job.name, "stage": "0"}
    place |= {"rank": rank, "tensor": str(gpu)}
    rail = {"distance": "1", "nic": nic, "nic_pci_address": "", "numa_node": "", "pci_address": pci}
    rail |= {"switch": f"0000:{0x80 + gpu // 2:02x}:00.0"}
    return [
        *(
            Column(f"gangwatch_gpu_{name}", of_gpu, first_tier)
            for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "sm_clock_hertz",
                         "power_watts", "temperature_celsius")
        ),
        Column("gangwatch_gpu_owner_info", tuple(sorted(owner.items())), 4),
        Column("gangwatch_rank_place_info", tuple(sorted(place.items())), 1),
        Column("gangwatch_gpu_info", tuple(sorted(info.items())), 5),
        Column("gangwatch_gpu_up", of_gpu, first_tier),
        Column("gangwatch_rdma_port_state", (("device", nic), ("port", "1")), first_tier + 2),
        Column("gangwatch_topology_rail_info", tuple(sorted({**rail, "rail": str(gpu)}.items())), 3),
        *(
            Column(f"gangwatch_pcie_link_{name}", (("pci_address", address),), 2)
            for name in ("generation", "generation_maximum", "lanes", "lanes_maximum")
            for address in (pci, f"0000:{0x90 + gpu:02x}:00.0")
        ),
    ]  # fmt: skip


def _gpu_counters(number: int, gpu: int, fast: int) -> list[Column]:
    """Return the counters of a GPU. fast: index of the GPU's fast tier; the slow tier is the next one."""
    of_gpu, slow = (("gpu", _uuid(number, gpu)),), fast + 1
    links = [str(link) for link in range(LINKS)]
    return [
        *(Column("gangwatch_gpu_throttle_seconds_total", (*of_gpu, ("reason", one)), fast) for one in THROTTLES),
        *(
            Column("gangwatch_gpu_ecc_errors_total", (*of_gpu, ("severity", one)), slow)
            for one in ("corrected", "uncorrected")
        ),
        *(Column("gangwatch_nvlink_transmit_bytes_total", (*of_gpu, ("link", link)), fast) for link in links),
        *(
            Column("gangwatch_nvlink_errors_total", (*of_gpu, ("kind", one), ("link", link)), slow)
            for link in links
            for one in LINK_ERRORS
        ),
        Column("gangwatch_gpu_pcie_replays_total", of_gpu, slow),
        *(Column("gangwatch_gpu_pcie_errors_total", (*of_gpu, ("kind", one)), slow) for one in PCIE_ERRORS),
    ]


def _nic_counters(gpu: int, fast: int) -> list[Column]:
    """Return the counters of a GPU's NIC. fast: index of its fast tier; slow and ethtool tiers follow."""
    device, port, slow, ethtool = ("device", f"mlx5_{gpu}"), ("port", "1"), fast + 1, fast + 2
    tiers = (
        (("port_transmit_bytes", "port_receive_bytes", "port_symbol_errors", "port_link_downed"), fast, 64),
        (("cnp_handled", "ecn_marked_packets", "out_of_sequence", "sequence_naks_received", "ack_timeouts"), slow, 32),
        (("physical_symbol_errors", "physical_uncorrected_symbols"), ethtool, 64),
    )
    return [
        *(
            Column(f"gangwatch_rdma_{name}_total", (device, port), tier, bits)
            for names, tier, bits in tiers
            for name in names
        ),
        *(
            Column(
                "gangwatch_rdma_pause_frames_total", (device, ("direction", way), port, ("priority", number)), ethtool
            )
            for way in ("receive", "transmit")
            for number in ("0", "3")
        ),
    ]


class Agents:
    """Simulated agents of many nodes: the layout of each, and its encoded frame, which is updated in place.

    as_tables: whether records are sent as tables, as the controller requests.
    """

    def __init__(self, first: int, placed: list[Job], wanted: tuple[str, ...], as_tables: bool = True) -> None:
        self.as_tables = as_tables
        self.names = [f"node-{first + index:05d}" for index in range(len(placed))]
        self._jobs = placed
        self._first = first
        self._example = selection(whole_layout("", 0, Job(_JOB, 0, 1)), wanted).layout
        tiers, gauges, counters = self._example.sizes
        self._intervals_ns = np.array([int(tier.interval_seconds * 1e9) for tier in self._example.tiers], np.int64)
        heads = []
        for index, name in enumerate(self.names):
            frame = Frame(
                name, f"boot-{first + index:031d}", f"{first + index:016d}", BIG, self.layout(index).layout_id,
                BIG + 1, BIG + 2, np.ones(tiers, np.int64), np.zeros(gauges), np.full(counters, 1 << 20, np.uint64),
                np.ones(counters, np.bool_), BIG + 3, (),
            )  # fmt: skip
            heads.append(encode_frame(frame)[:-1])  # without the records, which come last
        self._length = len(heads[0])
        numbers = {name: heads[0].index(struct.pack(">BQ", 0xCF, BIG + place)) + 1 for place, name in enumerate(_HEAD)}
        arrays = {}
        at = 0
        for name in ("tier_ns", "gauges", "counters"):
            at = heads[0].index(name.encode(), at) + len(name)
            arrays[name] = at + _BIN[heads[0][at]]
        body = np.dtype(
            {
                "names": [*numbers, *arrays],
                "formats": [*(">u8" for _ in numbers), ("<i8", tiers), ("<f8", gauges), ("<u8", counters)],
                "offsets": [*numbers.values(), *arrays.values()],
                "itemsize": self._length,
            }
        )
        self._bytes = bytearray(b"".join(heads))
        self._frames: npt.NDArray[np.void] = np.frombuffer(self._bytes, body)
        random = np.random.default_rng(first)
        steady = [_STEADY.get(column.metric, 1.0 if column.metric.endswith("_info") else np.nan)
                  for column in self._example.gauges]  # fmt: skip
        self._usual = np.where(np.isnan(steady), random.uniform(0.5, 1.5, gauges), steady)
        self._sway = np.where(np.isnan(steady), 0.01, 0.0)
        self._advance = random.integers(0, 1 << 16, counters).astype(np.uint64)
        still = [column.metric in _STILL for column in self._example.counters]
        self._advance[still] = 0
        clocks = [at for at, column in enumerate(self._example.gauges) if column.metric == _CLOCK]
        self._clocks = {int(dict(self._example.gauges[at].labels)["gpu"][-12:]): at for at in clocks}
        self._layout_id_at = heads[0].index(self.layout(0).layout_id.encode())
        self._reported: list[tuple[int, int, bool]] = [(0, 0, False)] * len(placed)
        self._records = [_encode(()) for _ in placed]
        self._counts = np.zeros(len(placed), np.uint64)
        self._held = [0] * len(placed)
        self._samples: list[list[bytes]] = [[] for _ in placed]
        self._left_out = [0] * len(placed)
        self._valid = np.packbits(np.ones(counters, np.bool_), bitorder="little").tobytes()
        self.with_samples = False
        """Whether records that a later frame replaces are left out, as for readers of earlier samples."""

    def layout(self, index: int) -> Layout:
        """Return the layout of the series that the controller requests from this node's agent."""
        job, example = self._jobs[index], self._example
        gpu, uuid = _uuid(0, 0)[:12], _uuid(self._first + index, 0)[:12]

        def own(column: Column) -> Column:
            labels = tuple(
                (name, value.replace(gpu, uuid) if name == "gpu" else job.name if name == "gang" else
                 str(job.first_rank + int(value)) if name == "rank" else
                 str(job.first_rank // GPUS) if name == "data" else value)
                for name, value in column.labels
            )  # fmt: skip
            return column if labels == column.labels else Column(column.metric, labels, column.tier, column.width)

        gauges, counters = map(own, example.gauges), map(own, example.counters)
        return make_layout(self.names[index], example.tiers, gauges, counters)

    def layout_message(self, index: int) -> bytes:
        """Return the encoded layout of a node, without its length prefix."""
        return with_length(encode_layout(self.layout(index)))

    def advance(
        self, nodes: slice, wall_ns: int, monotonic_ns: int, held: Collection[int] = (), kept: Collection[int] = ()
    ) -> None:
        """Update the frames of these nodes for this time.

        held: nodes whose frame is not sent, because the reader is late. Their next frame has its records too, as those
        of real agents have (exporter/server.py). kept: of these, the nodes whose next message has its values too.
        """
        frames = self._frames[nodes]
        frames["seq"] += 1
        frames["wall_ns"], frames["monotonic_ns"] = wall_ns, monotonic_ns
        frames["tier_ns"] = monotonic_ns // self._intervals_ns * self._intervals_ns
        frames["gauges"] = self._usual * (1.0 + self._sway * (monotonic_ns // 1_000_000_000 % 7))
        frames["counters"] += self._advance
        for index in range(*nodes.indices(len(self.names))):
            self._lower_clocks(index, monotonic_ns)
        for index in held:
            self._held[index] += 1
        for index in kept:
            self._keep(index)
        sent = [index for index in range(*nodes.indices(len(self.names))) if index not in held]
        self._frames["record_seq"][sent] += self._counts[sent]
        for index in sent:
            self._write_records(index, monotonic_ns)

    def _lower_clocks(self, index: int, now_ns: int) -> None:
        """Lower the clocks of the node's disturbed GPUs: their ranks compute slower for that reason."""
        job = self._jobs[index]
        if not job.slow or now_ns < job.disturbed_ns:
            return
        for gpu, at in self._clocks.items():
            if job.first_rank + gpu in job.slow:
                self._frames["gauges"][index, at] /= job.slower

    def seq(self, index: int) -> int:
        """Return the sequence number of a node's newest frame."""
        return int(self._frames["seq"][index])

    def frame_message(self, index: int) -> bytes:
        """Return the encoded newest frame of a node, without its length prefix."""
        start = index * self._length
        frame = bytes(self._bytes[start : start + self._length]) + self._records[index]
        samples, left_out = self._samples[index], self._left_out[index]
        if not samples and not left_out:
            return with_length(frame)
        self._samples[index], self._left_out[index] = [], 0
        # A map of two more fields, and of kind "batch" (agent/schema/wire.py).
        head = b"\xde" + (_FRAME_FIELDS + 2).to_bytes(2, "big") + frame[1:].replace(b"\xa5frame", b"\xa5batch", 1)
        more = _encode("left_out") + _encode(left_out) + _encode("earlier") + b"\xdc" + len(samples).to_bytes(2, "big")
        return with_length(head + more + b"".join(samples))

    def _keep(self, index: int) -> None:
        """Keep the values of a node's frame as an earlier sample of its next message."""
        frame = self._frames[index]
        numbers = (int(frame[name]) for name in ("seq", "wall_ns", "monotonic_ns"))
        values = (frame[name].tobytes() for name in ("tier_ns", "gauges", "counters"))
        samples = self._samples[index]
        samples.append(_encode((*numbers, *values, self._valid)))
        if len(samples) > MOST_SAMPLES:
            del samples[::2]

    def records(self, index: int) -> bytes:
        """Return the encoded records of a node's newest frame. The same object as before: they are unchanged."""
        return self._records[index]

    def change_job(self, index: int, job: Job) -> None:
        """Start another job on a node. Its layout changes, and its ranks begin at step 0."""
        self._jobs[index] = job
        layout_id = self.layout(index).layout_id.encode()
        at = index * self._length + self._layout_id_at
        self._bytes[at : at + len(layout_id)] = layout_id
        self._reported[index] = (0, 0, False)
        self._samples[index].clear()

    def _write_records(self, index: int, now_ns: int) -> None:
        """Write into the node's frame the steps that its ranks ended since the last frame, and their open steps."""
        job = self._jobs[index]
        step, begun_ns, length_ns = job.step_at(now_ns)
        computes_ns = [job.computes_ns(job.first_rank + gpu, length_ns) for gpu in range(GPUS)]
        waiting = sum(now_ns - begun_ns > one for one in computes_ns)
        before, self._reported[index] = self._reported[index], (step, waiting, False)
        held, self._held[index] = self._held[index], 0
        if before == (step, waiting, False) and not held:
            return  # the records are the same as in the last frame
        found: list[Record] = []
        ended: list[tuple[int, int, int]] = []  # steps that ended since the last frame: number, start, length
        at_ns = begun_ns
        while before[0] and len(ended) < step - before[0]:
            number, at_ns, last_length_ns = job.step_at(at_ns - 1)
            ended.insert(0, (number, at_ns, last_length_ns))
        if ended or held:
            self._reported[index] = (step, waiting, True)  # reported once: the next frame has other records
        # Each frame that was not sent had the open steps, too.
        for part in range(held if self.with_samples else 0, held + 1):
            for gpu in range(GPUS):
                member = Member(job.name, 1, job.first_rank + gpu)
                for number, last_ns, last_length_ns in ended if part == held else ():
                    wait_ns = last_length_ns - job.computes_ns(member.rank, last_length_ns)
                    found.append(StepRecord(member, number, last_ns, last_length_ns, wait_ns, 8192, 40))
                found.append(OpenRecord(member, "step", step, begun_ns))
                if now_ns - begun_ns > computes_ns[gpu]:
                    found.append(OpenRecord(member, "collective", step * 40, begun_ns + computes_ns[gpu]))
        if self.with_samples:
            self._left_out[index] = held * (GPUS + waiting)
        self._records[index] = encode_records(tuple(found), self.as_tables)
        self._counts[index] = len(found) + self._left_out[index]


_CLOCK = "gangwatch_gpu_sm_clock_hertz"
_STEADY = {
    "gangwatch_gpu_up": 1.0, "gangwatch_rdma_port_state": 4.0,
    "gangwatch_pcie_link_generation": 5.0, "gangwatch_pcie_link_generation_maximum": 5.0,
    "gangwatch_pcie_link_lanes": 16.0, "gangwatch_pcie_link_lanes_maximum": 16.0,
}  # fmt: skip
"""Gauges that are constant, and equal on all nodes."""

_STILL = frozenset({"gangwatch_rdma_port_link_downed_total", "gangwatch_rank_stopped_samples_total"})
"""Counters that are constant while nothing fails: no port goes down, and no rank is stopped."""

_JOB = "JOB"
_FRAME_FIELDS = 15
"""Number of fields of a frame's message."""

_HEAD = ("seq", "wall_ns", "monotonic_ns", "record_seq")
_BIN = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""Length of msgpack's header of a byte string: bin8, bin16, bin32."""


def _uuid(number: int, gpu: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{gpu:012d}"
