"""What the kernel says of a process, as the numbers of ``gangwatch_rank_process_state`` (proc_pid_stat(5), field 3)."""

from __future__ import annotations

from enum import IntEnum


class ProcessState(IntEnum):
    """Of a rank: its worst process's. A higher number is not worse; the numbers are stable and part of the metric."""

    GONE = 0  # the main process has ended
    RUNNING = 1  # runs, is runnable, or sleeps and can be woken
    UNINTERRUPTIBLE = 2  # D: waits in the kernel, for a disk as a rule, and no signal reaches it
    STOPPED = 3  # T: stopped by a signal (SIGSTOP)
    TRACED = 4  # t: stopped by a debugger
    ZOMBIE = 5  # Z: the main process has ended, and its parent has not waited for it


OF_LETTER = {"D": ProcessState.UNINTERRUPTIBLE, "T": ProcessState.STOPPED, "t": ProcessState.TRACED}
"""Letters of field 3 that stand for more than RUNNING, of a process that has not ended."""
