"""One run: the product starts, a job trains, a fault begins, and all verdicts are recorded.

A job with a fault has three periods: undisturbed, with the fault, and undisturbed again. Its steps in the first and
the last period are the comparison for its severity, and show whether the machine's speed changed. Rows of earlier
versions have a second job instead, "undisturbed", which ran before this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reality import steps
from benchmarks.reality.cases import DATASET_BYTES, Case
from benchmarks.reality.cluster import CHECKOUT, ENDED, Cluster, ClusterError
from benchmarks.reality.faults import Gang, inject
from benchmarks.reality.site import SHARES, STARTING_SHARES, Site, SiteError

VERSION = 3
"""Version of the benchmark, in each row. Rows without it are of version 1 if they have two jobs, and of version 2 if
one job has three periods. In version 2, DDP trainings waited for the device while gradients were averaged."""

PROGRAMS = Path(__file__).parent / "programs"
RATE_MBIT = 400

START_SECONDS = 90.0
"""Longest time until every rank has made its first steps."""
FIRST_STEPS = 10
HEALTHY_SECONDS = 38.0
"""Time of a healthy run, from its first steps."""
FAULT_SECONDS = 24.0
"""Time with a fault. A straggler without a known cause is certain after a dozen windows of 1 s."""
AFTER_SECONDS, RECOVERY_SECONDS = 10.0, 3.0
"""Time after the fault for the comparison, and the part of it at its begin that does not count."""
HANG_SECONDS = 60.0
"""Time with a rank that never arrives: hangs are reported after 40 s."""
POLL_SECONDS = 0.5
SETTLE_SECONDS = 1.0
"""Time after the begin of a fault that does not count for its severity."""

MOST_DRIFT = 1.25
"""A run is discarded if steps changed by more than this factor between the undisturbed periods."""
LEAST_STEPS = 30


class DiscardedError(Exception):
    """Error: the run is not valid, for a reason that does not depend on verdicts."""


@dataclass(slots=True)
class Watched:
    """What one job did, and what was reported about it."""

    job: str
    before: float | None = None
    """Mean step time before the fault; of a healthy run, in the first half."""
    during: float | None = None
    """Mean step time with the fault; of a healthy run, in the second half."""
    after: float | None = None
    """Mean step time after the fault; None for a healthy run and for a rank that never arrives."""
    waiting: float = 0.0
    """Seconds a second that the threads of one rank waited for a processor before the fault, at most."""
    waiting_during: tuple[float, ...] = ()
    """The same for each rank, with the fault; of a healthy run, in the second half."""
    onset_wall_ns: int = 0
    nodes: tuple[str, ...] = ()
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Verdicts by id, as they were when their confidence was highest, with `first_seconds` and `sure_seconds`: when
    they were reported first, and first with a confidence of at least .9, after the onset."""


def torch_python() -> Path:
    """Return the interpreter that packaging/torch.sh made. The file may be absent."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("GANGWATCH_TORCH") or f"{cache}/gangwatch/torch") / "bin" / "python"


def datasets(folder: Path = CHECKOUT / ".cache" / "reality", ranks: int = 8) -> Path:
    """Return the folder of the datasets, on a disk; make them if they are absent, and drop them from the page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        path = folder / f"dataset.{rank}"
        if not path.exists() or path.stat().st_size != DATASET_BYTES:
            path.write_bytes(os.urandom(1 << 20) * (DATASET_BYTES >> 20))
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return folder


