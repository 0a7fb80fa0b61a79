"""Mutants of the Kubernetes backend, except its attempts, binding and marks (see ``backends.py``)."""

from benchmarks.mutants.mutant import Mutant

_K = "tests/kubernetes/test_"
_INCOMPLETE = (_K + "incomplete.py",)
_RIGHTS = (_K + "rights.py",)
_WRITING = (_K + "writing.py",)
_CACHE = (_K + "informer_cache.py",)
_CLIENT = (_K + "client.py",)
_EXEC = (_K + "exec_credentials.py",)
_KUBECONFIG = (_K + "kubeconfig.py",)
_WATCH = (_K + "watch.py",)
_BACKEND = (_K + "backend.py",)
_LIFECYCLE = (_K + "attempt_lifecycle.py",)
_TRANSLATE = (_K + "translate.py",)

_CLUSTER = (_K + "cluster_backend.py",)

MUTANTS = (
    Mutant(
        "backends.kubernetes.published.advice:accusations_of", "node.state is NodeState.QUARANTINE and", "", _WRITING
    ),
    Mutant("backends.kubernetes.published.advice:accusations_of", "verdict.kind not in ACCUSING or", "", _WRITING),
    Mutant("backends.kubernetes.published.advice:Advice.writes", "if pod.metadata.uid in here", "", _WRITING),
    Mutant(
        "backends.kubernetes.published.advice:Advice._rule_writes",
        "if name not in wanted",
        "if name in wanted",
        _WRITING,
    ),
    Mutant("backends.kubernetes.published.advice:Advice._event", "(404, 409)", "(404,)", _WRITING),
    Mutant(
        "backends.kubernetes.advisor:AdvisorBackend._pod_changed",
        "self.external.pod_changed(before, after, time.monotonic())",
        "pass",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.advisor:AdvisorBackend.observe",
        "[*self.cache.seen_changes(), *gangs]",
        "self.cache.seen_changes()",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.cluster_backend:ClusterBackend._policy_of",
        "probes is not None and probes.image",
        "probes is not None",
        _CLUSTER,
    ),
    Mutant(
        "backends.kubernetes.cluster_backend:ClusterBackend._follow_queues",
        "self._queues_version = followed",
        "pass",
        _CLUSTER,
    ),
    Mutant("backends.kubernetes.published.rebuild:resumed", "not job.state.ended and ", "", _BACKEND),
    Mutant("backends.kubernetes.published.rebuild:resumed", " and job.spec.kind is not JobKind.PROBE", "", _BACKEND),
    Mutant("backends.kubernetes.published.rebuild:resumed", "{*cache.groups, *cache.pods}", "cache.pods", _BACKEND),
    Mutant("backends.kubernetes.agents:is_agent", '== "gangwatch"\n        and', '== "gangwatch"\n        or', _CACHE),
    Mutant("backends.kubernetes.agents:AgentFiles.write", "if file.stem not in agents:", "if False:", _CACHE),
    Mutant(
        "backends.kubernetes.agents:AgentFiles.write", "if known.get(node) != address:", "if node not in known:", _CACHE
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend.apply",
        "if attempt.phase is Phase.STOPPING:\n                return",
        "pass",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._scan_gangs",
        "submitted is not None and submitted != gang.job_id",
        "False",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._scan_gangs",
        "events += self._ended_before(key)",
        "pass",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._fill_holes",
        "slots_of(pod) == len(member.ranks)",
        "slots_of(pod)",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._clear_probes",
        "if self._may_act():",
        "if True:",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._adopted",
        "self.cache.assume(by_uid[member.uid], member.node, adopts=True)",
        "pass",
        _BACKEND,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._start",
        "and attempt.phase is Phase.BINDING",
        "",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._fail",
        "await self.undo(attempt)",
        "pass",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._delete",
        "self._cache.unassume(member.uid)",
        "pass",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._all_there",
        "not any(pod.spec.node_name for pod in gang.pods)",
        "True",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle.stop",
        'attempt.phase, attempt.why_stopped = Phase.BOUND, ""',
        'attempt.why_stopped = ""',
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._gone",
        "if not pod.over",
        "",
        _LIFECYCLE,
        hangs=True,
    ),
    Mutant(
        "backends.kubernetes.api_server.client:_refused",
        'and not (code == 429 and "disruption budget" in status.message.lower())',
        "",
        _CLIENT,
    ),
    Mutant(
        "backends.kubernetes.api_server.client:Client._ask",
        "if response.status >= 300:",
        "if response.status > 300:",
        _CLIENT,
    ),
    Mutant("backends.kubernetes.api_server.client:_split", "(rest + chunk)", "chunk", _CLIENT),
    Mutant(
        "backends.kubernetes.api_server.client:Client._response",
        "repeats and response.status == 401",
        "response.status == 403",
        _EXEC,
    ),
    Mutant("backends.kubernetes.api_server.client:Client._response", "access.server_name or None", "None", _KUBECONFIG),
    Mutant(
        "backends.kubernetes.api_server.client:Client._tls",
        "self._plugin_context[0] is not credential",
        "False",
        _EXEC,
    ),
    Mutant(
        "backends.kubernetes.api_server.exec_credentials:ExecPlugin.cached",
        "newest.expires <= self._wall()",
        "newest.expires <= 0",
        _EXEC,
    ),
    Mutant(
        "backends.kubernetes.api_server.exec_credentials:ExecPlugin.obtain",
        "or now - self._renewed_at < _RETRY_SECONDS",
        "",
        _EXEC,
    ),
    Mutant(
        "backends.kubernetes.api_server.exec_credentials:ExecPlugin.obtain",
        "now - self._failed_at < _RETRY_SECONDS",
        "False",
        _EXEC,
    ),
    Mutant(
        "backends.kubernetes.api_server.kubeconfig:from_environment",
        "if path.exists()",
        "",
        _KUBECONFIG,
    ),
    Mutant(
        "backends.kubernetes.api_server.kubeconfig:_named",
        "for path, document in documents:",
        "for path, document in reversed(documents):",
        _KUBECONFIG,
    ),
    Mutant(
        "backends.kubernetes.api_server.kubeconfig:_access",
        "and not token and not token_file",
        "",
        _KUBECONFIG,
    ),
    Mutant(
        "backends.kubernetes.api_server.api_connection:Connection._guarded",
        "await asyncio.gather(before, return_exceptions=True)",
        "pass",
        _WATCH,
    ),
    Mutant(
        "backends.kubernetes.api_server.api_connection:Connection._guarded",
        "if self._tasks.get(key) is asyncio.current_task():",
        "if True:",
        _WATCH,
    ),
    Mutant(
        "backends.kubernetes.api_server.api_connection:Connection.check",
        "if self._failure is not None:",
        "if False:",
        _WATCH,
    ),
    Mutant("backends.kubernetes.objects.constraints:tolerates", "toleration.effect and", "", _TRANSLATE),
    Mutant(
        "backends.kubernetes.objects.constraints:meets",
        "return value not in wanted",
        "return value is not None and value not in wanted",
        _TRANSLATE,
    ),
    Mutant("backends.kubernetes.objects.constraints:_keeps_away", "or taint.key.startswith(OURS)", "", _TRANSLATE),
    Mutant(
        "backends.kubernetes.objects.constraints:why_not",
        "free.get(resource, 0) < count",
        "free.get(resource, 0) <= count",
        _TRANSLATE,
    ),
    Mutant(
        "backends.kubernetes.objects.other_schedulers:ExternalGangs._settle",
        'any(pod.status.phase != "Running"',
        'all(pod.status.phase != "Running"',
        (_K + "advisor_gangs.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.other_schedulers:ExternalGangs.events",
        "< self._settled_seconds",
        "> self._settled_seconds",
        (_K + "advisor_gangs.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.other_schedulers:ExternalGangs._gone",
        "if exit_code != 0 or not gang.pods:",
        "if exit_code != 0:",
        (_K + "advisor_gangs.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.other_schedulers:gang_of",
        'owner.kind != "ReplicaSet"',
        "True",
        (_K + "advisor_gangs.py",),
    ),
    Mutant(
        "backends.kubernetes.published.state_config_map:give_back",
        "min(kept.queue_use_ns, state.now_ns)",
        "kept.queue_use_ns",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.published.state_config_map:StateWriter.once",
        "if text == self._written:",
        "if False:",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.published.state_config_map:kept_of",
        "-sum(item[1])",
        "sum(item[1])",
        (_K + "state_config_map.py",),
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._try",
        "max(lease.spec.lease_duration_seconds, LEASE_SECONDS)",
        "LEASE_SECONDS",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._try", "or self._sighting.version != version", "", _WRITING
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._try",
        "written, self._written = self._written, None",
        "written = self._written",
        _WRITING,
    ),
    Mutant("backends.kubernetes.api_server.lease:Leadership._check_rights", "and not self._missing", "", _RIGHTS),
    Mutant(
        "backends.kubernetes.api_server.rights:missing_rights",
        "if not allowed:",
        "if allowed:",
        _RIGHTS,
    ),
    Mutant(
        "backends.kubernetes.api_server.rights:essential_rights",
        'for kind in watched for verb in ("list", "watch")',
        'for kind in watched for verb in ("list",)',
        _RIGHTS,
    ),
    Mutant(
        "backends.kubernetes.objects.rank_order:rank_key",
        '"" if metadata.label(_GLOBAL_INDEX) else',
        "",
        ("tests/kubernetes/test_owners.py",),
    ),
    Mutant(
        "backends.kubernetes.published.incomplete:what_is_missing",
        "and not declared_keys(group.metadata)",
        "",
        _INCOMPLETE,
    ),
    Mutant("backends.kubernetes.published.incomplete:Since.lasting", "self._since.get(key, now)", "0.0", _INCOMPLETE),
    Mutant(
        "backends.kubernetes.kubernetes_backend:KubernetesBackend._fill_holes",
        "gang is None or gang.job_id != attempt.job_id",
        "gang is None",
        (_K + "backend.py",),
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._live",
        "held is None and self._leading.is_set()",
        "False",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._live",
        "began_ns + int(ACTING_SECONDS * 1e9)",
        "began_ns + int(LEASE_SECONDS * 1e9)",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._live",
        "held is False or not self.may_act()",
        "not self.may_act()",
        _WRITING,
    ),
    Mutant("backends.kubernetes.api_server.lease:Leadership._try", "if self._leading.is_set():", "if False:", _WRITING),
    Mutant(
        "backends.kubernetes.api_server.lease:while_leading",
        "except Exception as error:",
        "except OSError as error:",
        _WRITING,
    ),
    Mutant("backends.kubernetes.attempts.repetition:until_done", "if str(error) != logged:", "if True:", _LIFECYCLE),
    Mutant(
        "backends.kubernetes.attempts.repetition:until_done",
        "except BackendError as error:",
        "except KeyError as error:",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.attempts.gang_stop:_suspend", "except UnreachableError:", "except KeyError:", _LIFECYCLE
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle.start",
        "except Exception as error:",
        "except KeyError as error:",
        _LIFECYCLE,
    ),
    Mutant(
        "backends.kubernetes.published.back_off:BackOff.refused", "min(2 * before, LONGEST_SECONDS)", "before", _WRITING
    ),
    Mutant("backends.kubernetes.published.back_off:BackOff.accepted", "self._paused.pop(key, None)", "pass", _WRITING),
    Mutant(
        "backends.kubernetes.api_server.lease:Leadership._let_go",
        "if lease.spec.holder_identity == self._identity:",
        "if True:",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.objects.rank_names:RankNames._names",
        "place.node != node",
        "False",
        (_K + "rank_names.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.rank_names:RankNames._names",
        "(member.rank - first) % count",
        "member.rank % count",
        (_K + "rank_names.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.rank_names:RankNames._names",
        "max(member.attempt",
        "min(member.attempt",
        (_K + "rank_names.py",),
    ),
    Mutant("backends.kubernetes.objects.objects:Pod.owner", "if owner.controller", "", _BACKEND),
    Mutant("backends.kubernetes.objects.objects:Pod.over", '("Succeeded", "Failed")', '("Succeeded",)', _BACKEND),
    Mutant(
        "backends.kubernetes.attempts.probe_pods:Probes.pod",
        '"nodeName": action.placement[0].node',
        '"nodeName": ""',
        _WRITING,
    ),
    Mutant("backends.kubernetes.attempts.probe_pods:Probes.pod", "count = str(len(slots))", 'count = "1"', _WRITING),
    Mutant("backends.kubernetes.published.publish:worth_writing", "moved_ns * 10 >", "moved_ns >", (_K + "marks.py",)),
    Mutant(
        "backends.kubernetes.published.publish:view_of", "< BEING_BOUND_NS", "<= BEING_BOUND_NS", (_K + "marks.py",)
    ),
    Mutant(
        "backends.kubernetes.published.publish:Publisher._gang_writes",
        "return [*writes, *later]",
        "return [*later, *writes]",
        _WRITING,
    ),
    Mutant("backends.kubernetes.published.publish:Publisher.once", "][:WRITES_A_PERIOD]", "]", _WRITING),
    Mutant(
        "backends.kubernetes.published.publish:Publisher.publish_new",
        "| found.started | found.statuses.keys()",
        "",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.published.publish:Publisher.publish_new", "self._left -= len(writes)", "pass", _WRITING
    ),
    Mutant("backends.kubernetes.published.publish:Publisher._next_pass", "await self.publish_new()", "pass", _WRITING),
    Mutant(
        "backends.kubernetes.published.publish:view_of",
        "is not JobState.PENDING",
        "is JobState.PENDING",
        (_K + "marks.py",),
    ),
    Mutant(
        "backends.kubernetes.published.publish:Publisher._write_status",
        "and not gang.pods[0].spec.node_name",
        "",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.objects.quantities:_asked",
        "_add(sidecars, wanted)\n            wanted = {}",
        "_add(sidecars, wanted)",
        (_K + "quantities.py", _K + "translate.py"),
    ),
    Mutant("backends.kubernetes.published.rebuild:rebuild", "one.present and ", "", _CACHE),
    Mutant("backends.kubernetes.published.rebuild:_begun", "not pod.over and", "", _CACHE),
    Mutant(
        "backends.kubernetes.published.rebuild:_job",
        "(wall_ns(pod.status.start_time) or now_ns",
        "(wall_ns(pod.status.start_time)",
        (_K + "marks.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.gang_stop:forbidden",
        "covered > budget.status.disruptions_allowed",
        "covered >= budget.status.disruptions_allowed",
        (_K + "marks.py",),
    ),
    Mutant(
        "backends.kubernetes.attempts.gang_stop:_may_be_evicted",
        "if not job.ignores_disruptions:",
        "if True:",
        _WRITING,
    ),
    Mutant("backends.kubernetes.attempts.gang_stop:stop", "if member.uid not in left_to_owner", "", _WRITING),
    Mutant("backends.kubernetes.attempts.gang_stop:_evict_at_last", "if error.code != 429:", "if True:", _WRITING),
    Mutant(
        "backends.kubernetes.attempts.gang_stop:owner_has_ended", "job.metadata.uid != owner.uid", "False", _WRITING
    ),
    Mutant("backends.kubernetes.objects.rank_order:rank_key", "not in _FIRST_ROLES", "in _FIRST_ROLES", _TRANSLATE),
    Mutant(
        "backends.kubernetes.objects.translate:gang_of",
        "(not pod.spec.node_name, rank_key(pod))",
        "rank_key(pod)",
        _TRANSLATE,
    ),
    Mutant(
        "backends.kubernetes.objects.translate:beyond",
        "restartable=False, preemptible=False",
        "preemptible=False",
        _TRANSLATE,
    ),
    Mutant("backends.kubernetes.objects.translate:attempt_of", "if pod.spec.node_name else 0", "", _CACHE),
    Mutant("backends.kubernetes.published.uninstall:remove_all", "if is_probe(pod):", "if False:", _WRITING),
    Mutant(
        "backends.kubernetes.published.uninstall:remove_all",
        "_strip(client, path, ATTEMPT, JOB, SLOTS, RANK, BEYOND, WORLD_SIZE)",
        "_strip(client, path, ATTEMPT)",
        _WRITING,
    ),
    Mutant(
        "backends.kubernetes.published.uninstall:_clear_group", "PLACEMENT, EXPECTED_START", "EXPECTED_START", _WRITING
    ),
    Mutant(
        "backends.kubernetes.objects.upstream_groups:as_group",
        "if gang is not None else 0",
        "if gang is not None else 1",
        _CACHE,
    ),
    Mutant("backends.kubernetes.objects.upstream_groups:_levels", "if key}", "}", _CACHE),
    Mutant("backends.kubernetes.objects.volumes:_reach", 'claim.status.phase != "Bound" or', "", _CACHE),
    Mutant(
        "backends.kubernetes.objects.volumes:_reach",
        "if _ONE_POD in (claim.spec.access_modes or ()):",
        "if False:",
        _CACHE,
    ),
    Mutant("backends.kubernetes.api_server.watch:Watch._list_all", "self.objects.keys() - found", "()", _WATCH),
    Mutant("backends.kubernetes.api_server.watch:Watch.run", "if error.code == GONE:", "if False:", _WATCH, hangs=True),
    Mutant(
        "backends.kubernetes.api_server.watch:Watch._take",
        "self._version = item.metadata.resource_version",
        "pass",
        _WATCH,
    ),
    Mutant("backends.kubernetes.api_server.node_usage:NodeUsage.leave_unseen", "and not known.seen", "", _CACHE),
    Mutant(
        "backends.kubernetes.api_server.node_usage:NodeUsage.take",
        "self.leave(uid)",
        "pass",
        _CACHE,
    ),
    Mutant("backends.kubernetes.api_server.node_cache:NodeCache.release", "place in (None, held)", "True", _CACHE),
    Mutant(
        "backends.kubernetes.api_server.informer_cache:InformerCache._reach_again",
        "self.dirty_gangs |= {key, group_of(pod) or key}",
        "pass",
        _CACHE,
    ),
    Mutant("backends.kubernetes.api_server.informer_cache:_declared", "and key not in _WRITTEN_BY_US", "", _CACHE),
)
