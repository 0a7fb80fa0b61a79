"""The catalogue of mutants applies to the product as it is, and a break that nothing notices is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.mutants.catalogue import MUTANTS, named_tests
from benchmarks.mutants.mutant import Mutant, NotApplicableError, apply
from benchmarks.mutants.runner import run, shares

ROOT = Path(__file__).resolve().parents[1]


def test_every_mutant_applies_to_the_product_as_it_is() -> None:
    """A moved fragment would otherwise be counted as killed, or never tried."""
    for mutant in MUTANTS:
        apply(mutant, ROOT)
        for test in named_tests(mutant):
            assert (ROOT / test.partition("::")[0]).exists(), mutant.title
    edits = [(mutant.place, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(edits) == len(set(edits)) >= 100


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"place": "backends.records:no_such"}, "nowhere"),
        ({"old": "no such fragment"}, "0 times"),
        ({"new": "GO if ("}, "no Python"),
        ({"new": "unheard_of if word == GO else ABORT"}, "unknown name unheard_of"),
        ({"new": "GO  if word == GO else ABORT"}, "changes nothing"),
    ],
)
def test_what_cannot_be_applied_is_an_error_and_no_kill(changed: dict[str, str], said: str) -> None:
    sound = Mutant("backends.records:decision", "GO if word == GO else ABORT", "ABORT if word == ABORT else GO")
    apply(sound, ROOT)
    with pytest.raises(NotApplicableError, match=said):
        apply(dataclasses.replace(sound, **changed), ROOT)


def test_each_is_judged_once_and_those_of_the_same_tests_by_one_process() -> None:
    divided = shares(MUTANTS, 3)
    assert sorted(index for share in divided for index, _ in share) == list(range(len(MUTANTS)))
    of_tests = [{named_tests(mutant) for _, mutant in share} for share in divided]
    assert not of_tests[0] & of_tests[1] and not of_tests[1] & of_tests[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_break_is_killed_where_a_test_fails_and_survives_where_none_does() -> None:
    noticed = Mutant(
        "backends.records:decision", "GO if word == GO else ABORT", "ABORT if word == ABORT else GO",
        ("tests/feedback/test_attempt_records.py",),
    )  # fmt: skip
    passed_over = dataclasses.replace(noticed, tests=("tests/feedback/test_medians.py",))
    missing = dataclasses.replace(noticed, old="no such fragment")
    outcomes = [(one.mutant, one.outcome) for one in run([noticed, passed_over, missing], 1)]
    assert set(outcomes) == {(noticed, "killed"), (passed_over, "survived"), (missing, "error")}