def perform(one: Case) -> dict[str, Any]:
    """Perform the run of a case, and return its row: the case, and the result or why it was discarded."""
    begun = time.monotonic()
    row: dict[str, Any] = {
        "seed": one.seed,
        "class": one.name,
        "healthy": one.healthy,
        "framework": one.framework,
        "nodes": one.nodes,
        "ranks": one.ranks,
        "culprits": list(one.culprits),
        "numbers": one.numbers,
        "own": one.plan["own"],
        "version": VERSION,
        "load_average": os.getloadavg()[0],
    }
    folder = Path(tempfile.mkdtemp(prefix="reality-", dir=datasets()))
    try:
        jobs = _jobs(one, folder)
        row |= _result(one, jobs)
    except DiscardedError as error:
        row["discarded"] = str(error)
    except (SiteError, ClusterError) as error:
        row |= {"discarded": "error", "error": str(error)[:500]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row | {"seconds": round(time.monotonic() - begun, 1), "load_average_end": os.getloadavg()[0]}


def _result(one: Case, jobs: dict[str, Watched]) -> dict[str, Any]:
    """Return the part of the row about what happened. Raises DiscardedError if the run is not valid."""
    found: dict[str, Any] = {"jobs": {name: _document(watched) for name, watched in jobs.items()}}
    if one.healthy or one.name == "never-arrives":
        return found
    watched = jobs["disturbed"]
    if watched.before is None or watched.after is None:
        return found | {"discarded": "too few steps"}
    if not 1 / MOST_DRIFT <= watched.after / watched.before <= MOST_DRIFT:
        return found | {"discarded": "the machine's speed changed"}
    return found | {"severity": steps.severity(watched.before, watched.during, watched.after)}


def _document(watched: Watched) -> dict[str, Any]:
    kept = (
        "kind", "cause", "rank", "ranks", "node", "device", "aggressor", "confidence", "slowdown", "detector",
        "sentence", "evidence", "first_seconds", "sure_seconds",
    )  # fmt: skip
    verdicts = [{key: verdict.get(key) for key in kept} for verdict in watched.verdicts.values()]
    return {
        "step_seconds_before": watched.before,
        "step_seconds_during": watched.during,
        "step_seconds_after": watched.after,
        "waiting": round(watched.waiting, 3),
        "waiting_during": [round(share, 3) for share in watched.waiting_during],
        "nodes": list(watched.nodes),
        "verdicts": verdicts,
    }


def _jobs(one: Case, folder: Path) -> dict[str, Watched]:
    """Run the case's job on nodes of its own."""
    with Site(one.nodes, RATE_MBIT, one.leaves, one.limits) as site:
        if one.leaves > 1:
            site.set_uplink(RATE_MBIT)
        site.write(folder / "site.json")
        with Cluster(folder, one.nodes, one.slots, one.leaves, site.enter_daemons) as cluster:
            return {"undisturbed" if one.healthy else "disturbed": _watch(one, cluster, site, folder)}


def _submit(one: Case, cluster: Cluster, folder: Path, go: str, plan: dict[str, Any]) -> str:
    """Submit the case's program with this plan. It starts when the file `go` exists."""
    program = [str(PROGRAMS / "train_numpy.py")]
    python = sys.executable
    if plan["framework"] != "numpy":
        python, program = str(torch_python()), ["-m", "gangwatch.torch", str(PROGRAMS / "train_torch.py")]
    enter = [sys.executable, str(PROGRAMS / "enter.py"), str(folder / "site.json"), str(folder / go)]
    environment = {"PYTHONPATH": str(CHECKOUT), **({"GANGWATCH_LAYOUT": one.layout} if one.layout else {})}
    # The page cache counts for the group that reads a page first, so that mapped files can't be shared between runs.
    place = datasets(folder, one.ranks) if plan["loader"] == "mapped" else datasets()
    document = plan | {"folder": str(folder), "datasets": str(place)}
    return cluster.submit(one.ranks, [*enter, python, *program, json.dumps(document)], environment)


def _watch(one: Case, cluster: Cluster, site: Site, folder: Path) -> Watched:
    """Run the job from its start to its end, and record its steps and verdicts."""
    watched = Watched(_submit(one, cluster, folder, "go", one.plan))
    (folder / "go").touch()
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.cancel, watched.job)
        neighbour = ""
        if one.name == "shared-uplink":
            plan = {"framework": "numpy", "work": 1, "gradient_floats": 1 << 21, "own": {"class": "quiet"}}
            plan |= {"device_seconds": 0.0}
            neighbour = _submit(one, cluster, folder, "go.neighbour", one.plan | plan)
            stack.callback(cluster.cancel, neighbour)
        _wait_for_steps(one, cluster, watched.job, folder)
        site.set_shares(SHARES)
        stack.callback(site.set_shares, STARTING_SHARES)
        watched.nodes = tuple(rank["node"] for rank in cluster.job(watched.job)["ranks"])
        before = HEALTHY_SECONDS - FAULT_SECONDS if one.healthy else one.before_seconds
        gang, begun_ns = _warm_up(one, cluster, site, folder, watched, before)
        fault: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if not one.healthy:
            fault = inject(one.name, gang, one.culprits, one.numbers)
        hangs = one.name == "never-arrives"
        first = [_schedules(gang, rank)[1] for rank in range(one.ranks)]
        watched.onset_wall_ns, onset_ns = time.time_ns(), time.monotonic_ns()
        with fault:
            _poll(cluster, watched, HANG_SECONDS if hangs else FAULT_SECONDS)
            over_ns = time.monotonic_ns()
            last = [_schedules(gang, rank)[1] for rank in range(one.ranks)]
        seconds = (over_ns - onset_ns) / 1e9
        watched.waiting_during = tuple((late - early) / seconds for early, late in zip(first, last, strict=True))
        if neighbour:
            cluster.cancel(neighbour)
        freed_ns = time.monotonic_ns()
        if not one.healthy and not hangs:
            time.sleep(AFTER_SECONDS)
        ended_ns = time.monotonic_ns()
        ends = steps.read(folder, watched.job, 0)
        watched.before = steps.mean_seconds(ends, begun_ns, onset_ns)
        watched.during = steps.mean_seconds(ends, onset_ns + round(SETTLE_SECONDS * 1e9), over_ns)
        if not one.healthy and not hangs:
            watched.after = steps.mean_seconds(ends, freed_ns + round(RECOVERY_SECONDS * 1e9), ended_ns)
        if not hangs and cluster.job(watched.job)["state"] != "running":
            raise DiscardedError("the job ended early")
    return watched


