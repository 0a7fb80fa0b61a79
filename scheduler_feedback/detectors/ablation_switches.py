"""Ablation switches: parts of the detectors that a benchmark turns off, one at a time, to measure what each
contributes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """Ablation switches. All are on in production."""

    self_residual: bool = True
    """Compare a rank with its own healthy history, in addition to its peers."""
    wait_inversion: bool = True
    """Require that the culprit waits less than its victims."""
    frozen_scale: bool = True
    """Use the scale of the healthy warm-up; off: the scale of the newest windows."""
    group_intersection: bool = True
    """Overlapping groups vote on a suspect, and a healthy group vetoes it."""
    priors: bool = True
    """Use the frequency of each kind of fault as its prior."""
    same_samples: bool = True
    """Do not accuse a rank that is slow together with all ranks that process the same samples."""
