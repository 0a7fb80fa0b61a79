"""Jobs that share a resource: counting changed jobs only finds the same as counting all."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.resource_users import ResourceUsers


def shape(job: str, hosts: list[str]) -> Shape:
    nics = tuple(f"{host}/mlx5_0" if host else "" for host in hosts)
    sharing = {"host": tuple(hosts), "nic": nics}
    return Shape(job, 1, np.arange(len(hosts)), tuple(hosts), sharing=sharing)


def shared_of(shapes: list[Shape]) -> set[tuple[str, str]]:
    users: Counter[tuple[str, str]] = Counter(one for each in shapes for one in each.resources)
    return {one for one, count in users.items() if count > 1}


def test_the_shared_resources_equal_those_of_a_whole_count() -> None:
    chosen = random.Random(1)
    every, hosts = ResourceUsers(), ResourceUsers("host")
    shapes: list[Shape] = []
    seen = 0
    for number in range(300):
        before = list(shapes)
        for _ in range(chosen.randrange(3)):
            if shapes and chosen.random() < 0.5:
                shapes.pop(chosen.randrange(len(shapes)))
            else:
                names = ["", *(f"node-{n}" for n in range(9))]
                shapes.append(shape(f"job-{number}", chosen.choices(names, k=chosen.randrange(1, 5))))
        changed = len(before) != len(shapes) or any(a is not b for a, b in zip(before, shapes, strict=True))
        assert every.take(shapes) == hosts.take(shapes) == changed
        expected = shared_of(shapes)
        assert every.shared == expected
        assert hosts.names() == {name for kind, name in expected if kind == "host"}
        seen = max(seen, len(expected))
    assert seen > 5


def test_a_job_whose_shape_changes_is_counted_again() -> None:
    users = ResourceUsers("host")
    one, other = shape("x", ["a", "b"]), shape("y", ["b"])
    users.take([one, other])
    assert users.names() == {"b"}
    users.take([shape("x", ["a"]), other])
    assert users.names() == set()
    users.take([])
    assert not users._users
