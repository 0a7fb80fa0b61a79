"""The list of mutants, by package."""
from benchmarks.mutants.mutant import Mutant
MUTANTS: tuple[Mutant, ...] = ()
def tests_of(mutant: Mutant) -> tuple[str, ...]:
    return mutant.tests
