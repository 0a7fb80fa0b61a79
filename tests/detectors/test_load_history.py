"""History of loads on shared resources: values, unknown loads, jobs that come and go, and its memory."""

from __future__ import annotations

import math
import random
import tracemalloc

import numpy as np
import pytest

from scheduler_feedback.detectors.interference.load_history import BlockHistory, LoadHistory
from scheduler_feedback.detectors.interference.shared_resources import Resources
from scheduler_feedback.detectors.resource_users import Resource

HOST, OTHER, UPLINK = ("host", "a"), ("host", "b"), ("uplink", "u")
NAN = math.nan


def shared(users: dict[Resource, str]) -> Resources:
    """Return resources and the jobs that use them, each job named by a letter."""
    return {one: {job: np.zeros(1, np.int64) for job in jobs} for one, jobs in users.items()}


def take(history: LoadHistory, resources: Resources, *loads: float) -> None:
    history.take(np.array(loads), resources)


def test_unknown_loads_stay_as_they_were() -> None:
    history, both = LoadHistory(4), shared({HOST: "xy"})
    for x, y in ((NAN, 1.0), (NAN, NAN), (5.0, 2.0), (NAN, NAN)):
        take(history, both, x, y)
    np.testing.assert_array_equal(history.of("x", HOST), [NAN, NAN, 5.0, 5.0])
    np.testing.assert_array_equal(history.of("y", HOST), [1.0, 1.0, 2.0, 2.0])
    take(history, both, 6.0, 7.0)
    np.testing.assert_array_equal(history.of("x", HOST), [NAN, 5.0, 5.0, 6.0])
    assert history.of("x", UPLINK).tolist() == [0.0] * 4, "never shared"


def test_a_job_has_no_load_before_it_shares_a_resource_and_while_it_does_not() -> None:
    history, both, three = LoadHistory(8), shared({HOST: "xy"}), shared({HOST: "xyz", UPLINK: "xz"})
    take(history, both, 1.0, 2.0)
    take(history, three, 1.0, 2.0, 3.0, 4.0, 5.0)
    take(history, both, 6.0, 7.0)
    take(history, shared({HOST: "xyz"}), 8.0, 9.0, NAN)
    assert history.of("x", HOST).tolist() == [1.0, 1.0, 6.0, 8.0]
    assert history.of("z", HOST).tolist() == [0.0, 3.0, 0.0, 0.0]
    assert history.of("z", UPLINK).tolist() == [0.0, 5.0, 0.0, 0.0]


def test_a_restarted_job_begins_without_load() -> None:
    history, both = LoadHistory(8), shared({HOST: "xy"})
    take(history, both, 1.0, 2.0)
    history.forget("x")
    take(history, both, 3.0, NAN)
    assert history.of("x", HOST).tolist() == [0.0, 3.0]
    assert history.of("y", HOST).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("seed", range(5))
def test_histories_equal_those_of_one_list_for_each_job_and_resource(seed: int) -> None:
    chosen, kept = random.Random(seed), 12
    history, expected, before = LoadHistory(kept), {}, {}
    resources: Resources = {}
    for window in range(60):
        if chosen.random() < 0.3:
            names = [("nic", str(n)) for n in range(40)]
            resources = shared({one: "".join(chosen.sample("abcdef", 3)) for one in chosen.sample(names, 30)})
        if chosen.random() < 0.2:
            gone = chosen.choice("abcdef")
            history.forget(gone)
            expected = {pair: values for pair, values in expected.items() if pair[0] != gone}
            before = {pair: value for pair, value in before.items() if pair[0] != gone}
        pairs = [(job, one) for one, jobs in resources.items() for job in jobs]
        loads = [NAN if chosen.random() < 0.2 else float(chosen.randrange(100)) for _ in pairs]
        history.take(np.array(loads), resources)
        now = dict(zip(pairs, loads, strict=True))
        for pair in pairs:
            expected.setdefault(pair, [0.0] * window)
        for pair, values in expected.items():
            load = now.get(pair, 0.0)
            last = values[-1] if values else NAN
            values.append(last if math.isnan(load) else load)
        for (job, one), values in expected.items():
            np.testing.assert_array_equal(history.of(job, one), values[-kept:], err_msg=f"{window} {job} {one}")


def test_loads_that_are_no_longer_shared_are_kept_for_the_hold_time() -> None:
    """Jobs that follow each other on their nodes share all of them for seconds only."""
    history, both, other = LoadHistory(20, 4), shared({HOST: "xy"}), shared({OTHER: "xy"})
    take(history, both, 1.0, 2.0)
    for window in range(12):
        users = {OTHER: "xy", ("host", str(window)): "vw"}  # other resources change meanwhile
        take(history, shared(users), 3.0, 4.0, 5.0, 6.0)
        known = history.of("x", HOST)
        assert known[0] == (1.0 if window < 4 else 0.0) or window in (4, 5, 6, 7), "freed by one of the next sweeps"
    assert not history.of("x", HOST).any()
    take(history, other, 3.0, 4.0)
    assert history.of("x", OTHER).tolist() == [0.0] + [3.0] * 13, "what is shared all the time stays"


def test_blocks_are_means_of_the_known_windows() -> None:
    blocks, both = BlockHistory(3, 2), shared({HOST: "xy"})
    complete = []
    for end_ns in range(1, 10):
        x = NAN if end_ns == 3 else float(end_ns)
        complete.append(blocks.take(end_ns, np.array([x, NAN]), both))
    assert complete == [False, True] * 4 + [False]
    assert blocks.ends_ns.tolist() == [4, 6, 8]
    assert blocks.loads.of("x", HOST).tolist() == [4.0, 5.5, 7.5]
    assert np.isnan(blocks.loads.of("y", HOST)).all()
    blocks.take(10, np.array([9.0]), shared({OTHER: "x"}))
    assert blocks.loads.of("x", OTHER).tolist() == [0.0, 0.0, 9.0], "the rest of the block is for the new resources"


def test_jobs_that_change_their_neighbours_need_no_more_memory() -> None:
    history = LoadHistory(8)
    for window in range(4_000):
        take(history, shared({("host", str(window)): "xy"}), 1.0, 2.0)
    tracemalloc.start()
    try:
        for window in range(4_000, 8_000):
            take(history, shared({("host", str(window)): "xy"}), 1.0, 2.0)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 20_000
    assert history.of("y", ("host", "7999")).tolist() == [0.0] * 7 + [2.0]
    assert history.of("y", ("host", "7995")).tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_a_load_takes_four_bytes() -> None:
    """A controller of 12,500 nodes has tens of thousands of pairs of a job and a resource, in 720 windows each."""
    resources = shared({("nic", str(n)): "xy" for n in range(1_000)})
    tracemalloc.start()
    try:
        history = LoadHistory(720)
        for _ in range(720):
            history.take(np.ones(2_000), resources)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 1.5 * 4 * 720 * 2_000
