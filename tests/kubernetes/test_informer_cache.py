"""The informer cache: agents, volumes, groups, nodes, and the state rebuilt from objects alone. No API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scheduler_feedback.backends.kubernetes.agents import AgentFiles, dashed, is_agent
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import PROBE
from scheduler_feedback.backends.kubernetes.objects.constraints import OURS, constraint_of
from scheduler_feedback.backends.kubernetes.objects.networks import NETWORKS, RESOURCE, NetworkAttachment
from scheduler_feedback.backends.kubernetes.objects.objects import Claim, Container, Pod, Queue, StoredVolume
from scheduler_feedback.backends.kubernetes.objects.quantities import requests_of, summed
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ATTEMPT,
    BEYOND,
    RANK,
    REQUIRED_TOPOLOGY,
    SLOTS,
    TopologyLabels,
    attempt_of,
    gang_of,
    resource_of,
    slots_written,
)
from scheduler_feedback.backends.kubernetes.objects.upstream_groups import API, UpstreamGroup, as_group
from scheduler_feedback.backends.kubernetes.objects.volumes import claims_of, reached, users_of
from scheduler_feedback.backends.kubernetes.published.rebuild import rebuild
from scheduler_feedback.core.cluster import Limit
from scheduler_feedback.core.job import JobState, Slot
from scheduler_feedback.core.state import Policy
from tests.kubernetes.makers import group, node, pod
from tests.kubernetes.test_attempt import add, cache_of, seen

GPU = "nvidia.com/gpu"


# --- agents ----------------------------------------------------------------------------------------------------------


def agent_pod(name: str, where: str, address: str, **labels: str) -> Pod:
    made = pod(name, 0, schedulerName="x", nodeName=where)
    made.metadata.labels = {"app.kubernetes.io/name": "gangwatch", "app.kubernetes.io/component": "agent"} | labels
    made.status.pod_ip = address
    return made


def test_each_node_s_agent_address_is_known_until_its_pod_is_deleted() -> None:
    cache = cache_of("n1", "n2")
    one = agent_pod("agent-1", "n1", "10.0.0.5")
    assert is_agent(one)
    assert not is_agent(agent_pod("c", "n1", "", **{"app.kubernetes.io/component": "controller"}))
    assert not is_agent(agent_pod("c", "n1", "", **{"app.kubernetes.io/name": "other"}))
    add(cache, one, agent_pod("agent-2", "n2", ""), pod("other", 0, schedulerName="x", nodeName="n2"))
    assert cache.agents() == {"n1": "10.0.0.5"}, "one has no address yet"
    going = replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    cache.pod_changed("default/agent-1", one, going)
    assert cache.agents() == {}
    cache.pod_changed("default/agent-1", going, one)
    cache.pod_changed("default/agent-1", one, None)
    assert cache.agents() == {}


def test_the_feed_finds_a_file_per_agent_and_none_for_a_deleted_agent(tmp_path: Path) -> None:
    files = AgentFiles(tmp_path / "agents", "https://{}.agents.svc:9400")
    files.write({"n1": "10.0.0.5", "n2": "fd00::7"})

    def found() -> dict[str, str]:
        return {one.name: json.loads(one.read_text())["url"] for one in (tmp_path / "agents").iterdir()}

    assert found() == {
        "n1.json": "https://10-0-0-5.agents.svc:9400",
        "n2.json": "https://fd00--7.agents.svc:9400",
    }
    (tmp_path / "agents" / "n1.json").write_text('{"url": "kept"}')
    files.write({"n1": "10.0.0.5", "n3": "10.0.0.9"})
    assert found() == {"n1.json": "kept", "n3.json": "https://10-0-0-9.agents.svc:9400"}, (
        "an unchanged file is not rewritten"
    )
    files.write({"n1": "10.0.0.6", "n3": "10.0.0.9"})
    assert found()["n1.json"] == "https://10-0-0-6.agents.svc:9400"
    assert dashed("1.2.3.4") == "1-2-3-4"
    restarted = AgentFiles(tmp_path / "agents", "https://{}")
    restarted.write({})
    assert found() == {}, "files of an earlier controller are removed"


# --- volumes ---------------------------------------------------------------------------------------------------------


def claiming(name: str, *claims: str) -> Pod:
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": claim}} for n, claim in enumerate(claims)]
    return pod(name, 1, volumes=[*volumes, {"name": "empty"}])


def a_claim(volume: str = "pv", phase: str = "Bound", *modes: str) -> Claim:
    return msgspec.convert(
        {
            "metadata": {"name": "c"},
            "spec": {"volumeName": volume, "accessModes": list(modes)},
            "status": {"phase": phase},
        },
        Claim,
    )


def a_volume(*hosts: str) -> StoredVolume:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]}]
    required = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if hosts else {}
    return msgspec.convert({"metadata": {"name": "pv"}, "spec": required}, StoredVolume)


@pytest.mark.parametrize(
    ("claim", "volume", "refused_for"),
    [
        (a_claim(), a_volume("n1"), ""),
        (a_claim(), a_volume(), ""),
        (None, a_volume(), "claim c does not exist"),
        (a_claim(phase="Pending"), a_volume(), "is not bound"),
        (a_claim(volume=""), a_volume(), "is not bound"),
        (a_claim("pv", "Bound", "ReadWriteOncePod"), a_volume(), "ReadWriteOncePod"),
        (a_claim(), None, "bound to pv, which does not exist"),
    ],
)
def test_nodes_from_which_a_claim_is_reachable(
    claim: Claim | None, volume: StoredVolume | None, refused_for: str
) -> None:
    claims = {} if claim is None else {"default/c": claim}
    volumes = {} if volume is None else {"pv": volume}
    found = reached(claiming("a", "c"), claims, volumes)
    assert found.spec.volumes is not None
    reach = found.spec.volumes[0].reach
    assert reach is not None and (refused_for in reach.refused if refused_for else reach.refused == "")
    assert found.spec.volumes[1].reach is None
    wanted = volume is not None and not refused_for and volume.spec.node_affinity is not None
    assert (reach.terms is not None) is wanted


def test_users_of_a_claim_and_a_volume() -> None:
    assert claims_of(claiming("a", "c", "d")) == ["default/c", "default/d"]
    plain = pod("b", 1)
    assert reached(plain, {}, {}) is plain
    assert users_of("pv", [("default/c", a_claim()), ("default/d", a_claim("other"))]) == {"default/c"}


def test_a_pod_is_evaluated_again_when_its_claim_or_volume_changes() -> None:
    cache = cache_of("n1", "n2")
    add(cache, claiming("a", "c"))
    waiting = cache.gang("default/a")
    assert waiting is not None and "does not exist" in waiting.refused
    cache.take_dirty()
    cache.claim_changed("default/c", None, a_claim())
    assert cache.take_dirty() == {"default/a"}
    cache.volume_changed("pv", None, a_volume("n1"))
    assert cache.take_dirty() == {"default/a"}
    gang = cache.gang("default/a")
    assert gang is not None and gang.constraint is not None
    assert cache.why_not(gang.constraint, "n1") == ""
    assert "cannot be reached" in cache.why_not(gang.constraint, "n2")
    cache.volume_changed("pv", a_volume("n1"), None)
    cache.claim_changed("default/other", None, a_claim("else"))
    assert cache.take_dirty() == {"default/a"}
    cache.pod_changed("default/a", cache.pods["default/a"], None)
    cache.take_dirty()
    cache.claim_changed("default/c", a_claim(), None)
    assert cache.take_dirty() == set(), "no pod uses the claim"


# --- groups of Kubernetes' own kind ----------------------------------------------------------------------------------


def upstream(policy: dict[str, Any] | None = None, *keys: str) -> UpstreamGroup:
    body = {
        "metadata": {"name": "g", "namespace": "default", "uid": "u", "annotations": {"kept": "yes"}},
        "spec": {
            "schedulingPolicy": policy or {"gang": {"minCount": 4}},
            "schedulingConstraints": {"topology": [{"key": key} for key in keys]},
        },
    }
    return msgspec.convert(body, UpstreamGroup)


@pytest.mark.parametrize(
    ("keys", "level"),
    [
        ((), ""),
        (("topology.gangwatch.io/rack",), "rack"),
        (("kubernetes.io/hostname",), "node"),
        (("nvidia.com/gpu.clique",), "island"),
        (("example.com/row",), "example.com/row"),
        (
            ("kubernetes.io/hostname", "topology.gangwatch.io/rack"),
            "kubernetes.io/hostname and topology.gangwatch.io/rack",
        ),
    ],
)
def test_an_upstream_group_is_translated_to_the_same_terms(keys: tuple[str, ...], level: str) -> None:
    found = as_group(upstream(None, *keys), TopologyLabels())
    assert (found.spec.min_member, found.of_api) == (4, API)
    assert found.metadata.annotation(REQUIRED_TOPOLOGY) == level
    assert found.metadata.annotation("kept") == "yes"
    assert found.path == f"/apis/{API}/namespaces/default/podgroups/g"


def test_each_pod_of_a_basic_group_is_separate_and_a_level_without_a_label_is_none() -> None:
    assert as_group(upstream({"basic": {}}), TopologyLabels()).spec.min_member == 0
    assert as_group(upstream({"gang": {}}), TopologyLabels()).spec.min_member == 1
    found = as_group(upstream(None, ""), TopologyLabels(rack=""))
    assert found.metadata.annotation(REQUIRED_TOPOLOGY) == "", "an empty label names no level"


def test_of_two_groups_with_one_name_the_coscheduling_group_counts() -> None:
    cache = cache_of()
    own = group("g", 2)
    cache.upstream_changed("default/g", None, upstream())
    assert cache.groups["default/g"].of_api == API
    cache.group_changed("default/g", None, own)
    cache.upstream_changed("default/g", upstream(), None)
    assert cache.groups["default/g"] is own


# --- the cache -------------------------------------------------------------------------------------------------------


def test_requests_of_any_scheduler_s_pods_count_on_their_node_until_they_end() -> None:
    cache = cache_of("n1", "n2")
    one = pod("a", 2, schedulerName="x", nodeName="n1")
    add(cache, one)
    assert cache.free_of("n1")[GPU] == 6
    again = pod("a", 3, schedulerName="x", nodeName="n2")  # another pod of the same name
    cache.pod_changed("default/a", one, again)
    assert (cache.free_of("n1")[GPU], cache.free_of("n2")[GPU]) == (8, 5)
    cache.pod_changed("default/a", again, None)
    assert cache.free_of("n2")[GPU] == 8
    assert cache.free_of("unknown") == {}


def test_an_assumed_pod_is_released_unless_it_was_seen_bound() -> None:
    cache = cache_of("n1", "n2")
    one, two = pod("a", 2), pod("b", 2)
    cache.assume(one, "n1")
    cache.assume(two, "n1")
    bound = replace(two, spec=replace(two.spec, node_name="n1"))
    add(cache, bound)
    for each in (one, two):
        cache.unassume(each.metadata.uid)
    assert cache.free_of("n1")[GPU] == 6
    cache.unassume("unknown")


def test_a_pod_that_moved_before_it_was_observed_counts_on_its_new_node_only() -> None:
    cache = cache_of("n1", "n2")
    one = pod("a", 2)
    cache.assume(one, "n1")
    cache.assume(one, "n2")
    assert (cache.free_of("n1")[GPU], cache.free_of("n2")[GPU]) == (8, 6)


def test_the_version_of_placements_changes_with_them() -> None:
    cache = cache_of("n1")
    place = Place("g", 1, "n1", range(2))
    cache.hold("u", place)
    version = cache.places_version
    cache.hold("u", place)
    assert (cache.places_version, cache.place_of("u")) == (version, place)
    cache.hold("u", Place("g", 2, "n1", range(2)))
    cache.release("u", place)
    assert cache.place_of("u") is not None, "a later attempt has it now"
    cache.release("u")
    assert cache.place_of("u") is None
    after = cache.places_version
    cache.release("u")
    assert version < after == cache.places_version


def test_only_changes_of_a_user_s_declarations_change_the_gang() -> None:
    cache = cache_of()
    before = group("g", 2)
    cache.group_changed("default/g", None, before)
    assert cache.take_dirty() == {"default/g"}

    def dirty_after(**metadata: Any) -> set[str]:
        after = replace(before, metadata=replace(before.metadata, **metadata))
        cache.group_changed("default/g", before, after)
        return cache.take_dirty()

    assert dirty_after(annotations={f"{OURS}placement": "{}", f"{OURS}expected-start": "soon"}) == set()
    assert dirty_after(labels={"app": "x"}) == set()
    assert dirty_after(annotations={f"{OURS}restartable": "true"}) == {"default/g"}
    assert dirty_after(labels={f"{OURS}queue": "q"}) == {"default/g"}
    larger = replace(before, spec=replace(before.spec, min_member=3))
    cache.group_changed("default/g", before, larger)
    assert cache.take_dirty() == {"default/g"}


def test_the_version_of_queues_changes_with_them() -> None:
    cache = cache_of()
    queue = msgspec.convert({"metadata": {"name": "q"}, "spec": {"limit": 4}}, Queue)
    cache.queue_changed("q", None, queue)
    version = cache.queues_version
    cache.queue_changed("q", queue, replace(queue, metadata=replace(queue.metadata, resource_version="9")))
    assert cache.queues_version == version
    cache.queue_changed("q", queue, replace(queue, spec=replace(queue.spec, limit=5)))
    assert cache.queues_version == version + 1 and cache.queues["q"].spec.limit == 5
    cache.queue_changed("q", queue, None)
    assert cache.queues_version == version + 2 and cache.queues == {}


def test_probes_and_pods_without_a_group_are_no_gangs() -> None:
    cache = cache_of("n1")
    probe, orphan, alone = pod("p", 1, labels={PROBE: "p"}), pod("o", 1, "missing"), pod("a", 1)
    add(cache, probe, orphan, alone)
    assert cache.gang("default/p") is None and [one.metadata.name for one in cache.probes()] == ["p"]
    assert cache.gang("default/o") is None
    found = cache.gang("default/a")
    assert found is not None and found.spec is not None
    assert cache.gang("default/a") is found, "not read again without a change"
    cache.pod_changed("default/p", probe, None)
    assert cache.probes() == []
    over = replace(alone, status=replace(alone.status, phase="Succeeded"))
    cache.pod_changed("default/a", alone, over)
    ended = cache.gang("default/a")
    assert ended is not None and ended.spec is None


def test_which_nodes_refuse_a_constraint_and_why() -> None:
    cache = cache_of("n1", "n2")
    wanted = constraint_of(pod("a", 1, nodeSelector={"kubernetes.io/hostname": "n1"}))
    assert cache.why_not(wanted, "n9") == "there is no such node"
    assert dict(cache.refusals(wanted)) == {"n2": "label kubernetes.io/hostname is not 'n1'"}
    cache.want(wanted)
    assert {name: one.refuses for name, one in seen(cache).items()} == {"n1": (), "n2": (wanted.name,)}


def test_a_node_reports_for_how_many_pods_it_has_processors_now_and_without_gangs() -> None:
    cache = cache_of("n1")
    hungry = [{"name": "m", "resources": {"requests": {"cpu": "20", GPU: "1"}}}]
    wanted = constraint_of(pod("a", 1, containers=hungry))
    cache.want(wanted)
    assert seen(cache)["n1"].limits == (Limit(wanted.name, 3, 3, 20 / 64),), "64 processors"
    gang = pod("ours", 1, nodeName="n1", containers=hungry)
    add(cache, gang, pod("other", 0, schedulerName="x", nodeName="n1"))
    cache.hold(gang.metadata.uid, Place("j", 1, "n1", range(1)))
    assert seen(cache)["n1"].limits == (Limit(wanted.name, 2, 3, 20 / 63),), "43 are free, and 63 without the gang"
    greedy = pod("greedy", 0, schedulerName="x", nodeName="n1")
    greedy.spec.containers = [msgspec.convert({"name": "m", "resources": {"requests": {"cpu": "44"}}}, Container)]
    add(cache, greedy)
    assert seen(cache)["n1"].refuses == (wanted.name,), "19 are left by pods of others"


def test_a_constraint_that_slots_limit_more_has_no_limit() -> None:
    cache = cache_of("n1")
    cache.want(constraint_of(pod("a", 1)))
    assert seen(cache)["n1"].limits == ()


def test_a_node_with_two_kinds_of_device_has_slots_of_the_more_numerous_one() -> None:
    mixed = node("n1", 2)
    assert mixed.status.allocatable is not None
    mixed.status.allocatable["nvidia.com/mig-1g.10gb"] = "7"
    assert resource_of(mixed) == "nvidia.com/mig-1g.10gb"
    mixed.status.allocatable["nvidia.com/mig-1g.10gb"] = "0"
    assert resource_of(mixed) == GPU
    assert resource_of(node("n2", 0)) == ""


def test_replicas_of_shared_gpus_are_slots_of_a_type_of_their_own() -> None:
    """NVIDIA's device plug-in renames the resource of time slices and MPS replicas."""
    cache = cache_of()
    shared = node("n1", 8, "nvidia.com/gpu.shared", **{"nvidia.com/gpu.product": "NVIDIA-A100"})
    cache.node_changed("n1", None, shared)
    cache.node_changed("n2", None, node("n2", 2, **{"nvidia.com/gpu.product": "NVIDIA-A100"}))
    found = seen(cache)
    assert (found["n1"].slots, found["n1"].gpu_type) == (8, "NVIDIA-A100 gpu.shared")
    assert (found["n2"].slots, found["n2"].gpu_type) == (2, "NVIDIA-A100")


