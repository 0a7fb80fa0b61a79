"""Ablation switches: parts of the detectors that a benchmark turns off, one at a time, to measure what each
contributes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """Ablation switches. All are on in production."""

    self_residual: bool = True
    """Compare a rank with its own healthy history, and not only with its peers."""
    wait_inversion: bool = True
    """Require that the accused rank waits less than its victims."""
    frozen_scale: bool = True
    """Scale residuals by the spread of the healthy warm-up; if off, by the spread of the newest windows."""
    group_intersection: bool = True
    """Use groups of ranks that overlap: if a slow group contains two suspected ranks, clear the one that is in fewer
    slow groups."""
    priors: bool = True
    """Weigh each cause by how often it occurs among faults."""
    same_samples: bool = True
    """Do not accuse a rank that is slow together with all ranks that process the same samples."""
