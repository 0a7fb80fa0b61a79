"""Table of causes: the wording of each, and what the operator checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Cause of a problem, as far as the measured values show it. The texts are metric labels and journal values."""

    SUSPENDED = "suspended"
    CPU_CONTENTION = "cpu-contention"
    COMPUTE = "compute"
    STORAGE = "storage"
    MEMORY_PRESSURE = "memory-pressure"
    THERMAL = "thermal"
    POWER = "power"
    GPU = "gpu"
    MEMORY = "gpu-memory"
    NVLINK = "nvlink"
    PCIE = "pcie"
    NIC = "nic"
    LINK = "link"
    CONGESTION = "congestion"
    HOST_CONTENTION = "host-contention"
    LOST = "lost"
    XID = "xid"
    NEVER_ARRIVED = "never-arrived"
    DATA_LOADING = "data-loading"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    PAUSES = "pauses"
    SEQUENCE_LENGTH = "sequence-length"
    STAGE_PARTITION = "stage-partition"
    STANDING_OFFSET = "standing-offset"
    WHOLE_JOB = "whole-job"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Texts about one cause."""

    words: str
    """Name of the cause inside a sentence, where it follows the accusation in parentheses."""
    page: str
    """Name of the cause on the page, after the word "Cause"."""
    meaning: str
    """Sentence that says what the detectors measured."""
    check: str
    """Sentence that says what the operator checks or changes."""


CAUSES: dict[Cause, CauseRow] = {
    Cause.SUSPENDED: CauseRow(
        "suspended",
        "suspended: not on a CPU, and not waiting for one",
        "The process neither runs nor waits for a processor: a signal, a tracer or a freezer stopped it. If "
        "`stopped_samples_share` in the evidence is 0, it may also sleep: on a disk (the kernel counts such waits only "
        "with `kernel.task_delayacct=1`), a service in the network, or a device without counters.",
        "A debugger, a cgroup freezer, SIGSTOP (`ps -o stat,wchan PID`); then what the process waits for "
        "(`cat /proc/PID/stack`).",
    ),
    Cause.CPU_CONTENTION: CauseRow(
        "CPU contention",
        "waiting for a CPU",
        "The process is runnable and waits for a processor.",
        "Other processes on the processors (`ps -eo pid,pcpu,args --sort=-pcpu`), CPU limits of the cgroup.",
    ),
    Cause.COMPUTE: CauseRow(
        "slow compute",
        "its own computation takes longer",
        "The work itself takes more processor time than that of the peers.",
        "CPU frequency and firmware settings of the node, compared with those of its neighbours.",
    ),
    Cause.STORAGE: CauseRow(
        "waiting for storage",
        "waiting for storage",
        "The process waits for block I/O.",
        "The mount and its server, the local disk.",
    ),
    Cause.MEMORY_PRESSURE: CauseRow(
        "memory pressure",
        "too little memory: it reads pages from the disk again and again",
        "The process waits for pages that the kernel dropped or swapped out (major page faults).",
        "The memory limit of its cgroup (`memory.max`, `memory.limit_in_bytes`) and its working set, other processes "
        "in the group, swap (`/proc/PID/status`).",
    ),
    Cause.THERMAL: CauseRow(
        "thermal throttling",
        "its GPU is too hot",
        "The GPU lowers its clock because of its temperature.",
        "Airflow, dust, inlet temperature.",
    ),
    Cause.POWER: CauseRow(
        "power throttling",
        "its GPU's power is capped",
        "The GPU lowers its clock because of a power limit or a power brake.",
        "Power cap, power brake, power supply.",
    ),
    Cause.GPU: CauseRow(
        "slow GPU",
        "its GPU computes more slowly",
        "The GPU computes more slowly than its peers, and no counter shows the reason.",
        "Locked clocks (`nvidia-smi -q -d PERFORMANCE,CLOCK`), other processes on the GPU.",
    ),
    Cause.MEMORY: CauseRow(
        "GPU memory errors",
        "its GPU has memory errors",
        "The GPU's memory reports errors.",
        "Plan a GPU reset, which remaps failed rows; after a failed remap replace the board.",
    ),
    Cause.NVLINK: CauseRow(
        "NVLink fault",
        "faulty NVLink",
        "An NVLink has errors or is down.",
        "Reset the GPU after its jobs have ended; if the errors return, replace the board or the baseboard.",
    ),
    Cause.PCIE: CauseRow(
        "PCIe fault",
        "faulty PCIe link",
        "A PCIe link is below its maximum generation or width, or has replays.",
        "Reseat the card; compare `lspci -vv` with a healthy node.",
    ),
    Cause.NIC: CauseRow(
        "NIC fault",
        "faulty NIC",
        "A port has errors, or runs below its rate.",
        "Cable and transceiver; compare the error counters at both ends.",
    ),
    Cause.LINK: CauseRow(
        "network link fault",
        "a network link fails or flaps",
        "A network link failed or flaps.",
        "Cable and transceiver at both ends, the switch's log.",
    ),
    Cause.CONGESTION: CauseRow(
        "network congestion",
        "the network is congested",
        "A network resource that several jobs share is full.",
        "Placement of the two jobs, adaptive routing, `controller.topology_file`.",
    ),
    Cause.HOST_CONTENTION: CauseRow(
        "another job on the same host",
        "another job on the same host",
        "Another job on the same host uses the processors, the disk or the NIC.",
        "Give one of the jobs its own nodes.",
    ),
    Cause.LOST: CauseRow(
        "not reporting",
        "it stopped reporting",
        "A device or a node stopped reporting.",
        "The node itself, its kernel log, its agent.",
    ),
    Cause.XID: CauseRow(
        "XID error",
        "XID error",
        "The GPU's driver reported an XID that is a device fault.",
        "The action for the code in the runbook GangwatchGpuXid.",
    ),
    Cause.NEVER_ARRIVED: CauseRow(
        "did not enter the collective that blocks its peers",
        "it never reached the collective in which its peers wait",
        "The rank did not enter a step or collective that blocks its peers.",
        "The stack of the rank's process (`py-spy dump --pid PID`), before the job is restarted.",
    ),
    Cause.DATA_LOADING: CauseRow(
        "data loading",
        "data loading",
        "The job waits for its input data.",
        "Workers and prefetching of the data loader, the storage that it reads.",
    ),
    Cause.CHECKPOINT: CauseRow(
        "periodic checkpoints",
        "periodic checkpoints",
        "The job is slow at regular intervals, as it is when it saves checkpoints.",
        "Interval and duration of the checkpoints.",
    ),
    Cause.EVALUATION: CauseRow(
        "periodic evaluation",
        "periodic evaluation",
        "The job is slow for several steps at regular intervals, as it is when it evaluates.",
        "Interval and duration of the evaluations.",
    ),
    Cause.PAUSES: CauseRow(
        "short pauses, on a different rank each time",
        "short pauses, on a different rank each time",
        "Ranks pause for a short time, a different one each time, usually for garbage collection.",
        "Run garbage collection on all ranks in the same step (`gc.disable()`, then `gc.collect()` every N steps).",
    ),
    Cause.SEQUENCE_LENGTH: CauseRow(
        "unequal sequence lengths",
        "unequal sequence lengths",
        "The ranks process sequences of unequal length.",
        "Balance the batches by number of tokens.",
    ),
    Cause.STAGE_PARTITION: CauseRow(
        "unequal pipeline stages",
        "unequal pipeline stages",
        "A pipeline stage has more work than the others.",
        "Distribute the layers over the stages by their time.",
    ),
    Cause.STANDING_OFFSET: CauseRow(
        "constant extra work",
        "constant extra work",
        "Some ranks are always slightly slower than their peers, because of their share of the work.",
        "Work that only these ranks do, for example logging.",
    ),
    Cause.WHOLE_JOB: CauseRow(
        "all ranks equally slow",
        "all ranks equally slow",
        "All ranks became slower by the same factor.",
        "What changed in the job: batch size, sequence length, code.",
    ),
    Cause.UNKNOWN: CauseRow(
        "unknown cause",
        "unknown",
        "No counter explains the slowdown.",
        "The evidence: `gangwatch verdict` lists it.",
    ),
}
"""Texts about each cause."""
