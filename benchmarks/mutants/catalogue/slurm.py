"""Mutants of the Slurm backend, except its plan, moves and opt-in (see ``backends.py``)."""

from benchmarks.mutants.mutant import Mutant

_S = "tests/slurm/test_"
_PARTS = (_S + "small_parts.py",)
_PROBING = (_S + "probing.py",)
_NAMES = ("tests/security/test_slurm_names.py",)
_CONSENT = ("tests/security/test_slurm_consent.py",)
_PARSE = (_S + "small_parts.py", _S + "parse.py")

MUTANTS = (
    Mutant(
        "backends.slurm.agent_announcements:Announcements.write",
        "self._written - wanted",
        "self._written & wanted",
        _PARTS,
    ),
    Mutant("backends.slurm.agent_announcements:Announcements.write", "wanted - self._written", "wanted", _PARTS),
    Mutant("backends.slurm.agent_announcements:Announcements._write", '.replace("{node}", name)', "", _PARTS),
    Mutant("backends.slurm.cycle_queries:Cycle.frozen", "state.frozen, True", "state.frozen, False", _PARTS),
    Mutant("backends.slurm.cycle_queries:Cycle.asked", ", ANSWER_SECONDS)", ", 100 * ANSWER_SECONDS)", _PARTS),
    Mutant("backends.slurm.slurm_audit:Audit.write", 'outcome.partition(":")[0]', "outcome", _PARTS),
    Mutant("backends.slurm.slurm_audit:Audit.write", " | os.O_APPEND", "", _PARTS),
    Mutant("backends.slurm.slurm_audit:lines", "continue", "return", _PARTS),
    Mutant("backends.slurm.slurm_commands:Commands.jobs", "< JSON_JOBS", "<= JSON_JOBS", _PARTS),
    Mutant("backends.slurm.slurm_commands:Commands.nodes", "version < JSON_NODES", "version <= JSON_NODES", _PARTS),
    Mutant(
        "backends.slurm.slurm_commands:Commands.__init__",
        'self._environment.pop("SLURM_TIME_FORMAT", None)',
        "pass",
        _PARTS,
    ),
    Mutant("backends.slurm.slurm_commands:Commands.job", 'if "Invalid job id" in str(error):', "if True:", _PARTS),
    Mutant("backends.slurm.slurm_commands:Commands.job", "if attempt != _attempt(job):", "if True:", _PARTS),
    Mutant("backends.slurm.slurm_commands:Commands.__init__", ', "TZ": "UTC"', "", _PARTS),
    Mutant(
        "backends.slurm.slurm_commands:Commands._jobs_in_columns", "doubtful[:DOUBTFUL_A_LISTING]", "doubtful", _NAMES
    ),
    Mutant("backends.slurm.parsing.columns:records", ".ljust(RECORD_BYTES)", "", _PARTS),
    Mutant("backends.slurm.parsing.columns:jobs", "place is None and (job.runs or job.waits)", "False", _NAMES),
    Mutant("backends.slurm.parsing.columns:places", "if number not in twice", "", _NAMES),
    Mutant("backends.slurm.parsing.columns:_Fields.span", "(days * 24 + hours)", "(days + hours)", _PARTS),
    Mutant("backends.slurm.parsing.columns:_Fields.exit_code", "128 + int(found[2]) if int(found[2]) else", "", _PARTS),
    Mutant("backends.slurm.parsing.columns:_Fields.count", "if value >= _UNSET:", "if False:", _PARTS),
    Mutant("backends.slurm.consent:is_another", "job.user != user or", "", _CONSENT),
    Mutant("backends.slurm.consent:is_another", "job.restarts == attempt and", "", (_S + "requeue.py",)),
    Mutant("backends.slurm.consent:Consents._of_script", "and found[0][0] == job.user", "", _CONSENT),
    Mutant("backends.slurm.requeue:Requeue._requeue", "await self._allowed(job)", "pass", _CONSENT),
    Mutant(
        "backends.slurm.node_updates:NodeUpdater._stale", "not of_comment(job.comment).restartable", "False", _CONSENT
    ),
    Mutant("backends.slurm.parsing.slurm_objects:Snapshot.is_gone", "and number not in self.unreadable", "", _NAMES),
    Mutant("backends.slurm.parsing.refusals:Refusals.note", "key in self._logged or", "", _NAMES),
    Mutant("backends.slurm.parsing.refusals:Refusals.note", "self.counts[one.kind] += 1", "pass", _NAMES),
    Mutant("backends.slurm.slurm_commands:_read", "size > most", "size >= most", _PARTS),
    Mutant("backends.slurm.parsing.slurm_objects:base_state", "if state not in _ALONE:", "if state in _ALONE:", _PARTS),
    Mutant("backends.slurm.parsing.slurm_objects:SlurmJob.runs", "and not self.completing", "", _PARTS),
    Mutant("backends.slurm.parsing.slurm_objects:SlurmJob.waits", "and not self.completing", "", _PARTS),
    Mutant("backends.slurm.parsing.slurm_objects:SlurmJob.waits_for_room", "and not self.held", "", _PARTS),
    Mutant(
        "backends.slurm.pending_verdicts:PendingVerdicts.free",
        "since < listed_seconds",
        "since <= listed_seconds",
        (_S + "pending_verdicts.py",),
    ),
    Mutant(
        "backends.slurm.pending_verdicts:PendingVerdicts.free",
        "blocked.add(gang)",
        "pass",
        (_S + "pending_verdicts.py",),
    ),
    Mutant(
        "backends.slurm.pending_verdicts:PendingVerdicts.free",
        "now - since < HELD_BACK_SECONDS",
        "True",
        (_S + "pending_verdicts.py",),
    ),
    Mutant("backends.slurm.parsing.gres:wanted", "each * count", "each", _PARTS),
    Mutant("backends.slurm.parsing.gres:indices_of", "int(span[2] or span[1])", "int(span[1])", _PARSE),
    Mutant("backends.slurm.parsing.gres:indices_of", "len(indices) + int(number) - 1", "int(number) - 1", _PARTS),
    Mutant("backends.slurm.parsing.gres:_bounded", "if last >= MOST_GPUS:", "if False:", _PARTS),
    Mutant(
        "backends.slurm.audited_commands:AuditedCommands.do",
        'self.audit.write(action, target, f"failed: {error}", why, command, verdict, evidence)',
        "pass",
        _PARTS,
    ),
    Mutant(
        "backends.slurm.audited_commands:AuditedCommands.do",
        '"done", why, command, verdict, evidence',
        '"done", why, command',
        _PARTS,
    ),
    Mutant("backends.slurm.audited_commands:AuditedCommands.job", "self._job_read(number, found)", "pass", _PARTS),
    Mutant("backends.slurm.parsing.hostlist:expand", "len(names) > MOST", "len(names) >= MOST", _PARTS),
    Mutant("backends.slurm.parsing.hostlist:_expand_one", "0{len(first)}d", "d", _PARSE),
    Mutant("backends.slurm.parsing.hostlist:_expand_one", "int(last) + 1", "int(last)", _PARSE),
    Mutant("backends.slurm.parsing.parse_json:_Fields.number", 'and not value.get("infinite", False)', "", _PARTS),
    Mutant("backends.slurm.parsing.parse_json:_Fields.exit_code", "int(status) >> 8", "int(status)", _PARTS),
    Mutant("backends.slurm.parsing.parse_json:_Fields.job", "None if limit is None else limit * 60", "limit", _PARSE),
    Mutant(
        "backends.slurm.parsing.parse_json:_listed",
        'if errors := _decoded(tree.get("errors", b"null")):',
        'if errors := "":',
        _PARTS,
    ),
    Mutant(
        "backends.slurm.parsing.parse_json:_decoded",
        'msgspec.json.decode(bytes(part).decode("utf-8", "replace"))',
        "{}",
        _NAMES,
    ),
    Mutant("backends.slurm.parsing.parse_json:_listing", "if key_of(record) in records:", "if False:", _NAMES),
    Mutant("backends.slurm.parsing.parse_text:gpus_of_job", "if name in by_node:", "if False:", _PARTS),
    Mutant("backends.slurm.parsing.parse_text:gpus_of_job", "if by_node.keys() == wanted else None", "", _PARTS),
    Mutant(
        "backends.slurm.parsing.parse_text:_node",
        'if "*" in states else set()',
        'if "*" not in states else set()',
        _PARTS,
    ),
    Mutant(
        "backends.slurm.parsing.parse_text:_Line.__init__",
        "if newest in _FREE and match[1] not in _AFTER_FREE:",
        "if False:",
        _PARSE,
    ),
    Mutant(
        "backends.slurm.probe_reservation:Probe._run", 'job.state == "COMPLETED" or job.exit_code', "True", _PROBING
    ),
    Mutant("backends.slurm.probe_reservation:Probe._run", "audited.remember()", "pass", _PROBING),
    Mutant(
        "backends.slurm.probe_reservation:Probe.run",
        'await release(self._audited, self.node, "its probe has ended")',
        "pass",
        _PROBING,
    ),
    Mutant("backends.slurm.probe_reservation:Probes.take_up", "if not any(", "if any(", _PROBING),
    Mutant(
        "backends.slurm.probe_reservation:release",
        'if "Requested reservation is invalid" not in str(error):',
        "if False:",
        _PROBING,
    ),
    Mutant(
        "backends.slurm.changed_objects:read",
        "> version_key(FORMATS.newest)",
        "< version_key(FORMATS.newest)",
        (_S + "changed_objects.py",),
    ),
    Mutant("backends.slurm.changed_objects:read", "return Touched()", "raise", (_S + "changed_objects.py",)),
    Mutant("backends.slurm.changed_objects:write", "temporary.replace(path)", "pass", (_S + "changed_objects.py",)),
    Mutant(
        "backends.slurm.desired_state:desired_state_of",
        "node.state is not NodeState.HEALTHY",
        "node.state is NodeState.QUARANTINE",
        _PARTS,
    ),
    Mutant("backends.slurm.desired_state:avoided_by", "{*named, *doubtful}", "{*doubtful}", _PARTS),
    Mutant("backends.slurm.desired_state:_advice", "verdict.kind in ACCUSING and", "", _PARTS),
    Mutant("backends.slurm.desired_state:_moves", "and job.attempt == decision.attempt", "", _PARTS),
    Mutant(
        "backends.slurm.desired_state:evidence_of",
        "-abs(one.log_likelihood_ratio)",
        "-one.log_likelihood_ratio",
        _PARTS,
    ),
)
