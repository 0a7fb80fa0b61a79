"""MIG instances: the profiles of NVIDIA's documentation, and the choice of the start."""

from __future__ import annotations

import itertools

import pytest

from scheduler_feedback.policies.shares.mig_profiles import (
    COMPUTE_SLICES,
    MEMORY_SLICES,
    PROFILES,
    best_start,
    first_start,
    free_starts,
    room_for,
    smallest,
)

ALL = (1 << MEMORY_SLICES) - 1


def test_as_many_instances_of_one_profile_fit_as_nvidia_documents() -> None:
    """NVIDIA's MIG user guide, supported profiles of A100: 'Number of Instances Available'."""
    counts = {}
    for profile in PROFILES.values():
        busy = count = 0
        while found := first_start([busy], profile):
            busy |= dict(profile.masks())[found[1]]
            count += 1
        counts[profile.name] = count
    assert counts == {"1g": 7, "1g+memory": 4, "2g": 3, "3g": 2, "4g": 1, "7g": 1}


def test_no_set_of_instances_has_more_compute_slices_than_the_gpu() -> None:
    instances = [(profile.compute, mask) for profile in PROFILES.values() for _, mask in profile.masks()]
    most = 0
    for count in range(1, 8):
        for chosen in itertools.combinations(instances, count):
            busy = 0
            for _, mask in chosen:
                if busy & mask or mask & ~ALL:
                    break
                busy |= mask
            else:
                most = max(most, sum(compute for compute, _ in chosen))
    assert most == COMPUTE_SLICES


@pytest.mark.parametrize(
    ("compute", "memory", "name"),
    [(1, 0, "1g"), (1, 2, "1g+memory"), (2, 3, "3g"), (4, 0, "4g"), (5, 0, "7g"), (7, 8, "7g"), (0, 0, "1g")],
)
def test_the_smallest_profile_has_enough_compute_and_memory(compute: int, memory: int, name: str) -> None:
    found = smallest(compute, memory)
    assert found is not None and found.name == name


def test_no_profile_is_larger_than_the_gpu() -> None:
    assert smallest(8) is None and smallest(1, 9) is None


def test_an_instance_starts_only_where_all_of_its_slices_are_free() -> None:
    assert free_starts(0b00001000, PROFILES["2g"]) == [0, 4]
    assert free_starts(0b00001000, PROFILES["3g"]) == [4]
    assert free_starts(0b00001000, PROFILES["4g"]) == []
    assert free_starts(ALL, PROFILES["1g"]) == []


def test_room_counts_compute_slices_of_typical_instances() -> None:
    assert room_for(0, {"3g": 1.0}) == 6.0
    assert room_for(0b1, {"3g": 0.5, "1g": 0.5}) == 0.5 * 3 + 0.5 * 6


def test_a_small_instance_leaves_room_for_large_ones() -> None:
    demand = {"4g": 0.5, "1g": 0.5}
    assert first_start([0], PROFILES["1g"]) == (0, 0)
    assert best_start([0], PROFILES["1g"], demand) == (0, 4), "start 0 would block a 4g"
    assert best_start([0, 0b10000], PROFILES["1g"], demand) == (1, 5), "the GPU that is in use"
    assert best_start([0b1111, 0], PROFILES["3g"], demand) == (0, 4)
    assert best_start([0b1], PROFILES["4g"], demand) is None and first_start([0b1], PROFILES["4g"]) is None


def test_of_two_gpus_with_equal_loss_the_fuller_one_is_used() -> None:
    assert best_start([0b1, 0b111], PROFILES["1g"], {"1g": 1.0}) == (1, 3)
