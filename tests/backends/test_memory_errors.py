"""Messages of a full device in the output of a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler_feedback.backends.local.memory_errors import TAIL_BYTES, shows_full_device


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: HIP out of memory. Tried to allocate 20.00 MiB",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.",
        "ResourceExhaustedError: OOM when allocating tensor with shape[8192]",
        "failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_messages_of_a_full_device_are_found_near_the_end(tmp_path: Path, line: str) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("step 1\n" * 5000 + line + "\nclosing\n")
    assert shows_full_device(str(log))
    log.write_text(line + "\n" + "x" * TAIL_BYTES)
    assert not shows_full_device(str(log)), "the program went on"


def test_other_errors_and_files_that_cannot_be_read_show_nothing(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    assert not shows_full_device(str(log))
    log.write_bytes(b"MemoryError\n\xff CUDA error: an illegal memory access was encountered\n")
    assert not shows_full_device(str(log))
    os.mkfifo(pipe := tmp_path / "pipe")
    log.write_text("CUDA out of memory")
    (link := tmp_path / "link").symlink_to(log)
    assert not any(shows_full_device(str(path)) for path in (pipe, link, tmp_path))
