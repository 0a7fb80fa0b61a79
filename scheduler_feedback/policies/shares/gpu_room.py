"""Requests for GPUs or a share of one, and the free resources of a node. Amounts are thousandths of a GPU or CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GPU_MILLI = 1000
"""Thousandths of a GPU in one GPU, as in the requests of Alibaba's OpenB trace (gpu_milli)."""


@dataclass(frozen=True, slots=True)
class Request:
    """Resources that one task requests on one node. Raises ValueError if the amounts contradict each other."""

    gpus: int
    """Number of GPUs; 0 for a task that needs none."""
    gpu_milli: int = GPU_MILLI
    """Requested thousandths of each GPU. Below GPU_MILLI only for one GPU."""
    cpu_milli: int = 0
    """Requested thousandths of a processor."""
    memory_mib: int = 0
    """Requested memory of the host in MiB."""
    gpu_types: tuple[str, ...] = ()
    """GPU types that the task can use; empty: any."""

    def __post_init__(self) -> None:
        if min(self.gpus, self.cpu_milli, self.memory_mib) < 0:
            raise ValueError(f"{self}: an amount is less than 0")
        if self.gpus and not 1 <= self.gpu_milli <= GPU_MILLI:
            raise ValueError(f"gpu_milli is {self.gpu_milli}; it must be from 1 to {GPU_MILLI}")
        if self.gpus > 1 and self.gpu_milli < GPU_MILLI:
            raise ValueError(f"{self.gpus} GPUs with gpu_milli {self.gpu_milli}; a share is of one GPU")

    @property
    def total_milli(self) -> int:
        """Requested thousandths of a GPU, summed over all GPUs."""
        return self.gpus * self.gpu_milli if self.gpus else 0


@dataclass(frozen=True, slots=True)
class Room:
    """Free resources of one node."""

    gpus: tuple[int, ...]
    """Free thousandths of each GPU, by number of the GPU."""
    cpu_milli: int = 0
    """Free thousandths of a processor."""
    memory_mib: int = 0
    """Free memory of the host in MiB."""
    gpu_type: str = ""
    """GPU type of the node; '' if unknown."""

    @property
    def total_milli(self) -> int:
        """Free thousandths of a GPU, summed over all GPUs."""
        return sum(self.gpus)


def fits(room: Room, request: Request) -> bool:
    """Return whether the node has all requested resources."""
    if request.cpu_milli > room.cpu_milli or request.memory_mib > room.memory_mib:
        return False
    if not request.gpus:
        return True
    if request.gpu_types and room.gpu_type not in request.gpu_types:
        return False
    return sum(free >= request.gpu_milli for free in room.gpus) >= request.gpus


def gpu_choices(room: Room, request: Request) -> list[tuple[int, ...]]:
    """Return the different sets of GPUs that the request can use, as numbers of GPUs; empty if it does not fit.

    GPUs with equal free amounts count as one. So whole GPUs give one choice, and a share one for each free amount, in
    the order of the GPUs.
    """
    if not fits(room, request):
        return []
    able = [number for number, free in enumerate(room.gpus) if free >= request.gpu_milli]
    if request.gpus != 1 or request.gpu_milli == GPU_MILLI:
        return [tuple(able[: request.gpus])]
    first: dict[int, int] = {}
    for number in able:
        first.setdefault(room.gpus[number], number)
    return [(number,) for number in first.values()]


def taken(room: Room, request: Request, gpus: Sequence[int], sign: int = 1) -> Room:
    """Return the node's free resources after the request has got these GPUs. sign: -1 gives the resources back.

    Raises ValueError if more would be taken than is free.
    """
    free = list(room.gpus)
    for number in gpus:
        free[number] -= sign * request.gpu_milli
    cpu, memory = room.cpu_milli - sign * request.cpu_milli, room.memory_mib - sign * request.memory_mib
    if min(*free, cpu, memory, 0) < 0 or len(set(gpus)) != request.gpus:
        raise ValueError(f"{request} does not fit GPUs {list(gpus)} of {room}")
    return Room(tuple(free), cpu, memory, room.gpu_type)
