"""Mutants of MIG instances: profiles, placement, words, and the instances of the local backend."""

from benchmarks.mutants.mutant import Mutant

_MIG = ("tests/policies/test_mig.py",)
_LOCAL = ("tests/backends/test_mig_instances.py",)

MUTANTS = (
    Mutant("core.mig:MigProfile.mask", "<< start", "<< 0", _MIG),
    Mutant("core.mig:named", "one.name == name", "True", _MIG),
    Mutant("policies.mig.starts:free_starts", "if not busy & profile.mask(start)", "if not busy >> start & 1", _MIG),
    Mutant("policies.mig.starts:room_for", "* one.compute ", "", _MIG),
    Mutant("policies.mig.starts:best_start", "min(found)", "max(found)", _MIG),
    Mutant("policies.mig.instances:_place", "busy[chosen] |= profile.mask(start[1])", "pass", _MIG),
    Mutant("policies.mig.instances:_idle", "& ~kept.get(node, 0)", "", _MIG),
    Mutant("policies.mig.instances:laid_out", "busy[slot] |= profile.mask(start[1])", "pass", _MIG),
    Mutant("policies.mig.demand:note_instances", "+ job.spec.ranks", "", _MIG),
    Mutant("policies.mig.demand:note_instances", "weight / 2", "weight", _MIG),
    Mutant("policies.mig.words:refused", "spec.ranks > most", "False", _MIG),
    Mutant("policies.mig.words:refused", "not state.policy.mig", "False", _MIG),
    Mutant("backends.local.mig_instances:MigInstances.create", "[: len(found)]", "[:0]", _LOCAL),
    Mutant("backends.local.mig_instances:MigInstances.destroy", "left.append((gpu, start))", "pass", _LOCAL),
    Mutant("backends.local.mig_instances:MigInstances._profiles_of", "not in own", "in own", _LOCAL),
)
