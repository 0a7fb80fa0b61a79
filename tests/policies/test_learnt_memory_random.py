"""Random measurements of recurring jobs on shared slots: ``Ordeal`` checks the invariants after every cycle."""

from __future__ import annotations

import random
from collections import Counter

from scheduler_feedback.core.state import Policy, Sharing
from tests.cluster.random_cycles import Ordeal
from tests.cluster.state_machine import Invariants

RULES = [Sharing.FGD, Sharing.BEST_FIT, Sharing.GANDIVA, Sharing.MURI, Sharing.ANTMAN, Sharing.IADEEP]


def grown(seed: int) -> Counter[str]:
    """Let jobs of one class grow on shared slots. Return the number of log entries by kind."""
    chance, machine = random.Random(seed), Invariants()
    policy = Policy(sharing=chance.choice(RULES), learnt_memory=chance.random() < 0.8)
    machine.world = Ordeal((2, 2), policy, 0, 1, 4, 60, 1)
    for _ in range(4):
        peaks = [chance.choice([9, 15, 22, 30, 45]) for _ in range(6)]
        declared = [chance.choice([0, 0, 20]) for _ in range(4)]
        seconds = chance.choice([0.0, 1.0, 15.0])
        machine.recur(declared, chance.choice([4, 9, 15]), peaks, chance.random() < 0.3, seconds)
        machine.run_out_of_memory(chance.randrange(8), shown=chance.random() < 0.7)
    machine.world.end_well()
    return Counter(machine.world.counts)


def test_jobs_that_grow_on_shared_slots_break_no_rule() -> None:
    found: Counter[str] = Counter()
    for seed in range(4):
        found += grown(seed)
    assert found["shares"] and found["separate"] and found["memory"]
