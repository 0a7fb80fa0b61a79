"""MIG instances: parts of one GPU with compute and memory slices of their own, and the profiles of each GPU model.

A GPU of most models has eight memory slices and seven compute slices. An instance occupies consecutive memory slices,
and each profile may start at some of them only. Instances are created and destroyed while others on the GPU run, but a
running instance cannot move.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class MigProfile(msgspec.Struct, frozen=True, gc=False):
    """Profile of MIG instances of one GPU model."""

    name: str
    """Name, such as '2g.20gb': its compute slices and its memory."""
    compute: int
    """Number of compute slices."""
    memory: int
    """Number of memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may start."""

    def mask(self, start: int) -> int:
        """Return the memory slices of an instance that starts there, as a bit mask."""
        return ((1 << self.memory) - 1) << start


def _seven(*names: str) -> tuple[MigProfile, ...]:
    """Return the profiles of a GPU with seven compute and eight memory slices, by the names of its six profiles."""
    shapes = (
        (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        (1, 2, (0, 2, 4, 6)),
        (2, 2, (0, 2, 4)),
        (3, 4, (0, 4)),
        (4, 4, (0,)),
        (7, 8, (0,)),
    )
    return tuple(MigProfile(name, *shape) for name, shape in zip(names, shapes, strict=True))


MODELS = {
    "A30-24GB": (
        MigProfile("1g.6gb", 1, 1, (0, 1, 2, 3)),
        MigProfile("2g.12gb", 2, 2, (0, 2)),
        MigProfile("4g.24gb", 4, 4, (0,)),
    ),
    "A100-40GB": _seven("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    "A100-80GB": _seven("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H100-80GB": _seven("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H200-141GB": _seven("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    "B200-180GB": _seven("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
}
"""Profiles by GPU model, without those with media engines. Production uses what NVML reports; simulations use these.
Sources: NVIDIA's MIG user guide, supported profiles, and the output of `nvidia-smi mig -lgipp`: `{0,2,4}:2` are starts
and memory slices."""


def named(profiles: Iterable[MigProfile], name: str) -> MigProfile | None:
    """Return the profile with this name; None if there is none."""
    return next((one for one in profiles if one.name == name), None)
