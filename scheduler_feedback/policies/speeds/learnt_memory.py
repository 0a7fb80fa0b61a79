"""Learnt device memory: how much memory each rank of a job class needs, from the measured peaks of its jobs.

A class is the same as that of learnt speeds (``class_of``), with one row for each number of ranks, because gangs may
divide their memory. The peaks come from events (`MemoryMeasured`), so that a replay learns the same.

The need is an upper tolerance limit of the logarithms of the peaks: with a confidence of 95 %, it is above 99 % of all
jobs of the class. With the mean m of n peaks and their standard deviation s, it is exp(m + k s). The factor k falls
with n (NIST/SEMATECH e-Handbook of Statistical Methods, section 7.2.6.3, after Natrella 1963), so more runs give a
smaller margin. Few runs do not show their spread. So s also contains PRIOR_SPREAD as if it came from PRIOR_RUNS more
runs.
"""

from __future__ import annotations

import math

from msgspec import structs

from scheduler_feedback.core.explanation import LearntMemory
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import MeasuredMemory, State
from scheduler_feedback.policies.speeds.learnt_speeds import MOST_CLASSES, class_of

COVERED_Z = 2.326
"""Quantile of the normal distribution for 99 % of the jobs."""

CONFIDENCE_Z = 1.645
"""Quantile of the normal distribution for a confidence of 95 %."""

PRIOR_SPREAD = 0.05
"""Spread that is assumed before the runs show theirs, as a standard deviation of the logarithm: our choice. It covers
differences between drivers, libraries and cached blocks, which SchedTune's and our own measurements do not contain."""

PRIOR_RUNS = 3
"""Number of runs that PRIOR_SPREAD counts for: our choice. The margin is 48 % after one run, 30 % after two, 15 % after
five and 8 % after fourteen, if all runs are alike."""

MOST_MARGIN = 2.0
"""Largest need, as a multiple of the largest peak: our choice. Two runs that differ much would have an absurd need."""

MOST_RUNS = 32
"""Maximum number of peaks in a row. The oldest are dropped, so that the need follows a change of the jobs."""

MOST_SIZES = 8
"""Maximum number of rows of a class. The one that was measured longest ago is dropped."""

DIGITS = 6
"""Number of binary digits of a need: it is rounded up by at most 3 %, so that few needs differ."""


def row_of(state: State, job: Job) -> MeasuredMemory | None:
    """Return the measured memory of jobs of the same class and size; None if there are none."""
    rows = state.memory.get(class_of(job.job_id, job.spec)) if state.memory else None
    return next((row for row in rows if row.ranks == job.spec.ranks), None) if rows else None


def need_mib(row: MeasuredMemory) -> int:
    """Return the device memory to plan for each rank of the next job of a row, in MiB."""
    logs = [math.log(mib) for mib in row.peaks.values()]
    runs = len(logs)
    mean = sum(logs) / runs
    degrees = PRIOR_RUNS + runs - 1
    variance = (PRIOR_RUNS * PRIOR_SPREAD**2 + sum((one - mean) ** 2 for one in logs)) / degrees
    a = 1 - CONFIDENCE_Z**2 / (2 * degrees)
    b = COVERED_Z**2 - CONFIDENCE_Z**2 / runs
    factor = (COVERED_Z + math.sqrt(COVERED_Z**2 - a * b)) / a
    largest = max(row.peaks.values())
    limit = max(math.exp(mean + factor * math.sqrt(variance)), largest * math.exp(PRIOR_SPREAD))
    return _rounded(min(limit, MOST_MARGIN * largest))


def _rounded(mib: float) -> int:
    """Return an amount of memory that is rounded up to DIGITS binary digits."""
    step = 1 << max(int(mib).bit_length() - DIGITS, 0)
    return math.ceil(mib / step) * step


def learnt_mib(state: State, job: Job) -> int:
    """Return the learnt need of each rank of the job that is planned with, in MiB; 0 if there is none.

    A declared value always wins, and only shareable jobs need one.
    """
    spec = job.spec
    if not state.policy.learnt_memory or spec.slot_memory_mib or not spec.shareable:
        return 0
    row = row_of(state, job)
    return 0 if row is None else need_mib(row)


