"""Switches: parts of the detectors that an ablation turns off, one at a time, to say what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switches:
    """All on, as in production.

    self_residual: a rank against its own healthy past, beside its peers. wait_inversion: the culprit waits less than
    its victims. frozen_scale: the scale of the healthy warm-up; off: that of the newest windows. group_intersection:
    overlapping groups vote, and a healthy one vetoes. priors: how often each kind of fault occurs. same_samples: who is
    slow with all that are given the same is not accused.
    """

    self_residual: bool = True
    wait_inversion: bool = True
    frozen_scale: bool = True
    group_intersection: bool = True
    priors: bool = True
    same_samples: bool = True
