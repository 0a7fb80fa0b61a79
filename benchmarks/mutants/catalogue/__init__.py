"""The list of mutants. Each module lists the mutants of one package, or of a part of one."""

from benchmarks.mutants.catalogue import (
    backends,
    cells,
    core,
    detectors,
    front,
    gpu_shares,
    gpu_types,
    index,
    kubernetes,
    kubernetes_claims,
    kubernetes_gangs,
    local,
    lone_stage,
    mig,
    order,
    own_work,
    policies,
    policies_small,
    power,
    sharing,
    slurm,
    speeds_and_sizes,
    survivors,
)
from benchmarks.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *survivors.MUTANTS,
    *core.MUTANTS,
    *detectors.MUTANTS,
    *lone_stage.MUTANTS,
    *mig.MUTANTS,
    *own_work.MUTANTS,
    *backends.MUTANTS,
    *cells.MUTANTS,
    *local.MUTANTS,
    *kubernetes.MUTANTS,
    *kubernetes_claims.MUTANTS,
    *kubernetes_gangs.MUTANTS,
    *slurm.MUTANTS,
    *front.MUTANTS,
    *index.MUTANTS,
    *policies.MUTANTS,
    *policies_small.MUTANTS,
    *power.MUTANTS,
    *gpu_shares.MUTANTS,
    *gpu_types.MUTANTS,
    *order.MUTANTS,
    *sharing.MUTANTS,
    *speeds_and_sizes.MUTANTS,
)


def named_tests(mutant: Mutant) -> tuple[str, ...]:
    """Return the tests that should fail with the mutant, as paths or node ids."""
    return mutant.tests
