"""Fuzz targets: files of a node's kernel and schedulers: /proc, /sys, kernel log, job files, rank files.

Users control some of the content, such as names of processes, mounts and files, and environments.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent import rank_attribution
from agent.schema.errors import SourceError
from agent.sources.counter_files import parse_number
from agent.sources.kernel import kernel_log, kernel_messages
from agent.sources.kubelet import pod_logs
from agent.sources.proc import cgroup, mountstats, proc, slurm_node
from agent.sources.rdma import infiniband
from agent.sources.sysfs import pci
from benchmarks.fuzz import mutate
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target

_PROC = "agent.sources.proc.proc"


class _File(NamedTuple):
    """Fuzz target of a parser for one kind of file.

    begins: prefix that the parser's first check requires; b"" if none.
    """

    parse: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    begins: bytes = b""


STAT = b"1234 (pt main (x) y) S 1 1234 1234 0 -1 4194560 1 0 0 0 5 3 0 0 20 0 8 0 987654 1 2 3 " + b"0 " * 30
CPU = b"cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\nctxt 9\n"
SWITCHES = b"cpu 1\nctxt 99\nbtime 1\nprocs_running 2\nprocs_blocked 0\n"
VMSTAT = b"nr_free 1\npgmajfault 7\noom_kill 2\n"
PRESSURE = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=5\n"
DISKS = b" 259 0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13\n   8 1 sda1 4 5 6 7\n 8 0 s\xff 1 2 3 4 5 6 7 8 9 10 11\n"
IO = b"rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4\ncancelled_write_bytes: 0\n"
FILES: tuple[_File, ...] = (
    _File(proc.parse_cpu_count, (CPU,)),
    _File(proc.parse_scheduler, (SWITCHES,), b"cpu"),
    _File(proc.parse_vmstat, (VMSTAT, b"nr_free 1\npgmajfault 7\n"), b"nr"),
    _File(proc.parse_loadavg, (b"0.20 0.18 0.12 1/80 11206\n",)),
    _File(proc.parse_pressure, (PRESSURE, b"some total=1\n"), b"some"),
    _File(proc.parse_in_flight, (DISKS,)),
    _File(proc.parse_process_stat, (STAT,), b"1"),
    _File(proc.parse_statm, (b"100 50 20 1 0 30 0\n",)),
    _File(proc.parse_schedstat, (b"5000 77 12\n",)),
    _File(proc.parse_process_io, (IO,), b"rchar"),
)


def _make_proc(chance: random.Random) -> bytes:
    which = chance.randrange(len(FILES))
    return bytes([which]) + mutate.one_of(chance, FILES[which].samples, mutate.lines)


def _parse_proc(data: bytes) -> str:
    file = FILES[data[0] % len(FILES)]
    try:
        file.parse(data[1:])
    except SourceError:
        return REFUSED if data[1:].startswith(file.begins) else REFUSED_FIRST
    return ACCEPTED


# --- control groups, mounts ------------------------------------------------------------------------------------------


UID = "0123abcd-0123-0123-0123-0123456789ab"
GROUPS = (
    "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n",
    "4:devices:/slurm_n1/uid_1000/job_7/step_batch/task_0\n2:cpu:/slurm/uid_1000/job_7\n",
    f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'ab' * 32}.scope\n",
    f"0::/kubepods/besteffort/pod{UID}/{'cd' * 32}\n",
    f"0::/kubepods/pod{UID}/{'cd' * 32}/system.slice/slurmstepd.scope/job_9/step_0/user/task_3\n",
    f"0::/user.slice/user-1000.slice/user@1000.service/x\u2028y:z:/slurm/uid_0/job_7/step_0/pod{UID}\n",
    "0::/user.slice/user-1000.slice/session-2.scope\n",
    "0::/\n",
)


def _make_cgroup(chance: random.Random) -> bytes:
    made = chance.choice(GROUPS)
    if chance.random() < 0.3:
        made += chance.choice(GROUPS)
    for _ in range(chance.randrange(3)):
        made = (
            mutate.text(chance, made)
            if chance.random() < 0.5
            else made.replace("/", chance.choice(("//", "/x/", ":")), 1)
        )
    return made.encode("utf-8", "replace")


def _parse_cgroup(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    found = cgroup.parse_cgroup(text)
    for line in text.split("\n"):
        # A line of a delegated group attests nothing, whatever follows on that line.
        if cgroup._DELEGATED.search(line.split(":", 2)[-1].split("/slurm")[0].split("pod")[0]):
            assert cgroup.parse_cgroup(line) is None, line
    cgroup.user_of_cgroup(text)
    if found is None:
        return REFUSED if "/" in text else REFUSED_FIRST
    rank_attribution.identity_of_cgroup(text)
    return ACCEPTED


MOUNTS = (
    b"device rootfs mounted on / with fstype rootfs\n"
    b"device nfs:/a\\040b mounted on /mnt/x with fstype nfs4 statvers=1.1\n"
    b"\topts:\trw\n\tage:\t7\n\tbytes:\t1 2 3 4 5 6 7 8 \n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
    b"\tper-op statistics\n\t        READ: 5 5 0 900 90000 3 20 25 0\n\t       WRITE: 1 1 0 9 9 3 20 25\n\n",
    b"device h:/x mounted on /y with fstype nfs statvers=1.0\n\tbytes: 1 2 3 4 5 6 7 8\n",
)


def _make_mounts(chance: random.Random) -> bytes:
    return mutate.one_of(chance, MOUNTS, mutate.lines)


def _parse_mounts(data: bytes) -> str:
    try:
        found = mountstats.parse_mountstats(data)
    except SourceError:
        return REFUSED
    return ACCEPTED if found else REFUSED_FIRST


# --- devices ---------------------------------------------------------------------------------------------------------


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


DEVICES: tuple[_File, ...] = (
    _File(_text(infiniband.parse_state), (b"4: ACTIVE", b"5: LinkUp", b"1: DOWN"), b"4"),
    _File(_text(infiniband.parse_rate), (b"400 Gb/sec (4X NDR)", b"2.5 Gb/sec", b"100 Gb/sec (1X)\n"), b"400"),
    _File(_text(pci.parse_generation), (b"32.0 GT/s PCIe", b"8.0 GT/s", b"Unknown", b"7.0 GT/s"), b"32"),
    _File(_text(pci.parse_width), (b"16", b"63", b"255", b"0"), b"1"),
    _File(pci.parse_aer, (b"RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n",), b"Rx"),
    _File(parse_number, (b"17\n", b"18446744073709551615\n", b"N/A (no PMA)\n"), b"1"),
)  # fmt: skip


def _make_device(chance: random.Random) -> bytes:
    which = chance.randrange(len(DEVICES))
    damage = mutate.lines if chance.random() < 0.6 else mutate.octets
    return bytes([which]) + mutate.one_of(chance, DEVICES[which].samples, damage)


def _parse_device(data: bytes) -> str:
    file = DEVICES[data[0] % len(DEVICES)]
    try:
        file.parse(data[1:])
    except (SourceError, ValueError):  # these parsers document ValueError
        return REFUSED if data[1:].startswith(file.begins) else REFUSED_FIRST
    return ACCEPTED


# --- the kernel log --------------------------------------------------------------------------------------------------


RECORDS = (
    b"4,1234,567890,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1122, name=python3, GPU has fallen off the bus.\n"
    b" SUBSYSTEM=pci\n",
    b"6,1235,567891,-;mlx5_core 0000:18:00.0 rail0: Link down\n",
    b"3,7,1,-,caller=T1;INFO: task python3:4711 blocked for more than 120 seconds.\n",
    b"3,8,1,-;Out of memory: Killed process 4711 (py:1 (x)) total-vm:1kB, anon-rss:1kB\n",
    b"2,9,2,c;nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress\n",
    b"4,10,3,-;EDAC MC0: 1 CE memory read error on CPU_SrcID#0\n14,11,4,-;from a process: NVRM: Xid\n",
    b"4,12,5,-;mce: [Hardware Error]: Machine check events logged\n",
    b"4,13,5,-;nfs: server 10.0.0.1 not responding, still trying\n",
)


def _make_log(chance: random.Random) -> bytes:
    made = b"".join(chance.choice(RECORDS) for _ in range(chance.randrange(1, 4)))
    if chance.random() < 0.04:
        made = made.replace(b"4,", b"9" * 5000 + b",", 1) if chance.random() < 0.5 else b"x" * 40_000 + made
    return mutate.lines(chance, made, chance.randrange(3))


def _parse_log(data: bytes) -> str:
    log = kernel_log.KernelLog("/dev/null")
    records: list[kernel_log.LogRecord] = []
    try:
        for at in range(0, len(data), 100):
            log._split(data[at : at + 100], records)
    finally:
        log.close()
    for record in records:
        event = kernel_messages.parse_message(record.text)
        assert event is None or event.kind in kernel_messages.KINDS
    return REFUSED if log.malformed and records else ACCEPTED if records else REFUSED_FIRST


# --- Slurm's and our own files ---------------------------------------------------------------------------------------


ENVIRONMENT = (
    b"RANK=3\0WORLD_SIZE=8\0SLURM_JOB_ID=7\0GANGWATCH_ATTEMPT=1\0PATH=/bin\0",
    b"SLURM_PROCID=0\0RANK=x\0RANK=2\0",
)


def _make_environment(chance: random.Random) -> bytes:
    made = mutate.one_of(chance, ENVIRONMENT)
    return made.replace(b"=3", chance.choice((b"=-3", b"=" + b"9" * 5000, b"=\xd9\xa3", b"=", b"=03")), 1)


def _parse_environment(data: bytes) -> str:
    found = slurm_node.parse_environment(data)
    assert all(value.isdecimal() and value.isascii() and len(value) < 10 for value in found.values())
    return ACCEPTED if found else REFUSED_FIRST


DEVICE_NAMES = ("0", "GPU-1", "MIG-1", "0.1", "x y", "..", "\u2028", "a" * 130, "\udcff")


def _make_job_file(chance: random.Random) -> bytes:
    """Make a job file: the first line is the file's name, the rest is its content."""
    made = mutate.lines(
        chance, chance.choice((b"7\n8 1000\n", b"7", b"", b"\n\n9\n", b"1\n" * 100)), chance.randrange(3)
    )
    if chance.random() < 0.2:
        made = mutate.octets(chance, made)
    name = chance.choice(DEVICE_NAMES[:4]) if chance.random() < 0.7 else chance.choice(DEVICE_NAMES)
    return os.fsencode(name) + b"\n" + made


