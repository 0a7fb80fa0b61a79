"""Bugs in parts of the controller: each affects only its part and is logged once; jobs still start and finish."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.schema.sample import expanded
from agent.schema.wire import Decoder
from gangwatch.daemons.controller_metrics import controller_texts
from scheduler_feedback.api import documents
from scheduler_feedback.api.web import overview, page_renderer
from scheduler_feedback.api.web import pages as pages_module
from scheduler_feedback.controller import controller as controller_module
from scheduler_feedback.controller import cycle_thread as loop_module
from scheduler_feedback.controller import detection_thread as watch_module
from scheduler_feedback.controller import restarting_feed
from scheduler_feedback.controller.detection_thread import ASIDE_SECONDS, MOST_RESTARTS, DetectionThread
from scheduler_feedback.core.telemetry.series import consumption, counter_features
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED
from scheduler_feedback.core.telemetry.series.occurrences import Occurrences
from scheduler_feedback.core.telemetry.steps.fleet_records import Attempts
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.detectors import DETECTORS
from scheduler_feedback.detectors.context import DetectionContext, Proposal
from scheduler_feedback.detectors.detection import SHARED
from scheduler_feedback.detectors.straggler.straggler import StragglerDetector
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed.frame_rate import COMPARED_NODES
from scheduler_feedback.part_failures import PartFailures
from tests.cluster.memory_backend import World
from tests.controller.site import Site, serving
from tests.core.test_consumption import SECOND, WALL, Machine
from tests.feed import test_feed as feeds

BUG = "a bug that a test put there"

_Tick = Callable[[DetectionContext], Sequence[Proposal]]


def raises(*_arguments: object, **_named: object) -> Any:
    raise KeyError(BUG)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(restarting_feed, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(restarting_feed, "PROVEN_SECONDS", 0.3)
    with serving(tmp_path, World()) as running:
        yield running


def failures_of(site: Site, part: str) -> float:
    counted = {
        labels: value
        for name, labels, value in expanded(site.controller.measures())
        if name.endswith("part_failures_total")
    }
    return counted[(("part", part),)]


# --- every boundary of a running controller ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Boundary:
    """Place where a bug is injected, how to trigger it, and the part that is then reported as failed."""

    part: str
    put: Callable[[Site, pytest.MonkeyPatch], None]
    provoke: Callable[[Site], object] = lambda _: None


def frames(site: Site) -> None:
    """Pass one node's frame to the controller, as the feed does."""
    machine = Machine("n9", (("uid-0/g", 0),))
    for _ in range(3):
        now_ns = time.monotonic_ns()
        site.controller._detection.offer(machine.layout(), machine.frame(now_ns), now_ns)
        time.sleep(0.01)


def query(path: str, status: int = 500) -> Callable[[Site], None]:
    def ask(site: Site) -> None:
        for _ in range(5):
            answer = site.ask("GET", path)
            assert answer.status == status, answer.content
            assert b"Traceback" not in answer.content
            assert b"KeyError" in answer.content

    return ask


def report_results(site: Site) -> None:
    for _ in range(3):
        site.controller._report_results(["a result"])  # type: ignore[list-item]


