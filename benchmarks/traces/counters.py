"""Counters of the GPUs, NICs and hosts under a trace: what each rank does in each part of a step, and its samples.

A step of a rank has up to four parts: time without anything to run, work, waiting for others by polling, and transfers.
Activity and power are means over the time since the last sample; clocks are read at the time of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.traces.hardware import IDLE, PAUSES, Hardware
from benchmarks.traces.job import Job
from benchmarks.traces.model import FloatArray

PARTS = 4
NOTHING, WORK, POLL, TRANSFER = range(PARTS)

EPISODE = 1.12
"""A step of a healthy rank above this multiple of its usual one is an episode, such as a recompilation."""

WARMS_SECONDS = 60.0
"""Time constant of a GPU's temperature."""


@dataclass(slots=True)
class Course:
    """The e executed steps of n ranks in time; a restart repeats steps."""

    step: np.ndarray
    """int64 [e]: number of each executed step."""
    begin: FloatArray
    """float64 [e + 1]: begin of each step in seconds, and the end of the last one."""
    parts: FloatArray
    """float64 [e, PARTS, n]: seconds of each part."""
    slower: FloatArray
    """float64 [e, n]: factor by which the fault lengthens a rank's step; 1 without the fault."""
    more_work: FloatArray
    """float64 [e, n]: work of a step as a factor of the usual work, for popular experts."""


def executed(job: Job) -> np.ndarray:
    """Return the numbers of the executed steps in their order: int64 [e]."""
    again = {last: first for first, last in job.repeats}
    order: list[int] = []
    for step in range(job.steps):
        order.append(step)
        if step in again:
            order += range(max(again[step], 0), step + 1)
    return np.array(order, np.int64)


def course_of(job: Job, hardware: Hardware) -> Course:
    """Return what each rank does in each executed step."""
    step = executed(job)
    own, healthy, length = job.faulty_own[step], job.own[step], job.seconds[step]
    usual = np.median(job.own, axis=0)
    nothing = np.zeros_like(own)
    if job.truth.name in PAUSES:
        nothing = np.where(healthy > EPISODE * usual, healthy - usual, 0.0)
    extra = np.maximum(own - healthy, 0.0)
    if hardware.origin in IDLE:
        nothing = nothing + extra
    more = np.ones_like(own)
    if job.truth.name.startswith("hot-expert"):
        more = healthy / usual
    transfer = np.minimum(job.faulty_comm[step], length)[:, None].repeat(own.shape[1], axis=1)
    work = np.minimum(np.maximum(own - nothing, 0.0), np.maximum(length[:, None] - nothing, 0.0))
    poll = np.maximum(length[:, None] - nothing - work - transfer, 0.0)
    parts = np.stack([nothing, work, poll, transfer], axis=1)
    parts *= (length / np.maximum(parts.sum(axis=1).max(axis=1), 1e-9))[:, None, None]
    return Course(step, np.concatenate([[0.0], np.cumsum(length)]), parts, own / np.maximum(healthy, 1e-9), more)


def _means(course: Course, values: FloatArray, rank: int, edges: FloatArray, mixed: bool) -> FloatArray:
    """Return the means of a value between the edges: float64 [w].

    values: float64 [e, PARTS], the value in each part of each step. edges: float64 [w + 1], in seconds.
    """
    parts = course.parts[:, :, rank]
    if mixed:
        total = np.concatenate([[0.0], np.cumsum((parts * values).sum(axis=1))])
        at = course.begin
    else:
        total = np.concatenate([[0.0], np.cumsum((parts * values).ravel())])
        at = np.concatenate([[0.0], np.cumsum(parts.ravel())])
    found: FloatArray = np.diff(np.interp(edges, at, total)) / np.diff(edges)
    return found


