"""Mutants of the rules for pipeline stages with one rank."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

_TESTS = ("tests/detectors/test_lone_stage.py",)

MUTANTS = (
    Mutant("detectors.straggler.alarm_case:measure", "if where.alone(rank):", "if False:", _TESTS),
    Mutant("detectors.straggler.alarm_case:measure", "case.alarmed if few else of_node", "of_node", _TESTS),
    Mutant(
        "detectors.straggler.alarm_case:_gain_alone", "max(expected, float(others.max(initial=0.0)))", "0.0", _TESTS
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_input_to_wait_for", "case.where.role[case.rank] != 0", "True", _TESTS
    ),
    Mutant(
        "detectors.straggler.alarm_checks:_has_no_input_to_wait_for", "case.where.role[case.rank] != 0", "False", _TESTS
    ),
    Mutant("detectors.workload.workload_rules:_stages", "if len(members) > 1:", "if True:", _TESTS),
)
