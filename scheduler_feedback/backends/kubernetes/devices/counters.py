"""Counters that devices of one pool share, so that not all of them can be allocated together. No I/O.

A driver that makes partitions on demand (dynamic MIG) publishes all possible ones, and what each of them uses of its
GPU. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#partitionable-devices
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler_feedback.backends.kubernetes.devices.device_objects import CounterConsumption, CounterSet
from scheduler_feedback.backends.kubernetes.objects.quantities import amount

if TYPE_CHECKING:
    from scheduler_feedback.backends.kubernetes.devices.inventory import Published


class CounterKey(NamedTuple):
    """Names that identify a counter."""

    driver: str
    pool: str
    counter_set: str
    counter: str


Amounts = Mapping[CounterKey, int]


def totals_of(driver: str, pool: str, sets: Iterable[CounterSet]) -> dict[CounterKey, int]:
    """Return the amounts of a pool's counters. Raises BackendError if a value is no quantity."""
    return {
        CounterKey(driver, pool, one.name, name): amount(name, counter.value)
        for one in sets
        for name, counter in (one.counters or {}).items()
    }


def uses_of(
    driver: str, pool: str, consumed: Iterable[CounterConsumption] | None
) -> tuple[tuple[CounterKey, int], ...]:
    """Return what a device uses of its pool's counters. Raises BackendError if a value is no quantity."""
    return tuple(
        (CounterKey(driver, pool, one.counter_set, name), amount(name, counter.value))
        for one in consumed or ()
        for name, counter in (one.counters or {}).items()
    )


class Left:
    """What is left of the counters while devices are taken. totals: amounts of all counters."""

    def __init__(self, totals: Amounts, taken: Iterable[Published] = ()) -> None:
        self._totals, self._left = totals, dict(totals)
        for device in taken:
            self.take(device)

    def has(self, device: Published) -> bool:
        """Return whether the device can be taken, too."""
        return all(self._left.get(key, 0) >= used for key, used in device.uses)

    def take(self, device: Published) -> None:
        """Take the device. Devices that others took may together use more than there is."""
        for key, used in device.uses:
            self._left[key] = self._left.get(key, 0) - used

    def give_back(self, device: Published) -> None:
        for key, used in device.uses:
            self._left[key] += used

    def together(self, devices: Sequence[Published]) -> int:
        """Return how many of these devices can be taken together, if those that use least are taken first."""
        shares = {id(device): self._share(device) for device in devices}
        count = 0
        for device in sorted(devices, key=lambda one: shares[id(one)]):
            if self.has(device):
                self.take(device)
                count += 1
        return count

    def _share(self, device: Published) -> float:
        return sum(used / total for key, used in device.uses if (total := self._totals.get(key, 0)))