def planned_mib(job: Job) -> int:
    """Return the device memory that is planned for each rank of the job: declared or learnt; 0 if neither is known.

    A job that declares its memory has a learnt need only once it has outgrown what it declares.
    """
    return max(job.spec.slot_memory_mib, job.learnt_mib)


def grown_mib(peak_mib: int) -> int:
    """Return the memory to plan for a job that has outgrown its plan, in MiB."""
    return _rounded(peak_mib * math.exp(PRIOR_SPREAD))


def has_outgrown(job: Job) -> bool:
    """Return whether the job has been measured to use more device memory than is planned for it.

    No other job joins it until it has a new plan.
    """
    return 0 < planned_mib(job) < job.peak_mib


def record(state: State, job: Job, mib: int) -> bool:
    """Add the largest memory of a rank of the job so far, and return whether it is larger than the last one.

    mib: of this job in any attempt, in MiB.
    """
    key = class_of(job.job_id, job.spec)
    rows = state.memory.get(key, [])
    old = next((row for row in rows if row.ranks == job.spec.ranks), None)
    before = 0 if old is None else old.peaks.get(job.job_id, 0)
    if mib <= before:
        return False
    if old is None:
        new = MeasuredMemory(job.spec.ranks, {job.job_id: mib}, 1)
    else:
        peaks = {name: peak for name, peak in old.peaks.items() if name != job.job_id}
        peaks[job.job_id] = mib
        if len(peaks) > MOST_RUNS:
            del peaks[next(iter(peaks))]
        new = structs.replace(old, peaks=peaks, runs=old.runs + (before == 0))
    state.memory.pop(key, None)  # the newest class is last
    state.memory[key] = [*(row for row in rows if row is not old), new][-MOST_SIZES:]
    if len(state.memory) > MOST_CLASSES:
        del state.memory[next(iter(state.memory))]
    return True


def record_out_of_memory(state: State, job: Job, least_mib: int) -> None:
    """Count that the job ran out of device memory beside others. least_mib: memory of a rank that was not enough."""
    record(state, job, max(least_mib, 1))
    key = class_of(job.job_id, job.spec)
    state.memory[key] = [
        structs.replace(row, out_of_memory=row.out_of_memory + 1) if row.ranks == job.spec.ranks else row
        for row in state.memory[key]
    ]


def in_words(state: State, job: Job) -> str:
    """Return the facts about the memory of the job's class, as a sentence; '' if there are none."""
    row = row_of(state, job)
    if row is None:
        return ""
    largest = gib(max(row.peaks.values()))
    runs = f"{row.runs} run{'' if row.runs == 1 else 's'} of this class"
    failed = f", {row.out_of_memory} of them out of memory beside other jobs" if row.out_of_memory else ""
    if job.spec.slot_memory_mib:
        return f"its memory is declared, {gib(job.spec.slot_memory_mib)}; measured: at most {largest} in {runs}{failed}"
    if job.learnt_mib:
        return f"its memory is learnt: at most {largest} in {runs}{failed}, {gib(job.learnt_mib)} planned"
    if state.policy.learnt_memory:
        return f"its memory is measured: at most {largest} in {runs}{failed}"
    would = f"{gib(need_mib(row))} would be planned with policy.learnt_memory"
    return f"its memory is measured: at most {largest} in {runs}{failed}; {would}"


def table(state: State, job: Job) -> tuple[LearntMemory, ...]:
    """Return the learnt memory of the job's class, by number of ranks."""
    rows = sorted(state.memory.get(class_of(job.job_id, job.spec), ()), key=lambda row: row.ranks)
    return tuple(
        LearntMemory(row.ranks, max(row.peaks.values()), need_mib(row), row.runs, row.out_of_memory) for row in rows
    )


def gib(mib: int) -> str:
    """Return an amount of memory in words, such as '11.2 GiB' or '300 MiB'."""
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"
