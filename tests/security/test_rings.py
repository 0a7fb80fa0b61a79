"""A step ring costs the agent nothing, whatever the reporter does with the memory file."""

from __future__ import annotations

import array
import ctypes
import fcntl
import mmap
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.attribution import Attribution
from agent.collectors.steps import StepCollector
from agent.schema.errors import ReporterError
from agent.sources import rings
from agent.sources.rings import Ring

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PAGE_BYTES = mmap.PAGESIZE


def ring_file(slots: int, written: int = 0, seals: int = SEALS) -> int:
    """Descriptor of a sealed memory file of which only the header is allocated; its count says `written`."""
    descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, rings.HEADER_BYTES + slots * rings.SLOT_BYTES)
    os.pwrite(descriptor, struct.pack("<8sIIQ", rings.MAGIC, rings.SLOT_BYTES, slots, written), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_reading_a_hole_allocates_nothing() -> None:
    descriptor = ring_file(rings.MAX_SLOTS, rings.MAX_SLOTS)
    try:
        ring = Ring.of_descriptor(descriptor)
        before = os.fstat(descriptor).st_blocks
        ring.read(time.monotonic_ns())
        ring.read(time.monotonic_ns())
        assert os.fstat(descriptor).st_blocks == before, "the agent's reading allocated pages of the reporter's file"
        ring.close()
    finally:
        os.close(descriptor)