def test_each_mig_profile_of_a_node_is_counted_on_its_own() -> None:
    """Three large instances and four small ones are seven slots. Pods of each profile have their own limit."""
    mixed = node("n1", 3, "nvidia.com/mig-2g.20gb", **{"nvidia.com/gpu.product": "NVIDIA-H200"})
    assert mixed.status.allocatable is not None
    mixed.status.allocatable["nvidia.com/mig-1g.10gb"] = "4"
    cache = cache_of()
    cache.node_changed("n1", None, mixed)

    def asking(name: str, profile: str, count: int, **spec: Any) -> Pod:
        resources = {"requests": {"cpu": "1", f"nvidia.com/mig-{profile}": str(count)}}
        return pod(name, 0, containers=[{"name": "m", "resources": resources}], **spec)

    large, small = constraint_of(asking("a", "2g.20gb", 1)), constraint_of(asking("b", "1g.10gb", 2))
    absent = constraint_of(asking("c", "7g.80gb", 1))
    cache.want(large)
    cache.want(small, 2)
    cache.want(absent)
    found = seen(cache)["n1"]
    assert (found.slots, found.gpu_type, found.refuses) == (7, "NVIDIA-H200 mig-mixed", (absent.name,))
    assert {limit.constraint: (limit.pods, limit.most_pods) for limit in found.limits} == {
        large.name: (3, 3),
        small.name: (2, 2),
    }
    gang = asking("ours", "2g.20gb", 1, nodeName="n1")
    add(cache, gang, asking("other", "1g.10gb", 1, schedulerName="x", nodeName="n1"))
    cache.hold(gang.metadata.uid, Place("j", 1, "n1", range(1)))
    found = seen(cache)["n1"]
    assert found.slots == 6, "one is that of others"
    assert {limit.constraint: (limit.pods, limit.most_pods) for limit in found.limits} == {
        large.name: (2, 3),
        small.name: (1, 1),
    }
    assert dict(found.free)["nvidia.com/mig-1g.10gb"] == 3


