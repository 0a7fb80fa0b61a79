"""Messages with which programs end if the device has no memory left, in the output of a rank."""

from __future__ import annotations

import os
import re

TAIL_BYTES = 16_384
"""Size of the end of the output that is searched. An error ends a program, so its message is near the end."""

_MESSAGES = re.compile(
    rb"CUDA out of memory|HIP out of memory|torch\.(?:cuda\.)?OutOfMemoryError"  # PyTorch
    rb"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"  # the drivers
    rb"|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor"  # XLA, TensorFlow
)


def shows_full_device(log: str) -> bool:
    """Return whether the end of this file has a message that the device's memory was full; False if it is unreadable.

    log: path of the output of a rank.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        return _MESSAGES.search(os.pread(descriptor, TAIL_BYTES, max(size - TAIL_BYTES, 0))) is not None
    except OSError:  # it is a pipe or a folder
        return False
    finally:
        os.close(descriptor)
