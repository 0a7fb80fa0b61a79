"""Mutants of scheduler_feedback.policies.shares."""

from benchmarks.mutants.mutant import Mutant

_MIG = ("tests/policies/test_mig_profiles.py",)
_SHARES = ("tests/policies/test_gpu_shares.py",)

MUTANTS = (
    Mutant("policies.shares.mig_profiles:free_starts", "if not busy & mask", "if not busy >> start & 1", _MIG),
    Mutant("policies.shares.mig_profiles:room_for", "PROFILES[name].compute * ", "", _MIG),
    Mutant("policies.shares.mig_profiles:best_start", "-busy.bit_count()", "busy.bit_count()", _MIG),
    Mutant("policies.shares.mig_profiles:smallest", "and one.memory >= memory", "", _MIG),
    Mutant("policies.shares.gpu_room:fits", "or request.memory_mib > room.memory_mib", "", _SHARES),
    Mutant("policies.shares.gpu_room:gpu_choices", "able[: request.gpus]", "able[-request.gpus :]", _SHARES),
    Mutant("policies.shares.gpu_room:taken", "room.cpu_milli - sign * request.cpu_milli", "room.cpu_milli", _SHARES),
    Mutant(
        "policies.shares.fragmentation:typical",
        "sum(kept.values()) >= popularity * counts.total()",
        "len(kept) >= popularity * counts.total()",
        _SHARES,
    ),
    Mutant("policies.shares.fragmentation:Fragmentation._milli", "if free < milli", "if free <= milli", _SHARES),
    Mutant(
        "policies.shares.fragmentation:Fragmentation._milli",
        "lost = self._without_gpu * total",
        "lost = 0.0 * total",
        _SHARES,
    ),
    Mutant("policies.shares.placement_rules:best_fit", "min(choices, key", "max(choices, key", _SHARES),
    Mutant(
        "policies.shares.placement_rules:least_fragmentation.rule",
        "score > best[0]",
        "score < best[0]",
        _SHARES,
    ),
    Mutant("policies.shares.share_index:ShareIndex._change", "stale.add(number)", "stale.discard(number)", _SHARES),
    Mutant("policies.shares.share_index:ShareIndex.give", "placement.gpus, -1", "placement.gpus, 1", _SHARES),
)
