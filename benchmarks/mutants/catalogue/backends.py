"""Mutants of the local, Kubernetes and Slurm backends."""

from benchmarks.mutants.mutant import Mutant

_COMPOSITION = ("tests/controller/test_composition.py",)

MUTANTS = (
    Mutant("backends.backend:Backend.configured", "cls(folder, settings)", "cls(folder, ())", _COMPOSITION),
    Mutant(
        "backends.backend:Backend.effective_policy",
        "self._with_start_timeout(configured)",
        "Policy()",
        ("tests/controller/test_controller.py",),
    ),
    Mutant(
        "backends.registry:make_backend",
        "backend.configured(folder, settings)",
        "backend(folder, settings)",
        _COMPOSITION,
    ),
    Mutant("backends.registry:sections", " if entry.section", "", _COMPOSITION),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:adopt",
        '(pod.over or pod.spec.node_name in ("", node))',
        "True",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:assign",
        "for member in members:\n                cache.unassume(member.uid)",
        "",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:scan_attempt",
        "(pod.over and pod.metadata.deletion_timestamp and exit_code_of(pod))",
        "(pod.over and pod.metadata.deletion_timestamp)",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:rejected",
        " and not pod.status.container_statuses",
        "",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.pod_attempt:renumbered",
        "slot < slots",
        "slot <= slots",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.binding:_is_ours",
        " and pod.metadata.annotation(ATTEMPT) == str(attempt.number)",
        "",
        ("tests/kubernetes/test_binding.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.binding:_is_ours",
        " and pod.spec.node_name == member.node",
        "",
        ("tests/kubernetes/test_binding.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.binding:bind_one",
        "unknown and await _is_ours",
        "unknown or await _is_ours",
        ("tests/kubernetes/test_binding.py",),
    ),
    Mutant(
        "backends.kubernetes.published.marks:_score",
        "out and node.slowdown <= 1.0",
        "out",
        ("tests/kubernetes/test_attempt_odd.py",),
    ),
    Mutant(
        "backends.kubernetes.published.marks:changes",
        'body.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version',
        "pass",
        ("tests/kubernetes/test_marks.py",),
    ),
    Mutant(
        "backends.kubernetes.published.marks:marks_of",
        "node.until_ns if node.probe_job is None else node.since_ns",
        "node.until_ns",
        ("tests/kubernetes/test_marks_of_another_release.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.quantities:_asked",
        "max(most.get(resource, 0), peak)",
        "peak",
        ("tests/kubernetes/test_quantities.py",),
    ),
    Mutant(
        "backends.local.memory_errors:shows_full_device",
        "max(size - TAIL_BYTES, 0)",
        "0",
        ("tests/backends/test_memory_errors.py",),
    ),
    Mutant(
        "backends.local.memory_errors:shows_full_device",
        "os.O_NOFOLLOW | ",
        "",
        ("tests/backends/test_memory_errors.py",),
    ),
    Mutant(
        "backends.local.local_backend:LocalBackend._check",
        "or places != spec.ranks",
        "",
        ("tests/backends/test_local_backend.py",),
    ),
    Mutant(
        "backends.local.local_backend:LocalBackend._find_strays",
        "known = {*held, *self._strays}",
        "known = {*self._strays}",
        ("tests/backends/test_local_backend.py",),
    ),
    Mutant(
        "backends.local.local_backend:LocalBackend._stop",
        "self._abort_unknown(action.job_id, action.attempt)",
        "",
        ("tests/backends/test_local_backend.py",),
    ),
    Mutant(
        "backends.local.attempt_files:decision",
        "GO if word == GO else ABORT",
        "ABORT if word == ABORT else GO",
        ("tests/backends/test_attempt_records.py",),
    ),
    Mutant(
        "backends.slurm.consent:Consents.known",
        "declared if not _needs_script(job)",
        "OptIn(True) if not _needs_script(job)",
        ("tests/slurm/test_opt_in.py",),
    ),
    Mutant(
        "backends.slurm.slurm_backend:SlurmBackend._events_of",
        "job.restarts > attempt or job.waits",
        "job.restarts > attempt",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.slurm_backend:SlurmBackend.apply",
        "if refusal and action.why is not StopReason.CANCEL:",
        "if False:",
        ("tests/slurm/test_opt_in.py",),
    ),
    Mutant(
        "backends.slurm.node_updates:NodeUpdater._make",
        "del touched.drained[name]",
        "pass",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.node_updates:NodeUpdater._too_many",
        "len(self._changed_at) < most",
        "len(self._changed_at) <= most",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.requeue_state:Moves._no_room",
        "if moving and moving + len",
        "if moving + len",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.requeue_state:Moves._no_room",
        "len(self._began_at) >= most",
        "len(self._began_at) > most",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.parsing.opt_in:_seconds",
        "if not 0 <= seconds <=",
        "if not seconds <=",
        ("tests/slurm/test_parse.py",),
    ),
    Mutant(
        "backends.slurm.parsing.opt_in:of_comment",
        'if "restartable" not in values:\n        return OptIn()',
        "",
        ("tests/slurm/test_opt_in.py",),
    ),
    Mutant(
        "backends.slurm.node_plan:_Drains.full",
        "self._room.get(name, 0) < 1",
        "self._room.get(name, 0) < 0",
        ("tests/slurm/test_plan.py",),
    ),
    Mutant(
        "backends.slurm.node_plan:_exclusions",
        "of_comment(job.comment).restartable and job.least_nodes > 1",
        "job.least_nodes > 1",
        ("tests/slurm/test_plan.py",),
    ),
    Mutant(
        "backends.slurm.requeue:Requeue._release_place",
        "if moving is None or not moving.kept:",
        "if moving is None or moving.kept:",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.requeue:Requeue._requeue",
        ".restarts == self._attempt:",
        ".restarts <= self._attempt + 1:",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.requeue:Requeue._run", "if await self._frozen():", "if False:", ("tests/slurm/test_requeue.py",)
    ),
    Mutant(
        "backends.slurm.requeue:Requeue._run",
        "{*job.excluded, *avoided}):",
        "{*avoided}):",
        ("tests/slurm/test_requeue.py",),
    ),
    Mutant(
        "backends.slurm.slurm_names:external_job",
        "restartable=opted.restartable and job.batch and job.requeue",
        "restartable=job.batch and job.requeue",
        ("tests/slurm/test_opt_in.py",),
    ),
    Mutant(
        "backends.slurm.slurm_names:why_not",
        'if not opted.restartable:\n        return "it has not opted in"',
        "",
        ("tests/slurm/test_opt_in.py",),
    ),
)