def _now(course: Course, rank: int, times: FloatArray, mixed: bool, rng: np.random.Generator) -> np.ndarray:
    """Return the part in which the rank is at each of the times, and its executed step: two of int64 [w]."""
    step = np.clip(np.searchsorted(course.begin, times, side="right") - 1, 0, len(course.step) - 1)
    parts = course.parts[step, :, rank]
    share = np.cumsum(parts, axis=1) / np.maximum(parts.sum(axis=1, keepdims=True), 1e-12)
    place = (times - course.begin[step]) / np.maximum(np.diff(course.begin)[step], 1e-12)
    if mixed:
        place = rng.random(len(times))
    part = np.minimum((place[:, None] >= share).sum(axis=1), PARTS - 1)
    return np.stack([part, step])


def _noisy(rng: np.random.Generator, values: FloatArray, sigma: float) -> FloatArray:
    return values * (1.0 + rng.normal(0.0, sigma, values.shape))


def _lagged(values: FloatArray, interval: float) -> FloatArray:
    """Return the values as a body with a time constant of WARMS_SECONDS follows them."""
    found, keep = values.copy(), float(np.exp(-interval / WARMS_SECONDS))
    for k in range(1, len(values)):
        found[k] = keep * found[k - 1] + (1.0 - keep) * values[k]
    return found


def counters_of(job: Job, hardware: Hardware, course: Course, rank: int, edges: FloatArray) -> dict[str, FloatArray]:
    """Return the counters of one rank by name, one value for each sample: float64 [w].

    edges: float64 [w + 1], times of the samples in seconds; the first is the begin of the first mean.
    """
    rng, hw, mixed = hardware.rng, hardware, hardware.mixed
    culprit, origin = rank in job.truth.culprits, hardware.origin
    slower = course.slower[:, rank] if culprit else np.ones(len(course.step))
    sick = (slower > 1.0 + 1e-9).astype(float)
    if origin == "nic":
        sick = (job.faulty_comm > job.comm)[course.step].astype(float) * culprit
    low_clock = slower if origin in ("thermal", "power", "clock") else np.ones_like(slower)
    stalls = slower if origin in ("memory", "silent") else np.ones_like(slower)
    e = len(course.step)
    zeros = np.zeros(e)

    def means(nothing: FloatArray, work: FloatArray, poll: FloatArray, transfer: FloatArray) -> FloatArray:
        return _means(course, np.stack([nothing, work, poll, transfer], axis=1), rank, edges, mixed)

    slow_drift = 1.0 + 0.02 * np.sin(2 * np.pi * (np.arange(e) / max(e, 1) * 1.3))
    found: dict[str, FloatArray] = {}
    ones = np.ones(e)
    found["sm_active"] = _noisy(rng, means(zeros, hw.sm * ones, hw.poll_sm * ones, hw.poll_sm * ones), 0.01)
    found["tensor_active"] = _noisy(rng, means(zeros, hw.tensor[rank] * slow_drift / stalls, zeros, zeros), 0.01)
    found["dram_active"] = _noisy(rng, means(zeros, hw.dram / stalls, 0.01 * ones, 0.08 * ones), 0.015)
    busy = hw.busy_power[rank] / low_clock ** (2.0 if origin == "power" else 1.2) / np.sqrt(stalls)
    watts = means(zeros, busy, hw.poll_power * ones, (hw.poll_power + 0.08) * ones) * (hw.limit[rank] - hw.idle[rank])
    found["power"] = _noisy(rng, hw.idle[rank] + watts, 0.015)
    part, step = _now(course, rank, edges[1:], mixed, rng)
    clock = np.where(part == WORK, hw.clock[rank] / low_clock[step], hw.boost[rank] / np.sqrt(low_clock[step]))
    if job.truth.name == "mixed-gpus" or rng.random() < 0.5:  # clocks that the operator has fixed do not rise in waits
        clock = np.where(part == WORK, clock, hw.clock[rank] / low_clock[step])
    found["sm_clock"] = np.round(_noisy(rng, clock, 0.004) / 15e6) * 15e6
    warmth = 38.0 + 34.0 * found["power"] / hw.limit[rank] + hw.warmer[rank]
    hot = np.interp(edges[1:], course.begin[:-1], sick) if culprit and origin == "thermal" else 0.0
    found["temperature"] = np.round(_lagged(warmth + 16.0 * hot, hw.interval) + rng.normal(0.0, 0.4, len(edges) - 1))
    throttled = sick * np.clip(rng.uniform(0.3, 0.9), 0.0, 1.0)
    reasons = {name: throttled if origin == name else zeros for name in ("thermal", "power")}
    found["thermal_throttle"] = np.clip(means(zeros, reasons["thermal"], zeros, zeros), 0.0, 1.0)
    capped = np.clip(reasons["power"] + hw.capped[rank] * (1.0 + rng.normal(0.0, 0.2)), 0.0, 1.0)
    found["power_throttle"] = np.clip(_noisy(rng, means(zeros, capped, zeros, zeros), 0.1), 0.0, 1.0)
    _links(job, hw, course, rank, edges, found, sick)
    _host(job, hw, course, rank, edges, found)
    return found


