"""Process states of ranks as evidence for or against a hang.

A rank that saves, evaluates or compiles alone makes its peers wait in a collective, as a hanging rank does. But its
process works: it uses a CPU, or waits for a disk. A process that was stopped, has ended, or sleeps without using a CPU
does not continue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.series.consumption_trail import CPU
from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import UNKNOWN_STATE, JobTelemetry
from scheduler_feedback.core.verdict import Evidence

NEVER_GO_ON = (ProcessState.STOPPED, ProcessState.ZOMBIE, ProcessState.GONE)

ENDED = (ProcessState.ZOMBIE, ProcessState.GONE)
"""States of a process that has ended. A stopped one may be continued."""

IDLE_SHARE = 0.01
"""A process is idle only if it uses less than this share of one CPU. Helper threads of Python use a few thousandths."""

IDLE_SECONDS = 5.0
"""Time in seconds for which a process must use less than IDLE_SHARE of a CPU to be idle. Counters of eight seconds are
kept."""

LONG_SECONDS = 600.0
"""Time in seconds without a step after which a process that seems to work is no longer evidence against a hang
(ByteRobust, SOSP'25: ten minutes)."""

PROVEN = 4.0
"""Weight of a process state that proves a hang. With the time without a step it gives a confidence of .98."""

WORKING = -3.5
"""Weight of a process that still works, as evidence against a hang. It lowers the confidence from .998 to .92. Below
.95 no job is restarted, so that the verdict only informs people."""

WORDS = {
    ProcessState.GONE: "no longer exists",
    ProcessState.RUNNING: "runs or sleeps",
    ProcessState.UNINTERRUPTIBLE: "is blocked in the kernel, for example on a disk (state D)",
    ProcessState.STOPPED: "is stopped (SIGSTOP)",
    ProcessState.TRACED: "is stopped by a debugger",
    ProcessState.ZOMBIE: "has ended and is a zombie",
}


def states_of(job: JobTelemetry) -> IntArray:
    """Return the ProcessState of each rank, or UNKNOWN_STATE where it is not known: int64 [n]."""
    if job.process_states is None:
        return np.full(len(job.shape), UNKNOWN_STATE, np.int64)
    return job.process_states()


def never_go_on(states: IntArray) -> npt.NDArray[np.bool_]:
    """Return whether each rank's process needs intervention to continue: bool [n]."""
    found: npt.NDArray[np.bool_] = np.isin(states, NEVER_GO_ON)
    return found


def is_idle(job: JobTelemetry, who: int, now_ns: int) -> bool:
    """Return whether the processes of the rank with index `who` use no CPU.

    Returns False if there are no counters, or if the rank computes on a GPU: CPU time does not show its work.
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
    """Return the process state of the rank with index `who` as evidence; empty if the state is unknown."""
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
