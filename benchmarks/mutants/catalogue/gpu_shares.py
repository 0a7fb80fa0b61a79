"""Mutants of scheduler_feedback.policies.shares."""

from benchmarks.mutants.mutant import Mutant

_SHARES = ("tests/policies/test_gpu_shares.py",)
_PARTS = ("tests/policies/test_slot_parts.py",)

MUTANTS = (
    Mutant("policies.shares.gpu_room:fits", "or request.memory_mib > room.memory_mib", "", _SHARES),
    Mutant("policies.shares.gpu_room:gpu_choices", "able[: request.gpus]", "able[-request.gpus :]", _SHARES),
    Mutant("policies.shares.gpu_room:taken", "room.cpu_milli - sign * request.cpu_milli", "room.cpu_milli", _SHARES),
    Mutant(
        "policies.shares.fragmentation:most_frequent",
        "covered >= popularity * total",
        "len(kept) >= popularity * total",
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
    Mutant("policies.shares.declared_parts:left_after", "part.share_milli > left.share_milli", "False", _PARTS),
    Mutant("policies.shares.declared_parts:left_after", "FULL if left == whole else None", "FULL", _PARTS),
    Mutant("policies.shares.declared_parts:left_of", "not part.known_on(device_mib)", "False", _PARTS),
    Mutant("policies.shares.slot_parts:SlotParts._compute", "(shared_only and empty)", "shared_only", _PARTS),
    Mutant("policies.shares.slot_parts:SlotParts._compute", "cpu > group.cpu_milli", "False", _PARTS),
    Mutant(
        "policies.shares.slot_parts:SlotParts.touch", "if slot.node in number", "if slot.node not in number", _PARTS
    ),
    Mutant("policies.shares.part_placement:_choose", "pods >= spec.ranks", "True", _PARTS),
    Mutant("policies.shares.part_placement:part_for", "index.plan, job), kept_slots", "index.plan, job), dict", _PARTS),
    Mutant("policies.shares.seen_requests:_count", "row.weight + 1", "row.weight", _PARTS),
    Mutant("policies.shares.seen_requests:note_request", "GROWTH * seen.typical_at", "1e9", _PARTS),
)