def _links(
    job: Job, hw: Hardware, course: Course, rank: int, edges: FloatArray, found: dict[str, FloatArray], sick: FloatArray
) -> None:
    """Add the counters of device memory, NVLink, PCIe and the NIC."""
    rng, w, culprit = hw.rng, len(edges) - 1, rank in job.truth.culprits
    now = np.interp(edges[1:], course.begin[:-1], sick) if culprit else np.zeros(w)
    of_step = course.more_work[:, rank] * float(np.median(course.parts[:, TRANSFER].sum(axis=1)))
    rate = of_step / np.maximum(course.parts[:, TRANSFER, rank], 1e-9)
    zeros = np.zeros(len(course.step))
    moved = _means(course, np.stack([zeros, zeros, zeros, rate], axis=1), rank, edges, hw.mixed)
    unit = moved / max(float(np.median(of_step)), 1e-9)
    found["nvlink_bytes"] = _noisy(rng, 9e10 * unit, 0.01)
    found["nic_transmit_bytes"] = _noisy(rng, 1.1e10 * unit, 0.01)
    found["nic_receive_bytes"] = _noisy(rng, 1.1e10 * unit, 0.01)
    errors = now * float(rng.uniform(0.5, 20.0)) if hw.origin == "memory" and rng.random() < 0.6 else np.zeros(w)
    found["memory_errors"] = rng.poisson(errors * hw.interval) / hw.interval
    link = np.ones(w)
    if culprit and hw.origin == "pcie":
        link = np.where(now > 0.5, rng.choice([0.25, 0.5]), 1.0)
    found["pcie_link"] = link
    found["pcie_errors"] = rng.poisson((now * 2.0 if hw.origin == "pcie" else np.zeros(w)) * hw.interval) / hw.interval
    found["nvlink_errors"] = np.zeros(w)
    bad_port = now if hw.origin == "nic" else np.zeros(w)
    found["nic_sequence_errors"] = rng.poisson((bad_port * 40.0 + 0.01) * hw.interval) / hw.interval
    found["nic_physical_errors"] = rng.poisson(bad_port * 8.0 * hw.interval) / hw.interval
    busy_network = np.zeros(w)
    if job.truth.name == "neighbours":
        slow = (job.faulty_comm > 1.02 * job.comm)[course.step].astype(float)
        busy_network = np.interp(edges[1:], course.begin[:-1], slow)
    found["nic_congestion"] = rng.poisson((busy_network * 200.0 + 2.0) * hw.interval) / hw.interval
    found["nic_pause_sent"] = rng.poisson(np.full(w, 0.05) * hw.interval) / hw.interval
    found["nic_pause_received"] = rng.poisson(np.full(w, 0.05) * hw.interval) / hw.interval


