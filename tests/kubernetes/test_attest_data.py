"""Identity of the data on which the informer cache decides what a node may report. No API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.rank_names import POD
from scheduler_feedback.core.telemetry.placements import Refusal
from tests.kubernetes.makers import node, pod
from tests.kubernetes.test_attempt import cache_of

NODES = ("n1", "n2")
PODS = ("a", "b", "c")
Decisions = dict[tuple[str, str], Refusal | None]

STEPS = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(PODS), st.sampled_from(("", *NODES)), st.booleans()),
    st.tuples(st.just("recreate"), st.sampled_from(PODS), st.sampled_from(("", *NODES))),
    st.tuples(st.just("delete"), st.sampled_from(PODS)),
    st.tuples(st.just("assume"), st.sampled_from(PODS), st.sampled_from(NODES)),
    st.tuples(st.just("unassume"), st.sampled_from(PODS)),
    st.tuples(st.just("node"), st.sampled_from(NODES), st.booleans()),
)
"""Changes: a pod's new node and whether it has ended, a new pod of the same name, a deleted pod, a pod that is being
bound, one that was not bound, and a node that is changed or deleted."""


class World:
    """An informer cache, and the objects that its watches have delivered."""

    def __init__(self) -> None:
        self.cache: InformerCache = cache_of(*NODES)
        self.pods: dict[str, Pod] = {}
        self.uids: list[str] = []
        """Uids of all pods that ever existed."""

    def decisions(self) -> Decisions:
        """Return the decision about each pod that ever existed, for each node."""
        return {(name, uid): self.cache.attest(name, POD + uid) for name in NODES for uid in self.uids}

    def change(self, what: str, name: str, *how: Any) -> None:
        if what == "node":
            self.cache.node_changed(name, None, node(name) if how[0] else None)
        elif what == "recreate" or (what == "pod" and name not in self.pods):
            self._put(name, pod(name, 1, nodeName=how[0]))
        elif name not in self.pods:
            return
        elif what == "pod":
            known = self.pods[name]
            status = replace(known.status, phase="Succeeded" if how[1] else "Running")
            self._put(name, replace(known, spec=replace(known.spec, node_name=how[0]), status=status))
        elif what == "delete":
            self.cache.pod_changed(f"default/{name}", self.pods.pop(name), None)
        elif what == "assume":
            self.cache.assume(self.pods[name], how[0])
        else:
            self.cache.unassume(self.pods[name].metadata.uid)

    def _put(self, name: str, after: Pod) -> None:
        before, self.pods[name] = self.pods.get(name), after
        if after.metadata.uid not in self.uids:
            self.uids.append(after.metadata.uid)
        self.cache.pod_changed(f"default/{name}", before, after)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=12))
def test_each_change_of_a_decision_changes_the_object(steps: list[Any]) -> None:
    """A decision that is kept while the object is the same would otherwise be wrong."""
    world = World()
    for step in steps:
        data, known = world.cache.attest_data, set(world.uids)
        before = world.decisions()
        world.change(*step)
        after = world.decisions()
        # A pod that did not exist is not known yet, like every other name.
        for (name, uid), decision in after.items():
            if decision is not (before[name, uid] if uid in known else Refusal.NOT_KNOWN_YET):
                assert world.cache.attest_data is not data, f"{step}: {name} and {uid}: {decision}"


def test_changes_that_concern_no_decision_keep_the_object() -> None:
    """Status, labels and pods without a node change far more often than the node of a pod."""
    world = World()
    world.change("pod", "a", "n1", False)
    world.change("pod", "b", "", False)
    data = world.cache.attest_data
    world.change("pod", "a", "n1", False)
    world.change("pod", "c", "", False)
    world.change("node", "n2", True)
    world.change("delete", "b")
    assert world.cache.attest_data is data
    world.change("delete", "a")
    assert world.cache.attest_data is not data


def test_the_backend_returns_the_object_of_its_cache(tmp_path: Path) -> None:
    """Without it, the controller would ask the backend for each table of records."""
    backend = KubernetesBackend(tmp_path, KubernetesSettings(Access("https://127.0.0.1:1")))
    data = backend.attest_data()
    assert data is not None
    one = pod("a", 1, nodeName="n1")
    backend.cache.pod_changed("default/a", None, one)
    assert backend.attest_data() is not data
    assert backend.attest("n1", POD + one.metadata.uid, 0) is None
