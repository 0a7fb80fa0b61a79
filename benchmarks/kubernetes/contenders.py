"""Programs to compare: our controller, kube-scheduler, coscheduling, and a loop that only binds pods; hollow nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec

from benchmarks.kubernetes.peers import VOLCANO_QUEUE
from benchmarks.kubernetes.watching import until
from gangwatch.logs import TO_STANDARD_ERROR
from tests.kubernetes.bed import ControlPlane, assets
from tests.kubernetes.harness import Api
from tests.ports import held_port

BARE = "bare"
_ENDING_SECONDS = 30
LEASE_SECONDS = 200
"""Duration of a hollow node's Lease. KWOK renews it after a quarter, so that 5,000 nodes send 100 requests a second.
Kubelets renew every 10 s, which alone would use most of two processors."""


def began(command: list[str], log: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that writes its output into a log. more: environment variables."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", TO_STANDARD_ERROR: "1"}  # as the image sets it (Dockerfile)
    environment.update(more or {})
    with log.open("ab") as stream:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a program, at the latest after _ENDING_SECONDS."""
    process.terminate()
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def controller(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run our controller in a separate process as leader. `folder` is its state folder, which contains the journal."""
    command = [sys.executable, "-P", "-m", "gangwatch", "kubernetes", "controller", "--state", str(folder)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    process = began([*command, "--kubeconfig", str(plane.kubeconfig()), "--port", "0"], folder.parent / "gangwatch.log")
    try:
        until("the controller is up", lambda: (folder / "controller.json").exists() or process.poll() is not None)
        assert process.poll() is None, (folder.parent / "gangwatch.log").read_text()[-3000:]
        yield process
    finally:
        end(process)


def ask(state: Path, path: str, body: bytes = b"{}") -> None:
    """Send a POST request to the controller's API, as the command line does."""
    record = msgspec.json.decode((state / "controller.json").read_bytes())
    headers = {"Authorization": f"Bearer {(state / 'token').read_text().strip()}", "Content-Type": "application/json"}
    with urlopen(
        Request(f"{record['url']}/api/{path}", data=body, headers=headers, method="POST"), timeout=60
    ) as answer:
        answer.read()


def kube_scheduler(plane: ControlPlane, folder: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run kube-scheduler with its defaults, but without its limit of 50 requests per second.

    options: further options, such as feature gates.
    """
    return _scheduler(plane, folder, assets() / "kube-scheduler", "", options)


def coscheduling(plane: ControlPlane, folder: Path, program: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the scheduler of sigs.k8s.io/scheduler-plugins with the configuration of its coscheduling README.

    Its settings are those of manifests/coscheduling/scheduler-config.yaml, without the limit of requests.
    """
    profiles = (
        "profiles:\n- schedulerName: default-scheduler\n"
        "  plugins: {multiPoint: {enabled: [{name: Coscheduling}]}, "
        "queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: '*'}]}}\n"
        "  pluginConfig: [{name: Coscheduling, args: {permitWaitingTimeSeconds: 10}}]\n"
    )
    return _scheduler(plane, folder, program, profiles, ())


@contextmanager
def volcano(plane: ControlPlane, folder: Path, program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Volcano's scheduler with the configuration of its chart, and its topology plug-in as its user guide says.

    Its limit of requests is lifted, and its period is 100 ms (default 1 s), because a gang waits for the next period.
    Its controller-manager does not run, so its queue is opened here: it allocates nothing to other queues.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "volcano-scheduler.conf"
    settings.write_text(
        'actions: "enqueue, allocate, backfill"\n'
        "tiers:\n- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]\n"
        "- plugins: [{name: overcommit}, {name: drf, enablePreemptable: false}, {name: predicates}, "
        "{name: proportion}, {name: nodeorder}, {name: binpack}, "
        "{name: network-topology-aware, arguments: {weight: 10}}]\n"
    )
    command = [str(program), f"--kubeconfig={plane.kubeconfig()}", f"--scheduler-conf={settings}"]
    command += ["--leader-elect=false", "--kube-api-qps=5000", "--kube-api-burst=10000", "--schedule-period=100ms"]
    command += [f"--listen-address=127.0.0.1:{held_port()}", f"--cache-dump-dir={folder}", "--csi-storage=false"]
    process = began(command, folder / "volcano.log")
    try:
        api = Api(plane.access())
        until("Volcano has made its queue", lambda: api.find(VOLCANO_QUEUE))
        api.patch(f"{VOLCANO_QUEUE}/status", {"status": {"state": "Open"}})
        api.close()
        yield process
    finally:
        end(process)


@contextmanager
def _scheduler(
    plane: ControlPlane, folder: Path, program: Path, profiles: str, options: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "kube-scheduler.yaml"
    settings.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "leaderElection: {leaderElect: false}\n"
        f"clientConnection: {{kubeconfig: '{plane.kubeconfig()}', qps: 5000, burst: 10000}}\n{profiles}"
    )
    port = held_port()
    command = [str(program), f"--config={settings}", "--bind-address=127.0.0.1", *options]
    process = began([*command, f"--secure-port={port}", f"--cert-dir={folder}/tls"], folder / "kube-scheduler.log")
    try:
        yield process
    finally:
        end(process)


@contextmanager
def hollow_nodes(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run KWOK for all nodes: bound pods run without containers, and the nodes renew their Leases."""
    program, stages = assets() / "kwok", assets() / "kwok-stages.yaml"
    if not program.exists():
        raise SystemExit(f"{program} is absent: packaging/kubernetes/kwok/build.sh builds it")
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(program), f"--kubeconfig={plane.kubeconfig()}", f"--config={stages}", "--manage-all-nodes"]
    process = began([*command, f"--node-lease-duration-seconds={LEASE_SECONDS}"], folder / "kwok.log")
    try:
        yield process
    finally:
        end(process)


@contextmanager
def verdicts(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run our controller without a limit on quarantines. It reads node names from its standard input, and reports each
    node as broken."""
    command = [sys.executable, "-m", "benchmarks.kubernetes.verdicts", str(plane.kubeconfig()), str(folder)]
    with (folder.parent / "verdicts.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", (folder.parent / "verdicts.log").read_text()[-3000:]
        yield process
    finally:
        end(process)


@contextmanager
def bare(plane: ControlPlane, folder: Path, nodes: int, gpus: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a loop that binds each listed pod to the next node. It shows the limit of the API server and of our
    client."""
    command = [sys.executable, "-m", "benchmarks.kubernetes.bare", str(plane.kubeconfig()), str(nodes), str(gpus)]
    folder.mkdir(parents=True, exist_ok=True)
    process = began(command, folder / "bare.log")
    try:
        yield process
    finally:
        end(process)


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds of the process in user and system mode (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, which: str = "VmRSS") -> float:
    """Return the current resident memory of the process in MiB; with `which` VmHWM, the maximum so far (proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {which} in /proc/PID/status (proc(5))")
