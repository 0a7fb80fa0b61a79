"""Process states of ranks as evidence for or against a hang.

A rank that saves, evaluates or compiles alone keeps its peers waiting in a collective, as a hanging rank does. But its
process works: it uses a CPU, or waits for a disk. A process that was stopped, has ended, or sleeps without using a CPU
does not continue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.gang_attempts import CPU, IntArray
from scheduler_feedback.core.telemetry.telemetry import UNKNOWN_STATE, JobTelemetry
from scheduler_feedback.core.verdict import Evidence

NEVER_GO_ON = (ProcessState.STOPPED, ProcessState.ZOMBIE, ProcessState.GONE)

IDLE_SHARE = 0.01
IDLE_SECONDS = 5.0
"""A rank is idle if it used less than a hundredth of a CPU for five seconds; counters of eight seconds are kept. A
Python process with its helper threads uses a few thousandths. A process that saves or sends uses more."""

LONG_SECONDS = 600.0
"""ByteRobust (SOSP'25) reports a hang after ten minutes without traffic, whatever the processes do; DLRover waits for
five."""

PROVEN = 4.0
WORKING = -3.5
"""Log-likelihood ratios. PROVEN and the time without a step give a confidence of .98. WORKING lowers .998 to .92, which
is below the .95 at which a job is restarted: a verdict for people only."""

WORDS = {
    ProcessState.GONE: "no longer exists",
    ProcessState.RUNNING: "runs or sleeps",
    ProcessState.UNINTERRUPTIBLE: "is blocked in the kernel, for example on a disk (state D)",
    ProcessState.STOPPED: "is stopped (SIGSTOP)",
    ProcessState.TRACED: "is stopped by a debugger",
    ProcessState.ZOMBIE: "has ended and is a zombie",
}


def states_of(job: JobTelemetry) -> IntArray:
    """Return the ProcessState of each rank, or UNKNOWN_STATE: int64 [n]."""
    if job.process_states is None:
        return np.full(len(job.shape), UNKNOWN_STATE, np.int64)
    return job.process_states()


def never_go_on(states: IntArray) -> npt.NDArray[np.bool_]:
    """Return which ranks' processes do not continue without intervention: bool [n]."""
    found: npt.NDArray[np.bool_] = np.isin(states, NEVER_GO_ON)
    return found


def is_idle(job: JobTelemetry, who: int, now_ns: int) -> bool:
    """Return whether the processes of the rank with index `who` use no CPU.

    Returns False if the rank computes on a GPU, whose work CPU time does not show, and if there are no counters.
    """
    if job.consumed is None or (job.shape.gpus and job.shape.gpus[who]):
        return False
    now = job.consumed(np.full(len(job.shape), now_ns, np.int64))
    before = job.consumed(now.at_ns - round(IDLE_SECONDS * 1e9))
    seconds = float(now.at_ns[who] - before.at_ns[who]) * 1e-9
    used = float(now.values[who, CPU] - before.values[who, CPU]) * 1e-9
    return seconds >= 0.8 * IDLE_SECONDS and used < IDLE_SHARE * seconds  # NaN is not less


def evidence(
    job: JobTelemetry, states: IntArray, who: int, stalled_seconds: float, now_ns: int
) -> tuple[Evidence, ...]:
    """Return the evidence of the process of the rank with index `who`; empty if its state is unknown."""
    if states[who] == UNKNOWN_STATE:
        return ()
    state, rank = ProcessState(int(states[who])), int(job.shape.ranks[who])
    words = WORDS[state]
    if state in NEVER_GO_ON:
        weight = PROVEN
    elif state is ProcessState.RUNNING and is_idle(job, who, now_ns):
        words, weight = "sleeps and uses no CPU", 0.0
    else:
        weight = 0.0 if stalled_seconds >= LONG_SECONDS else WORKING
        if state is ProcessState.RUNNING:
            words = "may be working: it runs or sleeps"
    return (Evidence("process_state", float(state), float(ProcessState.RUNNING), "state",
                     f"rank {rank}'s process {words}", weight),)  # fmt: skip
