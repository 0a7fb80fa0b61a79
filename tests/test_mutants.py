"""Catalogue of mutants: it applies to the current product, and mutants that survive are reported."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutants.catalogue import MUTANTS, named_tests
from benchmarks.mutants.mutant import PRODUCT, Mutant, NotApplicableError, apply, find
from benchmarks.mutants.runner import run, shares

ROOT = Path(__file__).resolve().parents[1]

COMPLETE = ("core", "policies", "detectors", "backends")
"""Packages of scheduler_feedback in which each module has at least two mutants."""

WITHOUT_LOGIC = {
    "backends.kubernetes.kubernetes_settings": "a dataclass",
    "backends.slurm.section": "a struct",
    "core.actions": "structs",
    "core.explanation": "dataclasses",
    "core.power": "structs",
    "core.verdict": "enums, dataclasses and constants",
    "detectors.context": "dataclasses",
    "detectors.health.suspicion": "a dataclass",
    "detectors.ablation_switches": "a dataclass",
    "detectors.workload.workload_claim": "a dataclass and constants",
}
"""Modules that need no mutants, and their contents."""


def test_every_mutant_applies_to_the_current_product() -> None:
    """A mutant whose code was moved would count as killed, or would never be tried."""
    for mutant in MUTANTS:
        apply(mutant, ROOT)
        for test in named_tests(mutant):
            assert (ROOT / test.partition("::")[0]).exists(), mutant.title
    edits = [(mutant.place, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(edits) == len(set(edits)) >= 100


def modules_of(package: str) -> list[Path]:
    """Return the package's modules that have code. A module with only a docstring does not count."""
    found = sorted((ROOT / PRODUCT / package).rglob("*.py"))
    return [path.relative_to(ROOT) for path in found if len(ast.parse(path.read_text()).body) > 1]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PRODUCT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("package", COMPLETE)
def test_every_module_with_logic_has_two_mutants(package: str) -> None:
    """New modules need mutants. If a module is renamed, the names that it defines identify it."""
    paths = {mutant.module: find(mutant, ROOT) for mutant in {one.module: one for one in MUTANTS}.values()}
    broken = Counter(name_of(paths[one.module]) for one in MUTANTS if paths[one.module].parts[0] == PRODUCT)
    modules = {name_of(path) for path in modules_of(package)}
    few = {name: broken[name] for name in sorted(modules - WITHOUT_LOGIC.keys()) if broken[name] < 2}
    assert not few, "run `python -m benchmarks.mutants.suggest MODULE`"


def test_a_module_without_mutants_has_no_function() -> None:
    """A listed module must not get code later without getting mutants."""
    modules = {name_of(path): path for package in COMPLETE for path in modules_of(package)}
    assert modules.keys() >= WITHOUT_LOGIC.keys(), "a listed module no longer exists"
    for name in WITHOUT_LOGIC:
        tree = ast.parse((ROOT / modules[name]).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert not [function.name for function in functions if not has_empty_body(function)], name


def has_empty_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the body has only a docstring and '...', as in a protocol."""
    return all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in function.body)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"place": "backends.local.attempt_files:no_such"}, "nowhere"),
        ({"old": "no such fragment"}, "0 times"),
        ({"new": "GO if ("}, "no Python"),
        ({"new": "unheard_of if word == GO else ABORT"}, "unknown name unheard_of"),
        ({"new": "GO  if word == GO else ABORT"}, "changes nothing"),
    ],
)
def test_a_mutant_that_cannot_be_applied_is_an_error_and_not_a_kill(changed: dict[str, str], message: str) -> None:
    sound = Mutant(
        "backends.local.attempt_files:decision", "GO if word == GO else ABORT", "ABORT if word == ABORT else GO"
    )
    apply(sound, ROOT)
    with pytest.raises(NotApplicableError, match=message):
        apply(dataclasses.replace(sound, **changed), ROOT)


def test_each_mutant_runs_once_and_equal_tests_share_a_process() -> None:
    divided = shares(MUTANTS, 3)
    assert sorted(index for share in divided for index, _ in share) == list(range(len(MUTANTS)))
    of_tests = [{named_tests(mutant) for _, mutant in share} for share in divided]
    assert not of_tests[0] & of_tests[1] and not of_tests[1] & of_tests[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_mutant_is_killed_only_if_a_test_fails() -> None:
    noticed = Mutant(
        "backends.local.attempt_files:decision", "GO if word == GO else ABORT", "ABORT if word == ABORT else GO",
        ("tests/backends/test_attempt_records.py",),
    )  # fmt: skip
    passed_over = dataclasses.replace(noticed, tests=("tests/detectors/test_medians.py",))
    missing = dataclasses.replace(noticed, old="no such fragment")
    outcomes = [(one.mutant, one.outcome) for one in run([noticed, passed_over, missing], 1)]
    assert set(outcomes) == {(noticed, "killed"), (passed_over, "survived"), (missing, "error")}