BOUNDARIES = {
    "the feed's thread": Boundary("feed", lambda _, patch: patch.setattr(Feed, "_sweep", raises)),
    "detection between two reads": Boundary(
        "feed", lambda site, _: setattr(site.controller._feed.feed, "_between", raises)
    ),
    "a frame is folded": Boundary("fleet", lambda _, patch: patch.setattr(Attempts, "take", raises), frames),
    "queued counters are folded": Boundary(
        "fleet", lambda _, patch: patch.setattr(consumption.Places, "_fold", raises), frames
    ),
    "queued features are folded": Boundary(
        "fleet", lambda _, patch: patch.setattr(counter_features.Kind, "_fold", raises), frames
    ),
    "a gang's telemetry": Boundary("fleet", lambda _, patch: patch.setattr(Look, "_job", raises), frames),
    "all telemetry": Boundary("fleet", lambda _, patch: patch.setattr(Look, "_counters", raises), frames),
    "step times": Boundary("pace", lambda site, _: setattr(site.controller._detection._paces, "take", raises)),
    "detector results are renamed": Boundary(
        "verdicts", lambda site, _: setattr(site.controller.backend, "translate_events", raises), report_results
    ),
    "entries are handed on": Boundary(
        "entries", lambda site, _: setattr(site.controller, "_on_entries", raises), Site.submit
    ),
    "samples of the state": Boundary("metrics", lambda _, patch: patch.setattr(controller_module, "measure", raises)),
    "samples of the feed": Boundary(
        "metrics", lambda _, patch: patch.setattr(Feed, "measures", raises), lambda site: site.controller.measures()
    ),
    "a page": Boundary("page", lambda _, patch: patch.setattr(overview, "parts", raises), query("/")),
    "every page's frame": Boundary(
        "page", lambda _, patch: patch.setattr(pages_module.elements, "page", raises), query("/jobs")
    ),
    "a page's document": Boundary(
        "page", lambda _, patch: patch.setattr(page_renderer.views, "nodes_page", raises), query("/nodes")
    ),
    "an API handler": Boundary(
        "api", lambda _, patch: patch.setattr(documents, "node_document", raises), query("/api/nodes")
    ),
}


def without_count(text: str) -> str:
    """Return the text without the part's number of failures, which grows between two requests."""
    return re.sub(r"failed (once|\d+ times)", "failed", text)


