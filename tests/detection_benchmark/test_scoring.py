"""Scoring of verdicts, compared with hand-computed values for one case of the benchmark; and the statistics."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.detection import cells, statistics
from benchmarks.detection.cells import Cell, Staged
from benchmarks.detection.claims import Claim, ClaimLog
from benchmarks.detection.fleet import compose
from benchmarks.detection.ours import claim_of
from benchmarks.detection.score import Truth, judge
from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.sim.world.fault import DISORDERS, ORIGINAL
from scheduler_feedback.sim.world.plan import Workload


def truth(disorder: str = "clock-lock", workload: Workload = "balanced", severity: float = 0.2) -> Truth:
    staged, _ = cells.stage(Cell(disorder, severity, 64, "step", workload, 1, 2.0, 4_000_001), 0)
    return Truth(staged)


def followed(one: Truth) -> Truth:
    one.staged.victim.advance_to(one.staged.end + 5.0)
    one.follow()
    return one


def claim(staged: Staged, after: float = 20.0, **changes: object) -> Claim:
    fault = staged.fault
    rank = fault.ranks[0]
    given: dict[str, Any] = {
        "at": fault.begin + after,
        "key": "one",
        "job": staged.cell.name,
        "kind": "straggler",
        "rank": rank,
        "node": staged.victim.place.nodes[rank],
    }
    return Claim(**(given | changes))


def counts(one: Truth, *claims: Claim, ours: bool = True) -> tuple[int, int, int]:
    found = judge(one, list(claims), ours)
    return found.tp, found.fp, found.fn


def test_the_correct_rank_in_time_is_right_with_a_delay_from_the_onset() -> None:
    one = followed(truth())
    assert one.onset is not None
    found = judge(one, [claim(one.staged)], True)
    assert (found.tp, found.fp, found.fn) == (1, 0, 0)
    assert found.seconds == pytest.approx(one.staged.fault.begin + 20.0 - one.onset)
    assert found.steps is not None and 7 <= found.steps <= 11
    assert found.top1 and found.first == "straggler"


def test_wrong_claims_are_counted_as_wrong() -> None:
    one = followed(truth())
    staged = one.staged
    other = (staged.fault.ranks[0] + 8) % 64
    assert counts(one) == (0, 0, 1)
    assert counts(one, claim(staged, rank=other, node="node-00007")) == (0, 1, 1)
    assert counts(one, claim(staged, after=-30.0)) == (0, 1, 1)
    assert counts(one, claim(staged, after=staged.end - staged.fault.begin + 60.0)) == (0, 1, 1)
    assert counts(one, claim(staged, kind="interference", aggressor="x")) == (0, 1, 1)
    assert counts(one, claim(staged, kind="workload", cause="whole-job")) == (0, 1, 1)
    assert counts(one, claim(staged, kind="unknown")) == (0, 0, 1)
    wrong_too = claim(staged, key="two", rank=other, node="node-00007")
    assert counts(one, claim(staged), wrong_too) == (1, 1, 0)
    both = claim(staged, key="three", kind="health", rank=-1, device=staged.victim.place.gpus[staged.fault.ranks[0]])
    assert counts(one, claim(staged), both) == (1, 0, 0)


def test_a_ramp_starts_when_it_exceeds_a_tenth() -> None:
    staged, _ = cells.stage(Cell("clock-lock", 0.5, 64, "ramp", "balanced", 10, 2.0, 4_000_002), 0)
    one = followed(Truth(staged))
    assert one.onset is not None
    rises_for = 0.5 * staged.fault.seconds
    # A fifth of the ramp, if the job's step time follows the rank's linearly.
    assert 0.05 * rises_for < one.onset - staged.fault.begin < 0.6 * rises_for


def test_interference_must_name_the_aggressor_and_not_hardware() -> None:
    one = followed(truth("uplink-congestion"))
    staged = one.staged
    named = claim(staged, kind="interference", rank=-1, aggressor=staged.fault.aggressor)
    assert counts(one, named) == (1, 0, 0)
    assert counts(one, claim(staged, kind="interference", rank=-1, aggressor="j-other")) == (0, 1, 1)
    assert counts(one, claim(staged)) == (0, 1, 1)


def test_a_faulty_node_may_be_named_directly_or_by_its_ranks() -> None:
    one = followed(truth("cpu-contention"))
    staged = one.staged
    assert counts(one, claim(staged, rank=-1)) == (1, 0, 0)
    assert counts(one, claim(staged, rank=staged.fault.ranks[-1])) == (1, 0, 0)
    assert counts(one, claim(staged, rank=(staged.fault.ranks[0] + 8) % 64, node="elsewhere")) == (0, 1, 1)


def test_a_claim_of_the_real_workload_is_not_wrong() -> None:
    one = followed(truth("clock-lock", "unequal-stages"))
    assert counts(one, claim(one.staged, kind="stage_imbalance", rank=-1)) == (0, 0, 1)
    one = followed(truth("clock-lock", "balanced"))
    assert counts(one, claim(one.staged, kind="stage_imbalance", rank=-1)) == (0, 1, 1)
    one = followed(truth("job-change"))
    assert counts(one, claim(one.staged, kind="workload", rank=-1, cause="whole-job")) == (1, 0, 0)
    assert counts(one, claim(one.staged)) == (0, 1, 1)


def test_lost_agents_are_not_the_fault_of_a_rank() -> None:
    one = followed(truth("agent-loss"))
    assert counts(one) == (0, 0, 0)
    assert counts(one, claim(one.staged)) == (0, 1, 0)


def test_accusing_a_second_faulty_device_is_not_wrong_and_not_right() -> None:
    cell = Cell("thermal", 0.2, 64, "step", "balanced", 10, 2.0, 4_000_004, second="nic-errors")
    one = followed(Truth(cells.stage(cell, 0)[0]))
    staged, second = one.staged, one.staged.second
    assert second is not None and second.ranks != staged.fault.ranks
    late = second.begin + 20.0 - staged.fault.begin
    other = claim(staged, late, key="two", kind="health", rank=second.ranks[0], node="")
    assert counts(one, other) == (0, 0, 1)
    assert counts(one, claim(staged), other) == (1, 0, 0)


def test_published_rules_need_only_the_correct_member() -> None:
    one = followed(truth())
    assert counts(one, claim(one.staged), ours=False) == (1, 0, 0)
    machine = claim(one.staged, rank=-1, level="node")
    assert counts(one, machine, ours=False) == (1, 0, 0)
    assert counts(one, machine) == (0, 1, 1)
    one = followed(truth("job-change"))
    assert counts(one, ours=False) == (0, 0, 1)
    assert counts(one, claim(one.staged), ours=False) == (0, 1, 1)


def test_a_repeated_claim_counts_once() -> None:
    log = ClaimLog()
    log.add([Claim(5.0, "k", "j", "straggler", 3), Claim(9.0, "k", "j", "straggler", 3)])
    log.add([Claim(12.0, "k", "j", "straggler", 3), Claim(1.0, "z", "other", "straggler", 3)])
    assert [one.at for one in log.about("j")] == [5.0]


def test_a_claim_that_may_move_a_job_only_on_repetition_counts_as_moving() -> None:
    log = ClaimLog()
    log.add([Claim(5.0, "k", "j", "straggler", 3), Claim(5.0, "z", "j", "straggler", 4)])
    log.add([Claim(9.0, "k", "j", "straggler", 3, moves=True)])
    assert log.moves == {"k"}


@pytest.mark.parametrize(
    ("kind", "cause", "confidence", "moves"),
    [
        (Kind.STRAGGLER, Cause.CPU_CONTENTION, 0.95, True),
        (Kind.INTERFERENCE, Cause.CPU_CONTENTION, 0.95, True),
        (Kind.STRAGGLER, Cause.UNKNOWN, 0.99, False),
        (Kind.STRAGGLER, Cause.CPU_CONTENTION, 0.85, False),
        (Kind.WORKLOAD, Cause.DATA_LOADING, 0.99, False),
    ],
)
def test_only_confident_verdicts_on_causes_that_a_move_fixes_may_move_a_job(
    kind: Kind, cause: Cause, confidence: float, moves: bool
) -> None:
    verdict = Verdict("v", kind, "j", 1, 3, "n0", cause, confidence, 1.5, 0.1, 0.15, 1, 2)
    assert claim_of(verdict, 5.0).moves is moves


def test_the_grid_has_every_combination_and_no_impossible_job() -> None:
    rows = list(cells.grid())
    assert {row.disorder for row in rows} == set(ORIGINAL)
    slowing = [row for row in rows if not DISORDERS[row.disorder].lasting]
    assert {row.severity for row in slowing} == set(cells.SEVERITIES)
    assert {row.gpus for row in rows} == set(cells.SIZES)
    assert not [row for row in rows if row.workload == "dp2" and row.gpus > 256]
    assert len({row.key for row in rows}) == len(rows)


def test_step_lengths_are_spread_over_the_repeats_of_a_row() -> None:
    row = Cell("clock-lock", 0.2, 64, "step", "balanced", 1, 1.0, 0)
    drawn = [cells.drawn(row, 7, n, np.random.default_rng(n)).step_seconds for n in range(4)]
    edges = [0.3 * (45 / 0.3) ** (k / 4) for k in range(5)]
    assert [sum(low <= one <= high for one in drawn) for low, high in itertools.pairwise(edges)] == [1] * 4


def test_a_seed_reproduces_the_same_cell() -> None:
    one = Cell("uplink-congestion", 0.2, 64, "step", "moe", 1, 2.0, 4_000_003)
    first, second = (cells.stage(one, 64)[0] for _ in range(2))
    assert first.fault == second.fault
    assert first.victim.place.nodes == second.victim.place.nodes


def test_fleets_contain_every_cell_once_and_mass_loss_separately() -> None:
    rows = [Cell(name, 0.2, 256, "step", "balanced", 1, 2.0, n) for n, name in enumerate(DISORDERS)]
    fleets = compose(rows, 3)
    assert sorted(cell.seed for fleet in fleets for cell in fleet.cells) == list(range(len(rows)))
    assert [len(fleet.cells) for fleet in fleets if any(c.disorder == "mass-loss" for c in fleet.cells)] == [1]


def test_wilson_and_poisson_intervals_equal_printed_tables() -> None:
    # Wilson 1927 for 10 of 10 and 5 of 10; Garwood 1936 for 0, 1 and 10 events.
    assert statistics.wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert statistics.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert statistics.wilson(0, 0) is None
    assert statistics.poisson_upper(0) == pytest.approx(-math.log(0.05), abs=1e-6)
    assert statistics.poisson_upper(1) == pytest.approx(4.7439, abs=1e-3)
    assert statistics.poisson_upper(10) == pytest.approx(16.9622, abs=1e-3)
    assert statistics.poisson_upper(1000) == pytest.approx(1053.6, abs=1.5)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    assert statistics.calibration_error([0.9] * 10, [True] * 9 + [False]) == pytest.approx(0.0)
    assert statistics.calibration_error([0.9] * 10, [True] * 5 + [False] * 5) == pytest.approx(0.4)
    assert statistics.calibration_error([], []) is None


def test_scores_are_computed() -> None:
    found = statistics.scores(90, 10, 30)
    assert (found["precision"], found["recall"], found["f1"]) == (0.9, 0.75, 0.8182)
    assert found["f1_interval"][0] < 0.8182 < found["f1_interval"][1]
    assert statistics.scores(0, 0, 0)["precision"] is None


def test_the_logistic_map_finds_the_factor_of_the_odds() -> None:
    random = np.random.default_rng(5)
    log_odds = random.normal(0.5, 1.5, 20_000)
    confidence = 1.0 / (1.0 + np.exp(-log_odds))
    right = random.random(20_000) < 1.0 / (1.0 + np.exp(-(0.6 * log_odds + 0.8)))
    found = statistics.platt(confidence.tolist(), right.tolist())
    assert found == pytest.approx((0.6, 0.8), abs=0.06)
    few = statistics.platt([0.6] * 3, [True] * 3)
    assert few is not None and few[1] < 1.5  # few verdicts are not sufficient evidence
    assert statistics.platt([], []) is None


def test_reliability_is_the_accuracy_at_each_confidence() -> None:
    rows = statistics.reliability([0.95] * 20 + [0.55] * 4, [True] * 19 + [False] + [True, False] * 2)
    assert [(row["confidence"], row["right"], row["told"]) for row in rows] == [(0.55, 0.5, 4), (0.95, 0.95, 20)]
    assert rows[1]["interval"][0] < 0.95 < rows[1]["interval"][1]