RAILS = {"rail-0": "example.com/vf_rail0", "rail-1": "example.com/vf_rail1", "plain": ""}


def with_networks(name: str, networks: str, requested: dict[str, str] | None = None, **spec: Any) -> Pod:
    resources = {"requests": {"cpu": "1", GPU: "1", **(requested or {})}}
    one = pod(name, 0, containers=[{"name": "m", "resources": resources}], **spec)
    one.metadata.annotations = {NETWORKS: networks}
    return one


@pytest.mark.parametrize(
    ("networks", "requested", "expected"),
    [
        ("rail-0, default/rail-1@net2", {}, (1, 1)),
        ("rail-0,rail-0,plain,absent", {}, (2, 0)),
        ('[{"name": "rail-1", "interface": "net1"}, {"name": "rail-1", "namespace": "default"}]', {}, (0, 2)),
        ("rail-0", {"example.com/vf_rail0": "1"}, (1, 0)),  # the injector has added it
        ("rail-0", {"example.com/vf_rail0": "3"}, (3, 0)),
        ("other/rail-0", {}, (0, 0)),
        ("[{", {}, (0, 0)),
        ("[" * 5000, {}, (0, 0)),
    ],
)
def test_virtual_functions_of_a_pod_s_networks_are_counted(
    networks: str, requested: dict[str, str], expected: tuple[int, int]
) -> None:
    cache = cache_of("n1")
    for name, resource in RAILS.items():
        body = {"metadata": {"name": name, "namespace": "default", "annotations": {RESOURCE: resource}}}
        cache.network_changed(f"default/{name}", None, msgspec.convert(body, NetworkAttachment))
    add(cache, with_networks("a", networks, requested))
    found = requests_of(cache.pods["default/a"])
    assert tuple(found.get(resource, 0) for resource in list(RAILS.values())[:2]) == expected