@pytest.mark.parametrize("name", BOUNDARIES)
def test_a_bug_at_a_boundary_affects_only_its_part(
    name: str, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    boundary = BOUNDARIES[name]
    boundary.put(site, monkeypatch)
    boundary.provoke(site)
    until(lambda: failures_of(site, boundary.part) >= 1)
    job_id = site.submit()
    site.wait(job_id, "running")
    site.world.end(job_id)
    site.wait(job_id, "completed")
    assert site.controller.failure is None
    assert site.controller.scheduling() == (True, "")
    troubles = {one["part"]: one for one in site.get("/api/parts")}
    assert BUG in troubles[boundary.part]["text"]
    shown = [without_count(text) for text in site.get("/api/overview")["troubles"]]
    assert without_count(troubles[boundary.part]["words"]) in shown
    ready = site.ask("GET", "/readyz").document
    assert ready["scheduling"] is True
    assert ready["ready"] is not troubles[boundary.part]["out"]
    traces = [one for one in caplog.records if one.levelno == logging.CRITICAL and one.exc_info]
    assert len(traces) == 1, "the bug is logged once, with its traceback"
    assert f"part={boundary.part}" in traces[0].getMessage()


def test_the_banner_of_every_page_names_failed_parts(site: Site) -> None:
    job_id = site.submit()
    site.wait(job_id, "running")
    paths = ("/", "/jobs", "/nodes", f"/jobs/{job_id}", "/nodes/n0")
    for path in paths:
        assert b"because of a bug" not in site.ask("GET", path).content
    site.controller.failures.report("fleet", KeyError("<b>"), out=True)
    for path in paths:
        until(lambda path=path: b"Telemetry is out of service because of a bug" in site.ask("GET", path).content)
        assert b"<b>" not in site.ask("GET", path).content


def test_the_feed_restarts_after_a_bug(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Feed, "_sweep", raises)
        until(lambda: "feed failed: KeyError" in site.controller.ready()[1])
        until(lambda: failures_of(site, "feed") >= 3)
    until(lambda: site.controller.ready() == (True, ""))


@pytest.mark.parametrize("broken", [make().name for make in DETECTORS])
def test_a_detector_that_raises_is_disabled_and_the_others_continue(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    detectors = [make() for make in DETECTORS]
    ticks = dict.fromkeys((one.name for one in detectors), 0)

    def counted(name: str, tick: _Tick) -> _Tick:
        def counting_tick(context: DetectionContext) -> Sequence[Proposal]:
            ticks[name] += 1
            return raises() if name == broken else tick(context)  # type: ignore[no-any-return]

        return counting_tick

    for one in detectors:
        name = "tick_in_parts" if hasattr(one, "tick_in_parts") else "tick"
        monkeypatch.setattr(one, name, counted(one.name, getattr(one, name)), raising=False)
    watch = DetectionThread(detectors, lambda _: None, feeds.SystemClock())
    for _ in range(3):
        watch.run_tick()
    assert ticks == {name: 1 if name == broken else 3 for name in ticks}
    assert watch.broken().startswith(f"{broken} failed: KeyError")
    assert ("gangwatch_detector_failures_total", (("detector", broken),), 1.0) in expanded(watch.measures())
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert set(watch.snapshots()) == {SHARED, *ticks} - {broken}


def test_a_bug_in_the_search_for_suspects_does_not_reach_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed's thread asks for the nodes that must send every frame."""
    detector = StragglerDetector()
    watch = DetectionThread((detector,), lambda _: None, feeds.SystemClock())
    monkeypatch.setattr(detector, "suspected", raises)
    assert watch.watched_nodes() == {}
    assert watch.broken().startswith("straggler failed")
    assert watch.watched_nodes() == {}, "it is out of service"
    monkeypatch.setattr(watch._shared.speeds, "needing_every_sample", raises)
    assert watch.watched_nodes() == {}
    assert "shared" in watch.broken()


def test_nodes_of_suspects_and_of_short_iterations_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = StragglerDetector()
    watch = DetectionThread((detector,), lambda _: None, feeds.SystemClock())
    nodes = {"large": [f"n{number}" for number in range(COMPARED_NODES + 5)], "short": ["n20", "m0", "m0"]}
    gangs = {name: SimpleNamespace(nodes=tuple(names)) for name, names in nodes.items()}
    monkeypatch.setattr(watch, "_fleet", SimpleNamespace(gangs=gangs))
    monkeypatch.setattr(detector, "suspected", lambda: iter([("large", frozenset({"n0"})), ("ended", frozenset("x"))]))
    monkeypatch.setattr(watch._shared.speeds, "needing_every_sample", lambda: iter(["short", "ended"]))
    found = watch.watched_nodes()
    assert {node for node, every in found.items() if every == 2} == {"n17", "n18", "n19"}
    assert {node for node, every in found.items() if every == 1} == {*nodes["large"][:17], "n20", "m0"}


# --- the feed ---------------------------------------------------------------------------------------------------------


def test_a_bug_triggered_by_one_agent_affects_only_that_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds.feed_module, "DISCOVERY_SECONDS", 0.02)
    decode = Decoder.decode

    def decoding(self: Decoder, message: bytes) -> object:
        return raises() if b"poison" in message else decode(self, message)

    monkeypatch.setattr(Decoder, "decode", decoding)
    failed: list[tuple[str, str]] = []

    async def scene() -> None:
        good, bad = (feeds.Agent(feeds.sending(feeds.stream_of(node, 1, 2, 3))) for node in ("good", "poison"))
        got: list[str] = []
        feed = Feed(
            tmp_path, lambda _, frame, __: got.append(frame.node), (), feeds.SystemClock(),
            failed=lambda part, _, subject: failed.append((part, subject)),
        )  # fmt: skip
        async with good.listening(tmp_path, "good"), bad.listening(tmp_path, "poison"):
            task = asyncio.create_task(feed.run())
            feeds.announce(tmp_path, "nonsense", "http://127.0.0.1:99999999")
            await feeds.until(lambda: len(got) == 3 and len(failed) >= 2)
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert set(got) == {"good"}

    asyncio.run(scene())
    assert {("feed", "node poison"), ("feed", "node nonsense")} >= set(failed) >= {("feed", "node poison")}


# --- folding ----------------------------------------------------------------------------------------------------------


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return WALL + self.now_ns


class Recorder:
    """Detector that records the gangs in its telemetry."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[set[str]] = []

    def tick(self, context: DetectionContext) -> list[Proposal]:
        self.seen.append({job.shape.job for job in context.telemetry.jobs})
        return []

    def measures(self) -> list[Any]:
        return []

    def snapshot(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        raise AssertionError(data)


def second(watch: DetectionThread, clock: ManualClock, *machines: Machine) -> None:
    """Advance by a second. Every machine sends a frame, and the counters of each rank grow by 1,000."""
    clock.now_ns += SECOND
    for machine in machines:
        for owner in machine.owners:
            machine.advance(owner, [1_000] * len(CONSUMED))
        watch.offer(machine.layout(), machine.frame(clock.now_ns), clock.now_ns)
    watch.run_tick()


def used(watch: DetectionThread, gang: str) -> float:
    found = watch._fleet.gangs[gang].consumed(np.array([10_000_000 * SECOND]))
    return float(found.values[0, 0])


FOLDS: dict[str, tuple[object, str, Callable[[tuple[object, ...]], list[str]]]] = {
    "counters": (consumption.Places, "_fold", lambda given: [one.node for one in given[2].frames]),  # type: ignore[attr-defined]
    "features": (counter_features.Kind, "_fold", lambda given: [one.node for one in given[1].frames]),  # type: ignore[attr-defined]
    "occurrences": (Occurrences, "fold", lambda given: [one.node for one in given[2].frames]),  # type: ignore[attr-defined]
    "records": (Attempts, "take", lambda given: [given[2].node]),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", FOLDS)
def test_a_node_whose_frames_break_folding_is_set_aside_and_retried(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the retry the node's gang is not judged, because ranks without data would look hung."""
    clock, recorder = ManualClock(), Recorder()
    watch = DetectionThread((recorder,), lambda _: None, clock)
    good, bad = Machine("good", (("job-0", 0),)), Machine("bad", (("job-1", 0),))
    for _ in range(3):
        second(watch, clock, good, bad)
    owner, method, nodes_of = FOLDS[name]
    original = getattr(owner, method)

    def poisoned(*given: object) -> object:
        return raises() if "bad" in nodes_of(given) else original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, poisoned)
        for _ in range(20):
            second(watch, clock, good, bad)
        assert used(watch, "job-0") == 22_000
        assert recorder.seen[-1] == {"job-0"}
        assert watch.broken() == "", "one node's telemetry does not break a part"
        samples = {(one, labels): value for one, labels, value in expanded(watch.measures())}
        assert samples["gangwatch_telemetry_set_aside", (("kind", "node"),)] == 1
        assert samples["gangwatch_part_failures_total", (("part", "fleet"),)] == 1
        assert samples["gangwatch_watch_frames_set_aside_total", ()] >= 15
    for _ in range(int(ASIDE_SECONDS) + 5):
        second(watch, clock, good, bad)
    assert recorder.seen[-1] == {"job-0", "job-1"}
    assert used(watch, "job-0") == (22 + ASIDE_SECONDS + 5) * 1_000
    assert 0 < used(watch, "job-1") < 60_000, "folding has restarted"
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_a_node_that_breaks_folding_again_is_set_aside_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    watch = DetectionThread((), lambda _: None, clock)
    bad = Machine("bad", (("job-1", 0),))
    monkeypatch.setattr(Attempts, "take", raises)
    for _ in range(3600):
        second(watch, clock, bad)
    samples = {(one, labels): value for one, labels, value in expanded(watch.measures())}
    assert samples["gangwatch_part_failures_total", (("part", "fleet"),)] == 9  # after 0, 1, 3, 7, 15, 25, ... minutes


