"""Measured memory of 1,000 trainings (``memory_derive``), with the parts from which it follows."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

MEMORY_FILE = Path(__file__).parent / "data" / "training-memory.csv"

GPU_MIB = 40_960.0
BYTES, MIB = 4, 2**20


@cache
def measured() -> tuple[Any, Any]:
    """Return the parts of each training in MiB (a column each), and its measured memory in MiB."""
    with MEMORY_FILE.open() as file:
        rows = [[float(value) for value in row.values()] for row in csv.DictReader(file)]
    batch, activations, parameters, mib = np.array(rows).T
    parts = np.stack([np.ones_like(mib), parameters * BYTES / MIB, batch * activations * BYTES / MIB], 1)
    return parts, mib
