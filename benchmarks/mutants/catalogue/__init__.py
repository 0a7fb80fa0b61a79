"""The list of mutants, a module for each package."""

from benchmarks.mutants.catalogue import backends, front, policies
from benchmarks.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*backends.MUTANTS, *front.MUTANTS, *policies.MUTANTS)


def tests_of(mutant: Mutant) -> tuple[str, ...]:
    """Return the tests that should notice the mutant, as paths or node ids."""
    return mutant.tests