def test_a_gang_that_breaks_its_telemetry_is_ignored_until_its_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = ManualClock(), Recorder()
    watch = DetectionThread((recorder,), lambda _: None, clock)
    machines = [Machine(f"n{number}", ((f"job-{number}", 0),)) for number in range(2)]
    job = Look._job

    def poisoned(self: Look, gang: Gang, touched: set[str]) -> object:
        return raises() if (gang.name, gang.attempt) == ("job-1", 1) else job(self, gang, touched)

    monkeypatch.setattr(Look, "_job", poisoned)
    for _ in range(5):
        second(watch, clock, *machines)
    assert recorder.seen[-1] == {"job-0"}
    assert {
        labels: value for one, labels, value in expanded(watch.measures()) if one == "gangwatch_telemetry_set_aside"
    } == {
        (("kind", "node"),): 0.0,
        (("kind", "gang"),): 1.0,
    }
    watch._fleet._attempts.of("job-1", 2, clock.now_ns)
    watch._fleet._attempts.gangs["job-1"].column(0, "n1")
    second(watch, clock, machines[0])
    assert recorder.seen[-1] == {"job-0", "job-1"}


def test_folding_restarts_after_a_bug_and_is_disabled_if_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = ManualClock(), Recorder()
    watch = DetectionThread((recorder,), lambda _: None, clock)
    machine = Machine("n0", (("job-0", 0),))
    counters, broken_at = Look._counters, [3, 6]

    def sometimes(self: Look, *given: Any) -> object:
        return raises() if len(recorder.seen) in broken_at else counters(self, *given)

    monkeypatch.setattr(Look, "_counters", sometimes)
    for _ in range(3):
        second(watch, clock, machine)
    second(watch, clock, machine)  # folding restarts
    assert len(recorder.seen) == 3
    broken_at.clear()
    for _ in range(3):
        second(watch, clock, machine)
    assert recorder.seen[-1] == {"job-0"}
    assert watch.broken() == ""
    monkeypatch.setattr(Look, "_counters", raises)
    for _ in range(MOST_RESTARTS + 5):
        second(watch, clock, machine)
    assert watch.broken().startswith("fleet failed: KeyError")
    assert len(recorder.seen) == 6, "missing data is not judged"
    failures = [value for one, labels, value in expanded(watch.measures()) if labels == (("part", "fleet"),)]
    assert failures == [MOST_RESTARTS + 1, 1.0]
    monkeypatch.setattr(Look, "_counters", counters)
    second(watch, clock, machine)
    assert watch.broken(), "until the controller is restarted"
    assert watch_module.RESTARTS_SECONDS > 0