def test_a_gang_whose_network_does_not_exist_is_refused_until_it_does() -> None:
    """Multus would not start such a pod, so that the gang would hold its nodes without running."""
    cache = cache_of("n1")
    add(cache, with_networks("a", "rails/rail-0"))

    def refused() -> str:
        cache.take_dirty()
        gang = cache.gang("default/a")
        assert gang is not None
        return gang.refused

    assert refused() == "", "without Multus, nothing reads the annotation"
    cache.set_served(devices=True, networks=True)
    assert refused() == "pod a: its network rails/rail-0 (NetworkAttachmentDefinition) does not exist"
    made = msgspec.convert({"metadata": {"name": "rail-0", "namespace": "rails"}}, NetworkAttachment)
    cache.network_changed("rails/rail-0", None, made)
    assert refused() == ""
    cache.network_changed("rails/rail-0", made, None)
    assert "rails/rail-0" in refused()
    cache.set_served(devices=True, networks=False)
    assert refused() == ""


def test_virtual_functions_limit_the_pods_of_a_node_and_are_reserved() -> None:
    """The network is known only after the pod, as after a restart."""
    cache = cache_of()
    place = node("n1", 8)
    assert place.status.allocatable is not None
    place.status.allocatable["example.com/vf_rail0"] = "3"
    cache.node_changed("n1", None, place)
    add(cache, with_networks("a", "rail-0,rail-0"))
    body = {"metadata": {"name": "rail-0", "namespace": "default", "annotations": {RESOURCE: "example.com/vf_rail0"}}}
    cache.network_changed("default/rail-0", None, msgspec.convert(body, NetworkAttachment))
    assert "default/a" in cache.take_dirty()
    gang = cache.gang("default/a")
    assert gang is not None
    assert gang.constraint is not None
    cache.want(gang.constraint)
    (limit,) = seen(cache)["n1"].limits
    assert (limit.pods, limit.most_pods) == (1, 1)
    assert cache.assume(gang.pods[0], "n1") == ""
    assert cache.free_of("n1")["example.com/vf_rail0"] == 1


