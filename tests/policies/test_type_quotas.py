"""Quotas by GPU type: queues own a part of each type, trade these parts where both gain, and get them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event, NodeSeen, PolicySet, Submitted
from scheduler_feedback.core.job import JobSpec, StopReason
from scheduler_feedback.core.state import Estimates, Order, Policy, Queue, State, TypeQuotas, TypeTrade
from scheduler_feedback.policies.gpu_types import type_trades
from scheduler_feedback.policies.gpu_types.type_quotas import sentence
from scheduler_feedback.policies.gpu_types.type_trades import Owner, keeps, own_slots, trade
from scheduler_feedback.policies.index.scheduling_index import index_of

SECOND = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND
SPEEDS = {"vision": {"V100": 1.25, "K80": 1.0}, "nlp": {"V100": 5.0, "K80": 1.0}}
POLICY = Policy(
    order=Order.FAIR,
    preempt=True,
    estimates=Estimates.LIMIT,
    preempt_gain=1e9,  # so that only quotas cause stops
    queues=(Queue("vision", quota=8), Queue("nlp", quota=8)),
    throughput=SPEEDS,
    type_quotas=TypeQuotas.TRADED,
)


class Cluster:
    """Two nodes of four V100 and two of four K80, of which each queue owns half."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.state = State(policy=policy)
        self.now_ns = BEGIN_NS
        self.started: dict[str, StartGang] = {}
        self.texts: list[str] = []
        self.cycle(*(NodeSeen(f"{kind}-{n}", 4, gpu_type=kind) for kind in ("V100", "K80") for n in range(2)))

    def cycle(self, *events: Event) -> cycle.Outcome:
        outcome = cycle.run(self.state, events, self.now_ns)
        self.texts += [entry.text for entry in outcome.entries]
        started = [action for action in outcome.actions if isinstance(action, StartGang)]
        self.started |= {one.job_id: one for one in started}
        if started:
            cycle.run(self.state, [AttemptRunning(one.job_id, one.attempt, ()) for one in started], self.now_ns)
        return outcome

    def submit(self, queue: str, count: int, ranks: int = 1, **spec: Any) -> list[str]:
        names = [f"{queue}-{len(self.state.jobs) + n}" for n in range(count)]
        fields = {"restartable": True, "preemptible": True, "grace_seconds": 0.0, "time_limit_seconds": 1e5} | spec
        jobs = [JobSpec(name, ("train",), ranks, queue=queue, workload=queue, **fields) for name in names]
        self.cycle(*(Submitted(job.name, job) for job in jobs))
        return names

    def held(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self.state.jobs.values():
            if job.spec.queue == queue and job.state.holds_slots and job.stop_reason is None:
                for rank in job.ranks:
                    kind = self.state.nodes[rank.slot.node].gpu_type
                    found[kind] = found.get(kind, 0) + 1
        return found

    def later(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)


def full(policy: Policy = POLICY) -> Cluster:
    """Return a cluster with more jobs of both queues than slots."""
    cluster = Cluster(replace(policy, trade_seconds=0.0))
    cluster.submit("vision", 20)
    cluster.submit("nlp", 20)
    return cluster


def test_each_queue_owns_a_part_of_every_type() -> None:
    assert own_slots({"a": 6, "b": 3}, {"K80": 6, "V100": 3}) == {
        "a": {"K80": 4, "V100": 2},
        "b": {"K80": 2, "V100": 1},
    }
    found = own_slots({"a": 1, "b": 1, "c": 1}, {"K80": 2, "V100": 1})
    assert all(sum(one.values()) == 1 for one in found.values())
    assert sum(one["V100"] for one in found.values()) == 1
    halved = own_slots({"a": 8, "b": 8}, {"K80": 4, "V100": 4})
    assert halved == {"a": {"K80": 2, "V100": 2}, "b": {"K80": 2, "V100": 2}}, "quotas beyond the cluster"
    assert own_slots({"a": 3}, {"K80": 4, "V100": 4})["a"] in ({"K80": 2, "V100": 1}, {"K80": 1, "V100": 2})
    assert own_slots({}, {"K80": 4}) == {} and own_slots({"a": 0}, {}) == {"a": {}}


def test_the_queue_with_little_gain_sells_to_the_queue_with_much() -> None:
    seller, buyer = (
        Owner("s", {"f": 1.25, "k": 1.0}, {"f": 4, "k": 4}, 20),
        Owner("b", {"f": 5.0, "k": 1.0}, {"f": 4, "k": 4}, 20),
    )
    (one,) = trade([seller, buyer])
    assert (one.seller, one.buyer, one.fast, one.slow) == ("s", "b", "f", "k")
    assert one == TypeTrade("s", "b", "f", "k", 3, 4), "the largest number that four slow slots pay for"
    assert seller.owned == {"f": 1, "k": 8} and buyer.owned == {"f": 7, "k": 0}


def test_the_second_bidder_sets_the_price() -> None:
    def owners(second: float) -> list[Owner]:
        made = {"s": 1.0, "b": 8.0, "x": second}
        return [Owner(name, {"f": gain, "k": 1.0}, {"f": int(name == "s"), "k": 9}, 99) for name, gain in made.items()]

    assert trade(owners(6.0)) == [TypeTrade("s", "b", "f", "k", 1, 6)]
    assert trade(owners(2.0)) == [TypeTrade("s", "b", "f", "k", 1, 2)]
    assert trade(owners(1.0)) == [TypeTrade("s", "b", "f", "k", 1, 3)], "no second bidder: the geometric mean, 2.8"


def test_a_queue_sells_only_for_slots_that_it_uses() -> None:
    def owners(seller: int, buyer: int) -> list[Owner]:
        return [
            Owner("s", {"f": 1.0, "k": 1.0}, {"f": 4, "k": 4}, seller),
            Owner("b", {"f": 4.0, "k": 1.0}, {"f": 4, "k": 4}, buyer),
        ]

    assert trade(owners(8, 99)) == [TypeTrade("s", "b", "f", "k", 4, 4)], "no more slots than the seller has ranks"
    assert not trade(owners(7, 99))
    assert not trade(owners(0, 99)) and not trade(owners(99, 0)) and not trade(owners(99, 4))
    assert trade(owners(99, 5))[0].fast_slots == 1, "the buyer has five ranks for its fast slots"


def test_alike_queues_do_not_trade() -> None:
    owners = [Owner(name, {"f": gain, "k": 1.0}, {"f": 9, "k": 9}, 99) for name, gain in (("a", 2.0), ("b", 2.1))]
    assert not trade(owners), "a difference of 5 % may be an error of the speeds"


@st.composite
def _owners(draw: st.DrawFn) -> list[Owner]:
    kinds = ("a", "b", "c")
    speeds = st.fixed_dictionaries({kind: st.sampled_from([0.0, 0.3, 1.0, 1.1, 2.0, 5.5]) for kind in kinds})
    slots = st.fixed_dictionaries({kind: st.integers(0, 12) for kind in kinds})
    count = draw(st.integers(2, 5))
    return [Owner(f"q{n}", draw(speeds), draw(slots), draw(st.integers(0, 60))) for n in range(count)]


@given(_owners())
def test_no_queue_does_less_after_trades(owners: list[Owner]) -> None:
    before = [(one.work(), dict(one.owned)) for one in owners]
    trades = trade(owners)
    for owner, (work, owned) in zip(owners, before, strict=True):
        assert owner.work() >= work - 1e-9
        assert all(count >= 0 for count in owner.owned.values())
        assert owner.total() <= max(owner.demand, sum(owned.values())), "it owns no more than it uses"
    for kind in "abc":
        assert sum(one.owned[kind] for one in owners) == sum(owned[kind] for _, owned in before)
    assert not trades or sum(one.work() for one in owners) > sum(work for work, _ in before)


def test_a_division_stays_while_nobody_loses_by_it() -> None:
    owners = [
        Owner("s", {"f": 1.25, "k": 1.0}, {"f": 4, "k": 4}, 20),
        Owner("b", {"f": 5.0, "k": 1.0}, {"f": 4, "k": 4}, 20),
    ]
    shares = {"s": {"f": 1, "k": 8}, "b": {"f": 7}}
    assert keeps(owners, shares) == pytest.approx(1.25 + 8 + 35)
    assert keeps([replace(owners[0], speeds={"f": 3.0, "k": 1.0}), owners[1]], shares) is None, "the seller would lose"
    assert keeps([replace(owners[0], demand=8), owners[1]], shares) is None, "one of its nine slots would be idle"


def test_traded_slots_are_used_and_explained() -> None:
    cluster = full()
    cluster.submit("vision", 1)
    (one,) = cluster.state.type_trades
    assert (one.seller, one.buyer) == ("vision", "nlp")
    assert sentence(one) in cluster.texts
    shares = cluster.state.type_shares
    assert shares["nlp"].get("V100", 0) > 4 and shares["vision"]["K80"] > 4
    for _ in range(30):  # borrowed slots come back
        cluster.later(60)
        stopped = [job for job in cluster.state.jobs.values() if job.stop_reason is StopReason.PREEMPT]
        cluster.cycle(
            *(AttemptEnded(job.job_id, job.attempt, (), all_exited_with=75, signalled=True) for job in stopped)
        )
    assert cluster.held("nlp") == shares["nlp"] and cluster.held("vision") == shares["vision"]
    waiting = next(job for job in cluster.state.jobs.values() if job.state == "pending" and job.spec.queue == "vision")
    why = cycle.why_waits(cluster.state, waiting)
    assert f"; queue vision sold {one.fast_slots} V100 slots to queue nlp for {one.slow_slots} K80 slots" in why


def test_without_trades_each_type_is_halved() -> None:
    cluster = full(replace(POLICY, type_quotas=TypeQuotas.OWN))
    assert cluster.state.type_shares == {"vision": {"V100": 4, "K80": 4}, "nlp": {"V100": 4, "K80": 4}}
    assert not cluster.state.type_trades
    assert any("its quota of V100" in text for text in cluster.texts), "slots of this type come back"


def test_time_alone_changes_no_division() -> None:
    cluster = full()
    before = cluster.state.traded_ns
    cluster.later(1e5)
    cluster.cycle()
    assert cluster.state.traded_ns == before
    cluster.submit("nlp", 1)
    assert cluster.state.traded_ns == cluster.now_ns
    patient = Cluster(replace(POLICY, trade_seconds=600.0))
    patient.submit("vision", 20)
    patient.later(599)
    patient.submit("nlp", 20)
    assert not patient.state.type_trades
    patient.later(2)
    patient.submit("nlp", 1)
    assert patient.state.type_trades


def test_a_change_of_nodes_or_of_the_policy_divides_again() -> None:
    cluster = full()
    cluster.cycle(NodeSeen("K80-2", 4, gpu_type="K80"))
    assert cluster.state.type_slots == {"V100": 8, "K80": 12}
    cluster.cycle(PolicySet(replace(POLICY, type_quotas=TypeQuotas.ALIKE), "ann"))
    cluster.submit("nlp", 1)
    assert not cluster.state.type_shares and not cluster.state.type_trades and not cluster.state.type_slots


def test_a_queue_that_may_not_borrow_does_not_trade() -> None:
    queues = (Queue("vision", quota=8, borrow=False), Queue("nlp", quota=8))
    cluster = full(replace(POLICY, queues=queues))
    cluster.submit("vision", 1)
    assert not cluster.state.type_trades
    assert sum(cluster.held("vision").values()) <= 8


def test_the_price_is_limited_where_a_type_cannot_be_used() -> None:
    one = Owner("a", {"f": 1.0, "k": 0.0}, {"f": 1, "k": 1}, 9)
    assert one.gain("f", "k") == type_trades.MOST_GAIN and one.gain("k", "f") == 1 / type_trades.MOST_GAIN


def test_own_slots_are_used_first() -> None:
    cluster = Cluster(replace(POLICY, type_quotas=TypeQuotas.OWN))
    cluster.submit("vision", 5)
    assert cluster.held("vision") == {"V100": 4, "K80": 1}, "the other V100 are those of nlp"
    types = index_of(cluster.state).shares.types
    assert types is not None and types.total("vision") == 8 and types.total("other") is None
    assert list(types.own_first("vision", 1, (1, 0), ("K80", "V100"))) == [0, 1], "all its V100 are in use"
    assert list(types.own_first("nlp", 1, (1, 0), ("K80", "V100"))) == [1, 0]
    assert list(types.own_first("nlp", 5, (1, 0), ("K80", "V100"))) == [1, 0], "no type has five: the fastest first"
    assert list(types.own_first("vision", 3, (1, 0), ("K80", "V100"))) == [0, 1]
    assert list(types.own_first(None, 1, (1, 0), ("K80", "V100"))) == [1, 0]


def test_only_gangs_within_the_quota_of_a_type_start_by_it() -> None:
    cluster = Cluster(replace(POLICY, type_quotas=TypeQuotas.OWN))
    cluster.submit("vision", 12)
    by_quota = [one for one in cluster.started.values() if "is below its quota" in one.reason]
    assert len(by_quota) == 8 and len(cluster.started) == 12, "four borrow"
    assert cluster.held("vision") in ({"V100": 8, "K80": 4}, {"V100": 4, "K80": 8}, {"V100": 6, "K80": 6})
