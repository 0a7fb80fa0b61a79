"""Mutants of claims for devices and of networks on Kubernetes."""

from benchmarks.mutants.mutant import Mutant

_K = "tests/kubernetes/test_"
_CACHE = (_K + "device_cache.py",)
_ALLOCATION = (_K + "device_allocation.py",)
_SELECTORS = (_K + "device_selectors.py",)
_BINDING = (_K + "claim_binding.py",)
_INFORMER = (_K + "informer_cache.py",)
_D = "backends.kubernetes.devices."

MUTANTS = (
    Mutant(_D + "counters:Left.has", "self._left.get(key, 0) >= used", "True", _CACHE),
    Mutant(_D + "counters:Left.give_back", "self._left[key] += used", "pass", _CACHE),
    Mutant(
        _D + "counters:Left.together", "key=lambda one: shares[id(one)]", "key=lambda one: -shares[id(one)]", _CACHE
    ),
    Mutant(_D + "device_cache:DeviceCache._count", "if not self._is_taken(one.id)", "", _CACHE),
    Mutant(_D + "allocation:_Search._run", "self._counters.take(device)", "pass", _CACHE),
    Mutant(_D + "device_objects:ResourceClaim.consumers", "one.uid for", "one.name for", (*_BINDING, *_CACHE)),
    Mutant(
        _D + "device_objects:claim_path",
        "{namespace}/resourceclaims/{name}",
        "{name}/resourceclaims/{namespace}",
        _BINDING,
    ),
    Mutant("backends.kubernetes.objects.networks:networks_of", "namespace or own", "own", _INFORMER),
    Mutant(
        "backends.kubernetes.api_server.node_cache:NodeCache.node_changed",
        "self._stale.add(key)",
        "pass",
        _INFORMER,
    ),
    Mutant(
        "backends.kubernetes.objects.annotations:flag_of",
        'if text not in ("true", "false"):',
        "if False:",
        (_K + "translate.py",),
    ),
    Mutant(
        "backends.kubernetes.objects.annotations:seconds_of",
        "if not 0 <= seconds < 1e9:",
        "if False:",
        (_K + "translate.py",),
    ),
    Mutant(_D + "device_cache:DeviceCache._is_taken", "or device in self._pending", "", _CACHE),
    Mutant(_D + "device_cache:DeviceCache._is_taken", "device in self._taken or", "", _CACHE),
    Mutant(_D + "device_cache:DeviceCache.assume", "and not adopts", "", _CACHE),
    Mutant(_D + "device_cache:DeviceCache._drop", "self._pending -= assumed.devices", "pass", _CACHE),
    Mutant(_D + "device_cache:DeviceCache._is_of_others", "and not self._is_ours(one.uid)", "", _CACHE),
    Mutant(_D + "device_cache:DeviceCache._pod_claim", "first and", "", _CACHE),
    Mutant(
        _D + "device_cache:DeviceCache.is_releasing", "not any(map(self._is_living", "any(map(self._is_living", _CACHE
    ),
    Mutant(_D + "pod_claims:needs_one_clique", "in CHANNEL_CLASSES", "not in CHANNEL_CLASSES", _CACHE),
    Mutant(_D + "pod_claims:is_slot_class", 'label == "true"', "True", _CACHE),
    Mutant(_D + "pod_claims:_node_selector", "if part not in", "if part in", _BINDING),
    Mutant(_D + "pod_claims:_configuration", '"requests": requests', '"requests": []', _BINDING),
    Mutant(_D + "allocation:_Search._meets", "other.claim == number and", "", _ALLOCATION),
    Mutant(_D + "allocation:_Search._candidates", "free[after + 1 :]", "free[after + 2 :]", _ALLOCATION),
    Mutant(_D + "allocation:_allocate_exactly", "len(free) < count", "len(free) <= count", _ALLOCATION),
    Mutant(_D + "allocation:_keeps_away", "not one.effect or", "", _ALLOCATION),
    Mutant(_D + "inventory:Inventory._rebuild", "one.spec.pool.generation == newest", "True", _ALLOCATION),
    Mutant(_D + "inventory:why_unusable", "if device.consumes_counters", "if False", _ALLOCATION),
    Mutant(_D + "inventory:Inventory._rebuild", "self._unusable.pop(pool, None)", "pass", _ALLOCATION),
    Mutant(_D + "allocation:allocate", "request.alternatives or (request,)", "(request,)", _ALLOCATION),
    Mutant(_D + "allocation:_allocate_exactly", "request.admin or (one.id not in", "(one.id not in", _ALLOCATION),
    Mutant(_D + "allocation:_used_by", "(own,) if request.admin else", "", _ALLOCATION),
    Mutant(_D + "allocation:Request.is_one_of", 'or self.name.partition("/")[0] in names', "", _ALLOCATION),
    Mutant(_D + "allocation:Request.signature", "[self.capacity] if self.capacity else []", "[]", _ALLOCATION),
    Mutant(_D + "selectors:has_capacity", ">= quantity(amount)", "> quantity(amount)", _ALLOCATION),
    Mutant(_D + "pod_claims:_request", "if slots == {True} and", "if False and", _CACHE),
    Mutant(_D + "pod_claims:amounts_of", "if request.admin:", "if False:", _CACHE),
    Mutant(_D + "pod_claims:allocation_body", 'result["adminAccess"] = True', "pass", _CACHE),
    Mutant(_D + "pod_claims:_configuration", "if not concerned or", "if True or", _BINDING),
    Mutant(_D + "device_cache:DeviceCache._why_unsupported", "if why and any(", "if False and any(", _CACHE),
    Mutant(_D + "device_cache:DeviceCache.slice_changed", "self._unsupported.clear()", "pass", _CACHE),
    Mutant(
        "backends.kubernetes.api_server.informer_cache:InformerCache.set_served",
        "or networks !=",
        "and networks !=",
        _INFORMER,
    ),
    Mutant(
        "backends.kubernetes.api_server.informer_cache:InformerCache._resolved",
        "if self._networks_served:",
        "if True:",
        _INFORMER,
    ),
    Mutant(_D + "selectors:matches", "if used is not None else None", "", _SELECTORS),
    Mutant(_D + "selectors:_read", "one.number, ", "", _SELECTORS),
    Mutant(_D + "selectors:semver", "0 if before else 1", "1 if before else 0", _SELECTORS),
    Mutant(
        "backends.kubernetes.api_server.informer_cache:InformerCache.abandoned_claims",
        "if self.place_of(uid) is None:",
        "if True:",
        _CACHE,
    ),
    Mutant(
        "backends.kubernetes.attempts.claim_binding:_reserve",
        "claim = await _protected(client, path, claim)",
        "pass",
        _BINDING,
    ),
    Mutant(
        "backends.kubernetes.attempts.claim_binding:_release",
        '{"allocation": None, "devices": None}',
        "{}",
        _BINDING,
    ),
    Mutant(
        "backends.kubernetes.attempts.attempt_lifecycle:AttemptLifecycle._delete",
        "await self._release_claims(attempt.members)",
        "pass",
        _BINDING,
    ),
    Mutant("backends.kubernetes.objects.networks:networks_of", "or own", "or ''", _INFORMER),
    Mutant(
        "backends.kubernetes.api_server.node_limits:limits_of",
        "now = min(now, max(free.get(constraint.resource, 0), 0) // one.slots_a_pod)",
        "pass",
        _INFORMER,
    ),
)