def test_annotations_of_gangwatch_count_once_the_pod_is_bound() -> None:
    one = pod("a", 2)
    one.metadata.annotations = {ATTEMPT: "3", SLOTS: "4,5,x"}
    assert (attempt_of(one), slots_written(one)) == (0, (4, 5))
    one.spec.node_name = "n1"
    assert attempt_of(one) == 3
    one.metadata.annotations = {ATTEMPT: "soon"}
    assert (attempt_of(one), slots_written(one)) == (0, ())


# --- the state rebuilt from objects ----------------------------------------------------------------------------------


def test_only_started_gangs_are_jobs_of_the_rebuilt_state() -> None:
    cache = cache_of("n1", "n2")
    begun, waits, over = pod("begun", 2, nodeName="n1"), pod("waits", 2), pod("over", 2, nodeName="n1")
    for one in (begun, over):
        one.metadata.annotations = {ATTEMPT: "4", SLOTS: "6,7", RANK: "0"}
    begun.status.start_time = "1970-01-01T00:00:07Z"
    over.status.phase = "Succeeded"
    add(cache, begun, waits, over)
    not_ready = node("n3")
    assert not_ready.status.conditions is not None
    not_ready.status.conditions[0].status = "False"
    cache.node_changed("n3", None, not_ready)
    state, keys = rebuild(cache, cache.seen(), Policy(), 60 * 10**9)
    assert set(state.nodes) == {"n1", "n2"}, "an absent node is not in the state"
    jobs = {key: state.jobs[job_id] for job_id, key in keys.items()}
    job = jobs["default/begun"]
    assert (job.state, job.attempt, job.attempt_started_ns) == (JobState.STARTING, 4, 7 * 10**9)
    assert [record.slot for record in job.ranks] == [Slot("n1", 6), Slot("n1", 7)]
    assert "default/waits" not in jobs
    assert all(one.state is not JobState.STARTING for key, one in jobs.items() if key != "default/begun")


