"""The list of mutants, a module for each package."""

from benchmarks.mutants.catalogue import backends, core, detectors, front, policies, survivors
from benchmarks.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *survivors.MUTANTS,
    *core.MUTANTS,
    *detectors.MUTANTS,
    *backends.MUTANTS,
    *front.MUTANTS,
    *policies.MUTANTS,
)


def named_tests(mutant: Mutant) -> tuple[str, ...]:
    """Return the tests that should notice the mutant, as paths or node ids."""
    return mutant.tests