# --- /metrics ---------------------------------------------------------------------------------------------------------


def test_a_bad_sample_drops_its_family_and_a_bad_source_its_samples() -> None:
    failures = PartFailures()

    def good() -> list[Any]:
        return [("gangwatch_frozen", (), 0.0), ("gangwatch_cycles_total", (), 7.0)]

    def bad() -> list[Any]:
        return [("gangwatch_no_such_metric", (), 1.0), ("gangwatch_frozen", (("strange", "1"),), 1.0)]

    text = "".join(controller_texts(failures, (good, raises, bad), open_metrics=False).values())
    assert "gangwatch_cycles_total 7" in text
    assert "no_such_metric" not in text
    assert failures.troubles()[0]["failures"] == 2


# --- records ----------------------------------------------------------------------------------------------------------


def test_two_bugs_are_logged_once_each_and_every_failure_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = PartFailures(("hang",))

    def another() -> None:
        raise ZeroDivisionError

    for _ in range(50):
        for bug in (raises, another):
            try:
                bug()
            except Exception as error:
                failures.report("page", error)
    assert sum(record.exc_info is not None for record in caplog.records) == 2
    assert failures.troubles()[0]["failures"] == 100
    assert failures.out_of_service() == ""
    failures.report("hang", ValueError("odd"), out=True)
    assert failures.out_of_service() == "hang failed: ValueError: odd"
    assert failures.troubles()[0]["part"] == "hang", "parts out of service come first"
    failures.back("hang")
    assert failures.out_of_service() == ""