def _wait_for_steps(one: Case, cluster: Cluster, job: str, folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while steps.count(folder, job, one.ranks) < FIRST_STEPS:
        state = cluster.job(job)["state"]
        if state in ENDED:
            raise DiscardedError(f"the job did not start: {_logs(folder, job)}")
        if time.monotonic() > until:
            raise DiscardedError("the job did not start in time")
        time.sleep(0.2)


def _logs(folder: Path, job: str) -> str:
    """Return the last line that a rank of the job wrote."""
    lines = [path.read_text(errors="replace").strip() for path in (folder / "state" / "jobs" / job).rglob("rank-*.log")]
    return next((text.splitlines()[-1][:200] for text in lines if text), "no output")


def _warm_up(
    one: Case, cluster: Cluster, site: Site, folder: Path, watched: Watched, duration: float
) -> tuple[Gang, int]:
    """Let the job run undisturbed for `duration` seconds. Return it with its usual speed, and when that time began."""
    gang = Gang(site, watched.job, watched.nodes, (), 0.0, folder)
    first, first_ns = [_schedules(gang, rank) for rank in range(one.ranks)], time.monotonic_ns()
    done = steps.count(folder, watched.job, one.ranks)
    watched.onset_wall_ns = time.time_ns() + round(duration * 1e9)
    _poll(cluster, watched, duration)
    last, seconds = [_schedules(gang, rank) for rank in range(one.ranks)], (time.monotonic_ns() - first_ns) / 1e9
    made = steps.count(folder, watched.job, one.ranks) - done
    if made < LEAST_STEPS:
        raise DiscardedError("too few steps")
    watched.waiting = max((late[1] - early[1]) / seconds for early, late in zip(first, last, strict=True))
    ran = tuple((late[0] - early[0]) / seconds for early, late in zip(first, last, strict=True))
    return Gang(site, watched.job, watched.nodes, ran, made / seconds, folder), first_ns


def _schedules(gang: Gang, rank: int) -> tuple[float, float]:
    both = [steps.schedule(pid) for pid in gang.processes(rank)]
    return sum(one for one, _ in both), sum(other for _, other in both)


def _poll(cluster: Cluster, watched: Watched, seconds: float) -> None:
    """Read the verdicts about the job repeatedly, and keep each at its highest confidence."""
    for _ in _ticks(seconds):
        for verdict in cluster.verdicts():
            if verdict["job"] != watched.job:
                continue
            after = round((time.time_ns() - watched.onset_wall_ns) / 1e9, 1)
            known = watched.verdicts.get(verdict["verdict_id"])
            times = {"first_seconds": after, "sure_seconds": None}
            if known is not None:
                times = {name: known[name] for name in times}
            if times["sure_seconds"] is None and verdict["confidence"] >= 0.9:
                times["sure_seconds"] = after
            if known is None or verdict["confidence"] >= known["confidence"]:
                watched.verdicts[verdict["verdict_id"]] = verdict | times
            else:
                known |= times


def _ticks(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(POLL_SECONDS)