def test_a_gang_without_one_pod_continues_with_its_ranks_in_order() -> None:
    cache = cache_of("n1", "n2")
    placement = {"attempt": 2, "pods": {"g-1": ["n2", 1, [3]], "g-0": ["n1", 0, [5]]}}
    cache.group_changed("default/g", None, group("g", 2, {f"{OURS}placement": json.dumps(placement)}))
    one = pod("g-1", 1, "g", nodeName="n2")
    one.metadata.annotations = {ATTEMPT: "2", SLOTS: "3", RANK: "1"}
    other = pod("g-0-new", 1, "g")
    add(cache, one, other)
    (found,) = rebuild(cache, cache.seen(), Policy(), 10**9)[0].jobs.values()
    assert found.state is JobState.STARTING
    assert [(record.rank, record.slot) for record in found.ranks] == [(0, Slot("n1", 5)), (1, Slot("n2", 3))]
    cache.pod_changed("default/g-1", one, replace(one, status=replace(one.status, phase="Failed")))
    add(cache, pod("g-1-new", 1, "g"))
    (found,) = rebuild(cache, cache.seen(), Policy(), 10**9)[0].jobs.values()
    assert (found.state, found.attempt) == (JobState.PENDING, 2), "an ended attempt does not run"
    cache.pod_changed("default/g-0-new", other, None)
    assert rebuild(cache, cache.seen(), Policy(), 10**9)[0].jobs == {}, "too few pods are left for a gang"


def test_a_deleted_pod_leaves_its_group_and_the_others_stay() -> None:
    cache = cache_of("n1")
    one, two = pod("g-0", 1, "g"), pod("g-1", 1, "g")
    add(cache, one, two)
    cache.pod_changed("default/g-0", one, None)
    assert [each.metadata.name for each in cache.pods_of("default/g")] == ["g-1"]
    beyond = pod("g-2", 1, "g")
    beyond.metadata.annotations = {BEYOND: "true"}
    cache.take_dirty()
    add(cache, beyond)
    assert cache.take_dirty() == {"default/g", "default/g-2"}, "it is also a separate gang"


def test_a_gang_has_the_longest_grace_period_of_its_pods() -> None:
    pods = [pod(f"g-{n}", 1, "g", terminationGracePeriodSeconds=seconds) for n, seconds in enumerate((5, 90, 30))]
    gang = gang_of(group("g", 3), pods)
    assert gang.spec is not None and gang.spec.grace_seconds == 90.0


def test_parts_are_summed_resource_by_resource() -> None:
    assert summed([{"a": 1, "b": 2}, {"b": 3}, {}]) == {"a": 1, "b": 5}
