"""Mutants of owners, elastic gangs and shared nodes on Kubernetes."""

from benchmarks.mutants.mutant import Mutant

_K = "tests/kubernetes/test_"
_OWNERS = (_K + "owners.py",)
_INCOMPLETE = (_K + "incomplete.py",)
_ELASTIC = (_K + "elastic.py",)
_CACHE = (_K + "attempt.py",)
_AGAIN = (_K + "recreated_gangs.py",)
_TRANSLATE = (_K + "translate.py",)
_ROOM = ("tests/policies/test_room_of_started_gangs.py",)
_MOVING = ("tests/policies/test_room_of_moving_gangs.py",)
_GROUPS = ("tests/policies/test_elastic_groups.py",)

MUTANTS = (
    Mutant("backends.kubernetes.attempts.suspension:suspendable", "owner, kind = parent, known", "pass", _OWNERS),
    Mutant("backends.kubernetes.attempts.suspension:_why_not", "pod.metadata.uid not in own and", "False and", _OWNERS),
    Mutant(
        "backends.kubernetes.attempts.suspension:_why_not",
        "not found.spec.shutdown_after_job_finishes",
        "False",
        _OWNERS,
    ),
    Mutant("backends.kubernetes.attempts.gang_stop:_suspend", "if not kind.is_suspended", "if None and", _OWNERS),
    Mutant("backends.kubernetes.attempts.gang_stop:left_suspended", "break", "pass", _OWNERS),
    Mutant("backends.kubernetes.objects.owner_kinds:OwnerKind.suspend", "if self.in_run_policy", "if False", _OWNERS),
    Mutant("backends.kubernetes.objects.owner_kinds:path_of", "owner.api_version or", "", _OWNERS),
    Mutant(
        "backends.kubernetes.objects.rank_order:rank_key", ", part, indices, natural)", ", part, natural)", _TRANSLATE
    ),
    Mutant("backends.kubernetes.objects.translate:is_of_job", "return written == job_id", "return True", _AGAIN),
    Mutant(
        "backends.kubernetes.objects.translate:is_of_job",
        "group is None or not",
        "group is None or True or not",
        _AGAIN,
    ),
    Mutant("backends.kubernetes.attempts.pod_attempt:placement_of", 'read.job not in ("", job_id) or', "", _AGAIN),
    Mutant("backends.kubernetes.attempts.pod_attempt:_left_running", "sizes <=", "True or sizes <=", _AGAIN),
    Mutant("backends.kubernetes.attempts.pod_attempt:continues", "return nodes ==", "return True or nodes ==", _AGAIN),
    Mutant("backends.kubernetes.published.rebuild:_begun", "and not pod.metadata.deletion_timestamp", "", _AGAIN),
    Mutant("backends.kubernetes.kubernetes_backend:KubernetesBackend.resume", "self._keys[job_id] =", "_ =", _AGAIN),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._adopted",
        "if place is None or place.gang == key[0]",
        "",
        _AGAIN,
    ),
    Mutant("backends.kubernetes.objects.declared_keys:declared_keys", "and name not in _WRITTEN", "", _INCOMPLETE),
    Mutant("backends.kubernetes.objects.declared_keys:without_effect", "if name in other:", "if False:", _INCOMPLETE),
    Mutant("backends.kubernetes.published.incomplete:why_not_running", "if not waiting or not", "if not", _INCOMPLETE),
    Mutant("backends.kubernetes.attempts.gang_resize:resize", "and members < change.now", "", _ELASTIC),
    Mutant("backends.kubernetes.attempts.gang_resize:resize", "owner = parent", "break", _ELASTIC),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:scan_attempt",
        "return _failure(attempt)",
        "return _failure(attempt) if attempt.reported else []",
        ("tests/kubernetes/test_attempt.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.owner_sizes:_completions",
        "spec.completions != spec.parallelism",
        "False",
        _ELASTIC,
    ),
    Mutant("backends.kubernetes.objects.owner_sizes:_of_pytorch", "members - others", "members", _ELASTIC),
    Mutant("backends.kubernetes.objects.owner_sizes:_of_ray", "pods[members:]", "()", _ELASTIC),
    Mutant("backends.kubernetes.objects.owner_sizes:_within", "workers < least", "False", _ELASTIC),
    Mutant(
        "backends.kubernetes.objects.owner_sizes:size_change",
        'and owner.metadata.annotation(_KUEUE_ELASTIC) != "true"',
        "",
        _ELASTIC,
    ),
    Mutant("backends.kubernetes.objects.elastic_gangs:bounded", "if not spec.restartable:", "if False:", _ELASTIC),
    Mutant("backends.kubernetes.objects.elastic_gangs:bounded", "min_ranks=least * each", "min_ranks=least", _ELASTIC),
    Mutant("backends.kubernetes.api_server.node_limits:limits_of", "now * one.slots_a_pod", "now", _CACHE),
    Mutant(
        "backends.kubernetes.api_server.node_limits:limits_of",
        "if not limits or free_slots <= 0:",
        "if not limits:",
        _CACHE,
    ),
    Mutant("backends.kubernetes.api_server.node_usage:NodeUsage.free", "free[resource] -= count", "pass", _CACHE),
    Mutant("policies.index.held_slots:HeldSlots._note_start", "or job.state is not JobState.STARTING", "", _ROOM),
    Mutant("policies.index.slot_plan:Plan.pods_left", "pods * count", "count", _ROOM),
    Mutant("policies.queue.placement:most_pods", "plan.pods_left(number, spec.requests)", "None", _ROOM),
    Mutant("policies.index.held_slots:HeldSlots.vacate", "self._leave(job, given)", "pass", _MOVING),
    Mutant("policies.index.held_slots:HeldSlots.stay", "self._leave(job, slots, 0)", "pass", _MOVING),
    Mutant("policies.index.slot_plan:Plan._undo_leave", "del known[key]", "pass", _MOVING),
    Mutant("policies.queue.backfill_scheduling:place_beside", "room.beyond(plan, job.spec)", "[]", _ROOM),
    Mutant("core.job:JobSpec.size_at_most", "ranks - ranks % self.unit", "ranks", _GROUPS),
    Mutant("policies.intake.job_admission:_fixed_groups", "least % first.ranks or", "", _GROUPS),
)