def _folder(kind: str) -> Path:
    """Return an empty folder in memory. Each process has one folder per kind."""
    folder = Path(f"/dev/shm/gangwatch-fuzz-{os.getpid()}-{kind}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _parse_job_file(data: bytes) -> str:
    name, _, content = data.partition(b"\n")
    folder = _folder("jobs")
    try:
        if name in (b"", b".", b"..") or len(name) > 200:
            return REFUSED_FIRST
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(content)
        found = slurm_node.read_job_files(str(folder))
    finally:
        shutil.rmtree(folder)
    assert all(job and job.isprintable() for _, job in found)
    return ACCEPTED if found else REFUSED


RANK_FILE = {
    "gang": "j-1",
    "attempt": 1,
    "rank": 0,
    "pid": 77,
    "start_time": 5,
    "slot": "0",
    "shim_pid": 70,
    "shim_start_time": 4,
}


def _make_rank_file(chance: random.Random) -> bytes:
    made = json.dumps(mutate.tree(chance, RANK_FILE, chance.randrange(3)), ensure_ascii=False).encode(
        "utf-8", "replace"
    )
    if chance.random() < 0.05:
        made = b'{"x": ' + b"[" * 50_000
    return mutate.octets(chance, made) if chance.random() < 0.1 else made


def _parse_rank_file(data: bytes) -> str:
    folder = _folder("ranks")
    try:
        (folder / "j-1.1.0.json").write_bytes(data)
        (folder / ".j-1.1.1.new").write_bytes(data)
        assert not rank_attribution._list(str(folder / "absent")).ranks
        index = rank_attribution._list(str(folder))
    finally:
        shutil.rmtree(folder)
    return ACCEPTED if index.ranks else REFUSED if data.startswith(b'{"') and data.endswith(b"}") else REFUSED_FIRST


POD_FOLDERS = (
    f"default_train-0_{UID}",
    "kube-system_etcd_0123456789abcdef0123456789abcdef",
    "x",
    "a_b_c",
    f"A_b_{UID}",
    f"a_b_{UID}\n",
)


def _make_pod_folders(chance: random.Random) -> bytes:
    names = [chance.choice(POD_FOLDERS) for _ in range(chance.randrange(1, 4))]
    return b"\0".join(
        (mutate.text(chance, name) if chance.random() < 0.4 else name).encode("utf-8", "replace") for name in names
    )


def _parse_pod_folders(data: bytes) -> str:
    folder = _folder("pods")
    made = 0
    try:
        for name in data.split(b"\0"):
            if name and b"/" not in name and name not in (b".", b"..") and len(name) <= 255:
                Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).mkdir(exist_ok=True)
                made += 1
        assert not pod_logs.pods_by_uid(str(folder / "absent"))
        found = pod_logs.pods_by_uid(str(folder))
    finally:
        shutil.rmtree(folder)
    assert all("\n" not in namespace + name for namespace, name in found.values())
    return ACCEPTED if found else REFUSED if made else REFUSED_FIRST