def _host(job: Job, hw: Hardware, course: Course, rank: int, edges: FloatArray, found: dict[str, FloatArray]) -> None:
    """Add the counters of the rank's processes. The node's are added for all its ranks together."""
    rng, w = hw.rng, len(edges) - 1
    zeros, culprit = np.zeros(len(course.step)), rank in job.truth.culprits
    idle = np.ones(len(course.step))
    nothing = _means(course, np.stack([idle, zeros, zeros, zeros], axis=1), rank, edges, hw.mixed)
    queue = nothing * rng.uniform(0.6, 0.95) if culprit and hw.origin == "cpu" else np.zeros(w)
    found["runqueue_wait"] = np.clip(queue + np.abs(rng.normal(0.004, 0.004, w)), 0.0, 4.0)
    works = nothing if job.truth.name in ("recompiles", "checkpoints", "long-step") else np.zeros(w)
    found["processor"] = np.maximum(_noisy(rng, 1.1 + works * rng.uniform(0.5, 4.0) - queue, 0.04), 0.05)


def node_counters(job: Job, hw: Hardware, course: Course, ranks: list[int], edges: FloatArray) -> dict[str, FloatArray]:
    """Return the counters of a node's host by name: float64 [w]. Some healthy nodes have load that slows no step."""
    rng, w = hw.rng, len(edges) - 1
    zeros, ones = np.zeros(len(course.step)), np.ones(len(course.step))
    idle = np.mean(
        [_means(course, np.stack([ones, zeros, zeros, zeros], axis=1), r, edges, hw.mixed) for r in ranks], axis=0
    )
    hit = bool(set(ranks).intersection(job.truth.culprits))
    processor, storage = np.abs(rng.normal(0.01, 0.006, w)), np.abs(rng.normal(0.004, 0.003, w))
    if hit and hw.origin == "cpu":
        processor = processor + idle * rng.uniform(0.5, 1.0) * (1.0 if len(job.truth.culprits) > 1 else 3.0)
    if (hit and hw.origin == "storage") or job.truth.name in ("loader-stalls", "checkpoints", "long-step"):
        storage = storage + idle * rng.uniform(0.3, 0.9) * (1.0 if hit or job.truth.name == "loader-stalls" else 4.0)
    if job.truth.name == "recompiles":
        processor = processor + idle * rng.uniform(0.0, 0.6)
    if rng.random() < 0.15:  # a job of the operator, which takes processors or disks that the ranks do not need
        first = int(rng.integers(w))
        span = slice(first, first + max(1, int(rng.uniform(20.0, 90.0) / hw.interval)))
        target = processor if rng.random() < 0.6 else storage
        target[span] += rng.uniform(0.05, 0.4)
    return {"cpu_waiting": np.clip(processor, 0.0, 1.0), "io_waiting": np.clip(storage, 0.0, 1.0)}


def red_herrings(job: Job, hw: Hardware, all_counters: list[dict[str, FloatArray]]) -> None:
    """Add events of healthy devices that slow no step: corrected memory errors, a throttle reason, a noisy port."""
    rng = hw.rng
    for name, share, size in (
        ("memory_errors", 0.1, 3.0), ("power_throttle", 0.12, 0.3), ("thermal_throttle", 0.08, 0.1),
        ("nic_sequence_errors", 0.12, 5.0), ("nic_pause_sent", 0.08, 20.0), ("temperature", 0.2, 9.0),
    ):  # fmt: skip
        if rng.random() >= share:
            continue
        values = all_counters[int(rng.integers(len(all_counters)))][name]
        first = int(rng.integers(len(values)))
        last = first + int(rng.integers(1, max(2, len(values) // 2)))
        values[first:last] += size * rng.uniform(0.3, 1.0)
        if name.endswith("throttle"):
            np.clip(values, 0.0, 1.0, out=values)
    if job.truth.name == "drift":  # a warm afternoon: some GPUs throttle now and then
        for one in all_counters:
            if rng.random() < 0.15:
                w = len(one["temperature"])
                warm = np.clip(np.sin(2 * np.pi * (np.arange(w) / w + rng.random() * 0.1)), 0.0, None)
                one["temperature"] += 8.0 * warm
                one["thermal_throttle"] = np.clip(one["thermal_throttle"] + 0.08 * warm, 0.0, 1.0)
