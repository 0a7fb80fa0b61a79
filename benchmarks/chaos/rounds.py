"""One round of chaos on a cluster with real kubelets: start a gang, break a part, wait, check, delete the gang."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from agent.schema.errors import BackendError
from benchmarks.chaos.checks import Member, Rank, attempts, twice, violations, whole
from benchmarks.chaos.faults import FAULTS, USUAL, is_healthy
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT
from tests.kubernetes.real_site import GPUS, IMAGE, Site

LIMIT_SECONDS = 240.0
"""Longest time until every gang runs completely again. A controller that was killed often waits up to 5 min for its
container (CrashLoopBackOff); the other controller leads in the meantime."""
AFTER_SECONDS = 5.0
"""Time for which all gangs must run completely at the end of a round, so that late effects of the fault are seen."""
SAMPLE_SECONDS = 0.5
STANDING = {"large": 4, "small": 3}
"""Gangs that run in all rounds, and their sizes. With a gang of two, they use all nine GPUs."""
INDEX = "batch.kubernetes.io/job-completion-index"
_GANG = b"CHAOS_GANG="
_RANK = b"JOB_COMPLETION_INDEX="


def add_gang(site: Site, name: str, ranks: int) -> None:
    """Create a restartable gang, and the Job that recreates its pods. The process of a rank has gang and rank in its
    environment."""
    resources = {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"nvidia.com/gpu": "1"}}
    container: dict[str, Any] = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never"}
    container |= {"command": ["sleep", "86400"], "env": [{"name": "CHAOS_GANG", "value": name}]}
    pod = {"containers": [container | {"resources": resources}], "enableServiceLinks": False}
    site.gangs.add_job(name, ranks, annotations={"gangwatch.io/restartable": "true"}, pod=pod, backoffLimit=10_000)


def running_processes(site: Site) -> list[Rank]:
    """Return the rank of each process of a gang, on all nodes."""
    found: list[Rank] = []
    for process in site.real.processes():
        try:
            if (process / "comm").read_bytes() != b"sleep\n":
                continue
            parts = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        gang = next((part[len(_GANG) :] for part in parts if part.startswith(_GANG)), b"")
        rank = next((part[len(_RANK) :] for part in parts if part.startswith(_RANK)), b"")
        if gang and rank:
            found.append((gang.decode(), int(rank)))
    return found


def running_pods(site: Site, gang: str) -> list[Member]:
    """Return the gang's pods that run and are not being deleted."""
    return [
        Member(
            int(pod["metadata"]["annotations"][INDEX]),
            pod["spec"]["nodeName"],
            int(pod["metadata"]["annotations"].get(ATTEMPT, "0")),
        )
        for pod in site.gangs.pods(gang)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


class Sampler:
    """Thread that records which ranks run twice at the same time."""

    def __init__(self, site: Site) -> None:
        self.twice: set[Rank] = set()
        self._site, self._ending = site, threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE_SECONDS):
            self.twice |= twice(running_processes(self._site))

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def run(site: Site, number: int, seed: int, kinds: Sequence[str] = USUAL) -> dict[str, Any]:
    """Run one round with one of these faults, and return its record. The same number and seed draw the same fault."""
    draw = random.Random(f"{seed}-{number}")
    kind = kinds[number % len(kinds)]
    new = f"round-{number}"
    sizes = {**STANDING, new: 2}
    before = {gang: attempts(running_pods(site, gang)) for gang in STANDING}
    began = time.monotonic()
    with Sampler(site) as sampler:
        add_gang(site, new, sizes[new])
        time.sleep(draw.uniform(0.0, 3.0))  # the fault comes before, during or after the start of the new gang
        broken, recovered = FAULTS[kind](site, draw)
        ended = time.monotonic()
        until = ended + LIMIT_SECONDS
        whole_since = time.monotonic()
        while time.monotonic() < min(until, whole_since + AFTER_SECONDS):
            time.sleep(SAMPLE_SECONDS)
            if not (_now(recovered) and _now(lambda: _all_whole(site, sizes))):
                whole_since = time.monotonic()
        seconds = whole_since - ended
        with _patiently():
            members = {gang: running_pods(site, gang) for gang in sizes}
        found = violations(sizes, members, running_processes(site), sampler.twice)
    record = {"round": number, "seed": seed, "fault": kind, "broken": broken, "violations": found}
    record |= {"whole_after_seconds": round(seconds, 1), "seconds": round(time.monotonic() - began, 1)}
    record["restarted"] = [gang for gang in STANDING if attempts(members[gang]) != before[gang]]
    site.clear(new)
    return record


def _all_whole(site: Site, sizes: dict[str, int]) -> bool:
    """Return whether every part of the cluster is healthy and every gang runs completely."""
    processes = running_processes(site)
    return is_healthy(site, str(GPUS)) and all(
        whole(size, running_pods(site, gang), [rank for name, rank in processes if name == gang])
        for gang, size in sizes.items()
    )


def _now(check: Callable[[], bool]) -> bool:
    """Return the result of a check; False if the API server does not respond, which may be the part that is broken."""
    with suppress(BackendError, TimeoutError):
        return check()
    return False


@contextmanager
def _patiently() -> Iterator[None]:
    """Name the reason if the API server still does not respond at the end of a round."""
    try:
        yield
    except BackendError as error:
        raise AssertionError(f"the API server does not respond at the end of the round: {error}") from error


def start_standing(site: Site) -> None:
    """Create the gangs that run in all rounds, and wait until they run."""
    for gang, size in STANDING.items():
        add_gang(site, gang, size)
    until = time.monotonic() + LIMIT_SECONDS
    while not _now(lambda: _all_whole(site, STANDING)):
        if time.monotonic() > until:
            raise AssertionError(f"the gangs do not run after {LIMIT_SECONDS:g} s")
        time.sleep(SAMPLE_SECONDS)
