"""Process states, as the values of ``gangwatch_rank_process_state`` (proc_pid_stat(5), field 3)."""

from __future__ import annotations

from enum import IntEnum


class ProcessState(IntEnum):
    """State of a rank's processes.

    The numbers are the metric's values and never change. Their order has no meaning.
    """

    GONE = 0  # the main process has ended
    RUNNING = 1  # running, runnable or in interruptible sleep
    UNINTERRUPTIBLE = 2  # D: waits in the kernel, usually for a disk, and does not receive signals
    STOPPED = 3  # T: stopped by a signal (SIGSTOP)
    TRACED = 4  # t: stopped by a debugger
    ZOMBIE = 5  # Z: the main process has ended, and its parent has not waited for it


OF_LETTER = {"D": ProcessState.UNINTERRUPTIBLE, "T": ProcessState.STOPPED, "t": ProcessState.TRACED}
"""State of a process by its letter in field 3 of /proc/PID/stat. A process with another letter is RUNNING, if it has
not ended."""