TARGETS = (
    Target(
        "machine-proc",
        _make_proc,
        _parse_proc,
        (
            *(f"{_PROC}:{file.parse.__name__}" for file in FILES),
            f"{_PROC}:_line_number",
        ),
    ),
    Target("machine-cgroup", _make_cgroup, _parse_cgroup, ("agent.sources.proc.cgroup",)),
    Target("machine-mountstats", _make_mounts, _parse_mounts, ("agent.sources.proc.mountstats",)),
    Target(
        "machine-devices",
        _make_device,
        _parse_device,
        (
            "agent.sources.rdma.infiniband:parse_state",
            "agent.sources.rdma.infiniband:parse_rate",
            "agent.sources.sysfs.pci:parse_generation",
            "agent.sources.sysfs.pci:parse_width",
            "agent.sources.sysfs.pci:parse_aer",
            "agent.sources.counter_files:parse_number",
        ),
    ),
    Target(
        "machine-kernel-log",
        _make_log,
        _parse_log,
        (
            "agent.sources.kernel.kernel_log:parse_record",
            "agent.sources.kernel.kernel_log:KernelLog._split",
            "agent.sources.kernel.kernel_messages",
        ),
    ),
    Target(
        "machine-environment",
        _make_environment,
        _parse_environment,
        ("agent.sources.proc.slurm_node:parse_environment",),
    ),
    Target("machine-job-files", _make_job_file, _parse_job_file, ("agent.sources.proc.slurm_node:read_job_files",)),
    Target("machine-rank-files", _make_rank_file, _parse_rank_file, ("agent.rank_attribution:_list",)),
    Target("machine-pod-folders", _make_pod_folders, _parse_pod_folders, ("agent.sources.kubelet.pod_logs",)),
)
