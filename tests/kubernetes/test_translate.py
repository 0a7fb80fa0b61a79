"""Translation of Kubernetes objects to the core's terms, and refusal of unsupported ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.objects.annotations import DATASET, DATASET_GIB
from scheduler_feedback.backends.kubernetes.objects.constraints import constraint_of, refusal, why_not
from scheduler_feedback.backends.kubernetes.objects.objects import (
    Claim,
    OwnerReference,
    Pod,
    PodGroup,
    StoredVolume,
    Taint,
)
from scheduler_feedback.backends.kubernetes.objects.quantities import amount, parse_quantity, requests_of
from scheduler_feedback.backends.kubernetes.objects.rank_order import rank_key
from scheduler_feedback.backends.kubernetes.objects.translate import (
    ARRAY,
    ARRAY_PARALLEL,
    PREEMPTIBLE,
    REQUIRED_TOPOLOGY,
    RESTARTABLE,
    TIME_LIMIT,
    TopologyLabels,
    allocatable_of,
    beyond,
    gang_of,
    job_id_of,
    lone,
    node_seen,
    ranks_of,
    wall_ns,
)
from scheduler_feedback.backends.kubernetes.objects.volumes import reached
from scheduler_feedback.core.cluster import Level
from tests.kubernetes.makers import group, node, pod

MANY = {"cpu": 64_000, "memory": 1 << 40, "pods": 110}


# --- quantities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("cpu", "1", 1000),
        ("cpu", "100m", 100),
        ("cpu", "0.0001", 1),  # rounded up, never down
        ("memory", "1Gi", 1 << 30),
        ("memory", "1.5Gi", 3 << 29),
        ("memory", "128974848", 128974848),
        ("memory", "129e6", 129_000_000),
        ("memory", "129M", 129_000_000),
        ("memory", "128974848000m", 128974848),
        ("nvidia.com/gpu", "8", 8),
    ],
)
def test_quantities_are_read_in_every_form_of_kubernetes(resource: str, text: str, expected: int) -> None:
    assert amount(resource, text) == expected


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "0x10", "1e", "--1", "1Gii"])
def test_a_malformed_quantity_is_named(text: str) -> None:
    with pytest.raises(BackendError, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**15), st.sampled_from(["", "k", "Mi", "G", "m"]))
def test_a_quantity_follows_its_suffix(number: int, suffix: str) -> None:
    scale = {"": 1, "k": 1000, "Mi": 1 << 20, "G": 10**9}
    read = parse_quantity(f"{number}{suffix}")
    assert read * 1000 == number if suffix == "m" else read == number * scale[suffix]


def container(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


def test_a_pod_requests_the_larger_of_its_containers_and_any_init_container_with_earlier_sidecars() -> None:
    inits = [
        container("first", "3"),
        container("sidecar", "1", restartPolicy="Always"),
        container("second", "3"),
    ]
    found = requests_of(pod("p", containers=[container("main", "2")], initContainers=inits, overhead={"cpu": "250m"}))
    assert found["cpu"] == 4250  # 3 + 1 while the second initialises; 2 + 1 later
    found = requests_of(pod("p", containers=[container("main", "5")], initContainers=inits))
    assert found["cpu"] == 6000


def test_a_limit_without_a_request_is_a_request() -> None:
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    assert requests_of(pod("p", containers=[main]))["nvidia.com/gpu"] == 4


# --- constraints -----------------------------------------------------------------------------------------------------


def why(
    spec: dict[str, Any], *, taints: list[Taint] | None = None, free: dict[str, int] | None = None, **labels: Any
) -> str:
    place = node("n1", **labels)
    place.spec.taints = taints
    return why_not(constraint_of(pod("p", **spec)), place, MANY if free is None else free)


def required(*expressions: dict[str, Any], field: str = "matchExpressions") -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{field: list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def test_a_gang_is_a_member_of_its_named_array_or_of_its_job_with_a_limit() -> None:
    index = {"batch.kubernetes.io/job-completion-index": "4"}
    one = lone(pod("p", labels=index))
    assert (one.array_of, one.array_index) == ("", 0)
    of_job = pod("p", labels=index)
    of_job.metadata.annotations = {ARRAY_PARALLEL: "2"}
    of_job.metadata.owner_references = [OwnerReference("Job", "sweep", "12345678-9", controller=True)]
    one = lone(of_job)
    assert (one.array_of, one.array_index) == ("default.sweep.12345678", 4)
    assert one.spec is not None
    assert one.spec.array_parallel == 2
    named = gang_of(group("g", 1, {ARRAY: "trials", ARRAY_PARALLEL: "3"}), [pod("w", group="g")])
    assert named.array_of == "default.trials"
    of_job.metadata.annotations = {ARRAY_PARALLEL: "many"}
    wrong = lone(of_job)
    assert "'many' is not a number of gangs" in wrong.refused


def lone_spec(one: Pod, declared: PodGroup) -> tuple[bool, bool]:
    """Return whether a gang of only this pod may be (restarted, preempted)."""
    spec = gang_of(replace(declared, spec=replace(declared.spec, min_member=1)), [one]).spec
    assert spec is not None
    return spec.restartable, spec.preemptible


def test_pods_beyond_the_minimum_wait_for_the_others_and_are_never_moved() -> None:
    pods = [pod(f"w-{n}", group="g") for n in range(3)]
    needed = gang_of(group("g", 2, {RESTARTABLE: "true"}), pods)
    assert [one.metadata.name for one in needed.pods] == ["w-0", "w-1"]
    assert needed.beyond == ()
    for one in pods[1:]:
        one.spec.node_name = "n1"
    needed = gang_of(group("g", 2), pods)
    assert [one.metadata.name for one in needed.pods] == ["w-1", "w-2"]  # bound pods stay
    assert [one.metadata.name for one in needed.beyond] == ["w-0"]
    more = beyond(pods[0], group("g", 2, {RESTARTABLE: "true"}))
    assert more.spec is not None
    assert (more.spec.name, more.spec.ranks, more.spec.restartable) == ("g+w-0", 1, False)
    pods[0].metadata.owner_references = [OwnerReference(kind="Job", name="j", uid="u", controller=True)]
    declared = group("g", 2, {RESTARTABLE: "true", PREEMPTIBLE: "true"})
    assert lone_spec(pods[0], declared) == (True, True), "only its Job can recreate it"
    more = beyond(pods[0], declared)
    assert more.spec is not None
    assert (more.spec.restartable, more.spec.preemptible) == (False, False)
    assert "required topology" in beyond(pods[0], group("g", 2, {REQUIRED_TOPOLOGY: "rack"})).refused


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (None, "claim c does not exist"),
        ({"status": {"phase": "Pending"}}, "claim c is not bound"),
        ({"status": {"phase": "Bound"}, "spec": {"volumeName": "gone"}}, "gone, which does not exist"),
        (
            {"status": {"phase": "Bound"}, "spec": {"volumeName": "v", "accessModes": ["ReadWriteOncePod"]}},
            "ReadWriteOncePod, which is not implemented",
        ),
        ({"status": {"phase": "Bound"}, "spec": {"volumeName": "v"}}, ""),
    ],
)
def test_a_claim_is_accepted_only_if_its_volume_is_known(claim: dict[str, Any] | None, words: str) -> None:
    claimed = pod("p", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}])
    claims = {} if claim is None else {"default/c": msgspec.convert({"metadata": {"name": "c"}, **claim}, Claim)}
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    volumes = {"v": msgspec.convert({"metadata": {"name": "v"}, "spec": spec}, StoredVolume)}
    found = reached(claimed, claims, volumes)
    assert words in refusal(found)
    if not words:
        assert refusal(found) == ""
        assert "cannot be reached" in why_not(constraint_of(found), node("n1"), MANY)
        assert why_not(constraint_of(found), node("n2", zone="a"), MANY) == ""
    assert claimed.spec.volumes is not None
    assert claimed.spec.volumes[0].reach is None  # the server's object is not modified


def test_node_selectors_apply() -> None:
    assert why({"nodeSelector": {"pool": "a"}}, pool="a") == ""
    assert why({"nodeSelector": {"pool": "a"}}, pool="b") == "label pool is not 'a'"
    assert why({"nodeSelector": {"pool": "a"}}) == "label pool is not 'a'"


@pytest.mark.parametrize(
    ("operator", "values", "met"),
    [
        ("In", ["7", "8"], True),
        ("In", ["8"], False),
        ("NotIn", ["8"], True),
        ("NotIn", ["7"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["6"], True),
        ("Gt", ["7"], False),
        ("Lt", ["8"], True),
        ("Lt", ["x"], False),
        ("Unknown", ["7"], False),
    ],
)
def test_operators_of_required_node_affinity_apply(operator: str, values: list[str], met: bool) -> None:
    spec = required({"key": "generation", "operator": operator, "values": values})
    assert (why(spec, generation="7") == "") is met


def test_an_absent_label_satisfies_not_in_and_does_not_exist() -> None:
    assert why(required({"key": "k", "operator": "NotIn", "values": ["x"]})) == ""
    assert why(required({"key": "k", "operator": "DoesNotExist"})) == ""
    assert why(required({"key": "k", "operator": "Gt", "values": ["1"]})) != ""


def test_affinity_by_name_and_by_any_of_several_terms() -> None:
    assert why(required({"key": "metadata.name", "operator": "In", "values": ["n1"]}, field="matchFields")) == ""
    spec = required({"key": "pool", "operator": "Exists"})
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "spare", "operator": "Exists"}]})
    assert why(spec, spare="yes") == ""
    assert why(spec) == "required node affinity is not met"
    terms[:] = [{}]
    assert why(spec) == "required node affinity is not met"  # an empty term matches nothing


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "ml"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "value": "other"}, False),
        ({"key": "dedicated", "value": "ml", "effect": "NoExecute"}, False),
    ],
)
def test_taints_exclude_pods_that_do_not_tolerate_them(toleration: dict[str, str], tolerated: bool) -> None:
    taints = [Taint("dedicated", "ml", "NoSchedule")]
    assert (why({"tolerations": [toleration]}, taints=taints) == "") is tolerated
    assert why({}, taints=taints) == "taint dedicated:NoSchedule is not tolerated"


def test_preferences_and_taints_of_gangwatch_exclude_no_pod() -> None:
    assert (
        why({}, taints=[Taint("busy", "", "PreferNoSchedule"), Taint("gangwatch.io/quarantine", "", "NoSchedule")])
        == ""
    )


def test_cpu_memory_and_the_limit_of_pods_count() -> None:
    assert why({}, free={"cpu": 500, "memory": 1 << 40, "pods": 3}) == "cpu: 1000 requested, 500 free"
    assert why({}, free={"cpu": 1000, "memory": 1 << 30, "pods": 0}) == "pods: 1 requested, 0 free"


def test_equal_pods_share_a_constraint_and_different_pods_do_not() -> None:
    assert constraint_of(pod("a", 8)).name == constraint_of(pod("b", 8)).name
    assert constraint_of(pod("a")).name != constraint_of(pod("b", nodeSelector={"pool": "a"})).name
    assert constraint_of(pod("a")).name != constraint_of(pod("b", tolerations=[{"operator": "Exists"}])).name


def test_equal_parts_of_pods_are_stored_once() -> None:
    one, other = (pod(name, 8, "g", labels={"app": "t"}) for name in ("a", "b"))
    assert one.spec.containers is other.spec.containers
    assert one.metadata.labels is other.metadata.labels
    assert requests_of(one) is requests_of(other)
    assert constraint_of(one) is constraint_of(other)
    assert pod("c", 8, "h").metadata.labels == {"scheduling.x-k8s.io/pod-group": "h"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "resource claims"),
        ({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}, "its claim is unknown"),
        ({"volumes": [{"name": "d", "ephemeral": {"volumeClaimTemplate": {}}}]}, "ephemeral volumes"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "topology spread"),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, "pod affinity"),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            "pod anti-affinity",
        ),
        ({"containers": [{"name": "m", "ports": [{"hostPort": 80}]}]}, "host ports"),
        (
            {
                "containers": [
                    {"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}}}
                ]
            },
            "several kinds of accelerator",
        ),
    ],
)
def test_an_unsupported_requirement_is_refused_with_the_reason(spec: dict[str, Any], words: str) -> None:
    assert words in refusal(pod("p", **spec))
    gang = lone(pod("p", **spec))
    assert gang.spec is None
    assert words in gang.refused


def test_preferences_are_no_requirements() -> None:
    spec: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
    }
    assert refusal(pod("p", **spec)) == ""


# --- gangs -----------------------------------------------------------------------------------------------------------


def test_a_group_is_a_gang_once_it_has_its_minimum_of_pods_and_no_gate() -> None:
    pods = [pod(f"w-{n}", 8, "train") for n in range(3)]
    assert gang_of(group("train", 4), pods).spec is None
    gated = pod("w-3", 8, "train", schedulingGates=[{"name": "data"}])
    assert gang_of(group("train", 4), [*pods, gated]).spec is None
    gang = gang_of(group("train", 4), [*pods, pod("w-3", 8, "train")])
    assert gang.spec is not None
    assert gang.spec.ranks == 32
    assert [(part.ranks, part.same_node) for part in gang.spec.groups] == [(8, True)] * 4


def test_single_gpu_pods_need_no_group_and_pods_beyond_the_minimum_are_not_in_the_gang() -> None:
    gang = gang_of(group("train", 2), [pod(f"w-{n}", 1, "train") for n in range(3)])
    assert gang.spec is not None
    assert (gang.spec.ranks, gang.spec.groups) == (2, ())
    assert [one.metadata.name for one in gang.pods] == ["w-0", "w-1"]


def test_ranks_are_ordered_by_role_and_index_not_alphabetically() -> None:
    assert [one.metadata.name for one in sorted([pod("w-10"), pod("w-9"), pod("w-1")], key=rank_key)] == [
        "w-1",
        "w-9",
        "w-10",
    ]
    index = "batch.kubernetes.io/job-completion-index"
    pods = [pod("a-xk2", labels={index: "1"}), pod("a-zz9", labels={index: "0"})]
    assert [one.metadata.name for one in sorted(pods, key=rank_key)] == ["a-zz9", "a-xk2"]
    role = "training.kubeflow.org/replica-type"
    pods = [pod("a", labels={role: "worker"}), pod("z", 0, labels={role: "launcher"})]
    ordered = sorted(pods, key=rank_key)
    assert [one.metadata.name for one in ordered] == ["z", "a"]
    assert [len(ranks) for ranks in ranks_of(ordered)] == [0, 1]


def test_a_launcher_without_a_gpu_has_no_rank_and_a_gang_without_gpus_is_refused() -> None:
    gang = gang_of(group("mpi", 3), [pod("launcher", 0, "mpi"), pod("worker-0", 4, "mpi"), pod("worker-1", 4, "mpi")])
    assert gang.spec is not None
    assert gang.spec.ranks == 8
    assert "none of its pods requests a GPU" in lone(pod("p", 0)).refused


def test_different_gpu_pods_in_one_gang_are_refused() -> None:
    pods = [pod("a", 1, "g"), pod("b", 1, "g", nodeSelector={"pool": "a"})]
    assert "differ" in gang_of(group("g", 2), pods).refused


def test_declarations_of_a_group_are_used() -> None:
    declared = group("train", 1, {TIME_LIMIT: "600", REQUIRED_TOPOLOGY: "rack", RESTARTABLE: "true"})
    owned = pod("w-0", 1, "train", priority=7)
    spec = gang_of(declared, [owned]).spec
    assert spec is not None
    assert not spec.restartable  # it has no owner that would recreate the pod
    owned.metadata.owner_references = [OwnerReference("Job", "train", "1", "batch/v1", True)]
    spec = gang_of(declared, [owned]).spec
    assert spec is not None
    assert (spec.time_limit_seconds, spec.required_level, spec.restartable, spec.priority) == (600, Level.RACK, True, 7)


def test_a_gang_has_a_dataset_with_its_size() -> None:
    for text, gib in (("150.5", 150.5), ("0", 0.0), ("nan", 0.0), ("much", 0.0)):
        gang = gang_of(group("train", 1, {DATASET: "imagenet", DATASET_GIB: text}), [pod("w-0", 1, "train")])
        if gib:
            assert gang.spec is not None and (gang.spec.dataset, gang.spec.dataset_gib) == ("imagenet", gib)
        else:
            assert f"'imagenet' with '{text}' GiB; set both" in gang.refused


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (TIME_LIMIT, "soon"),
        (RESTARTABLE, "yes"),
        (REQUIRED_TOPOLOGY, "floor"),
        (TIME_LIMIT, "-1"),
        (DATASET, "imagenet"),
        (DATASET_GIB, "5"),
    ],
)
def test_an_invalid_annotation_is_refused_and_named(annotation: str, text: str) -> None:
    gang = gang_of(group("train", 1, {annotation: text}), [pod("w-0", 1, "train")])
    assert gang.spec is None
    assert annotation in gang.refused
    assert text in gang.refused


def test_a_group_recreated_under_its_name_is_another_job() -> None:
    assert job_id_of(group("train", 1).metadata) != job_id_of(group("train", 1).metadata)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_s_place_and_type_come_from_its_labels() -> None:
    labels = {"topology.gangwatch.io/rack": "r1", "nvidia.com/gpu.product": "H200", "zone": "z"}
    seen = node_seen(node("n1", 8, **labels), 8, ("c-1",), TopologyLabels(spine="zone"))
    assert (seen.node, seen.slots, seen.present, seen.gpu_type) == ("n1", 8, True, "H200")
    assert (seen.spine, seen.rack, seen.island, seen.refuses) == ("z", "r1", "", ("c-1",))


def test_mig_instances_are_a_separate_type() -> None:
    seen = node_seen(node("n1", 7, "nvidia.com/mig-1g.10gb"), 7, (), TopologyLabels())
    assert (seen.slots, seen.gpu_type, seen.present) == (7, "mig-1g.10gb", True)


def test_a_node_that_is_not_ready_or_has_no_accelerator_is_absent() -> None:
    unready = node("n1")
    unready.status.conditions = None
    assert not node_seen(unready, 8, (), TopologyLabels()).present
    assert not node_seen(node("n2", 0), 0, (), TopologyLabels()).present
    assert allocatable_of(node("n1"))["nvidia.com/gpu"] == 8


def test_times_are_parsed_and_a_missing_time_is_zero() -> None:
    assert wall_ns("1970-01-01T00:00:01Z") == 1_000_000_000
    assert wall_ns("") == 0
