"""Composition of a controller with a third party's backend, which needs a class, a section and a registry line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.schema.errors import BackendError, ConfigError
from agent.schema.sample import Sample, expanded
from gangwatch.configuration.config_file import Config, changes, load, selected_backend
from scheduler_feedback.backends.backend import Backend, RunningCycle
from scheduler_feedback.backends.registry import BACKENDS, BackendSection, BackendType, make_backend, sections
from scheduler_feedback.controller import cycle_thread
from scheduler_feedback.controller.composition import ControllerConfiguration, compose
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.actions import Action, StartGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.events import AttemptEnded, Event, NodeSeen, RankExit, Submitted
from scheduler_feedback.core.job import JobSpec, JobState
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.part_failures import PartFailures


class LoggingSection(BackendSection, frozen=True, forbid_unknown_fields=True):
    file: str = "actions.log"
    slots: int = 2


class LoggingBackend(Backend):
    """Backend that only logs. Each gang ends with exit code 0 as soon as the backend is observed."""

    def __init__(self, folder: Path, section: LoggingSection) -> None:
        self._file = folder / section.file
        self._slots = section.slots
        self._started: dict[tuple[str, int], int] = {}

    def _log(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")

    def start(self) -> None:
        self._log("start")

    def effective_policy(self, configured: Policy) -> Policy:
        self._log("policy")
        return configured

    def attach(self, cycle: RunningCycle, failures: PartFailures) -> None:
        assert cycle.ask(lambda state: state.frozen).result(20) is False
        assert not failures.out_of_service()
        self._log("attach")

    def detach(self) -> None:
        self._log("detach")

    def stop(self) -> None:
        self._log("stop")

    def nodes(self) -> Sequence[NodeSeen]:
        return [NodeSeen("log-0", self._slots, (), "m")]

    def apply(self, action: Action) -> None:
        self._log(f"{type(action).__name__} {action.job_id}")
        if isinstance(action, StartGang):
            self._started[action.job_id, action.attempt] = len(action.placement)

    def observe(self, holding: Iterable[tuple[str, int]]) -> Sequence[Event]:
        ended = [(key, self._started[key]) for key in holding if key in self._started]
        return [AttemptEnded(*key, tuple(RankExit(rank, 0) for rank in range(ranks))) for key, ranks in ended]

    def measures(self) -> Iterable[Sample]:
        return [("gangwatch_leads", (), 1.0)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_thread, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cycle_thread, "TICK_SECONDS", 0.05)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the backend to the registry."""
    monkeypatch.setitem(BACKENDS, "logging", BackendType(f"{__name__}:LoggingBackend", f"{__name__}:LoggingSection"))
    yield


def configured(folder: Path, text: str) -> Config:
    file = folder / "gangwatch.toml"
    file.write_text(text)
    return load(file)


def composed(folder: Path, config: Config) -> Controller:
    name = selected_backend(config)
    settings = ControllerSettings(detectors=())
    return compose(ControllerConfiguration(folder, config.policy, name, config.backend_section(name), settings))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def submit(controller: Controller, ranks: int) -> str:
    spec = JobSpec("train", ("python", "train.py"), ranks)
    event = controller.cycle.request(lambda _: Submitted(controller.cycle.new_job_id(), spec)).result(20)
    assert isinstance(event, Submitted)
    return event.job_id


@pytest.mark.usefixtures("registered")
def test_a_registered_backend_runs_jobs_and_is_selected_by_its_section(tmp_path: Path) -> None:
    config = configured(tmp_path, '[logging]\nenabled = true\nfile = "a.log"\nslots = 3\n')
    assert selected_backend(config) == "logging"
    assert config.backend_section("logging") == LoggingSection(True, "a.log", 3)
    with composed(tmp_path, config) as controller:
        jobs = [submit(controller, ranks) for ranks in (3, 2, 1)]

        def ended(state: State) -> bool:
            return all(state.jobs[job].state is JobState.COMPLETED for job in jobs)

        until(lambda: controller.cycle.ask(ended).result(20))
        before = controller.cycle.cycles()
        until(lambda: controller.cycle.cycles() >= before + 5)
        assert controller.cycle.ask(lambda state: state.nodes["log-0"].slots).result(20) == 3
        samples = {name: value for name, _, value in expanded(controller.measures())}
        assert samples["gangwatch_leads"] == 1.0
        assert controller.submit_with == "", "the controller accepts jobs"
        assert controller.ready() == (True, "")
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert lines[:3] == ["start", "policy", "attach"]
    assert sorted(lines[3:6]) == [f"StartGang {job}" for job in jobs]
    assert lines[6:] == ["detach", "stop"]


@pytest.mark.usefixtures("registered")
def test_the_section_of_a_registered_backend_is_checked_and_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logging\.slot: unknown key \(did you mean slots\?\)"):
        configured(tmp_path, "[logging]\nslot = 3\n")
    with pytest.raises(ConfigError, match=r"logging\.slots: expected a whole number, not 'many'"):
        configured(tmp_path, '[logging]\nslots = "many"\n')
    changed = changes(configured(tmp_path, "[logging]\nslots = 3\n"), configured(tmp_path, "[logging]\nslots = 4\n"))
    assert [(one.key, one.before, one.after, one.restart) for one in changed] == [("logging.slots", 3, 4, True)]
    both = configured(tmp_path, "[logging]\nenabled = true\n[slurm]\nenabled = true\n")
    with pytest.raises(ConfigError, match=r"slurm\.enabled and logging\.enabled: only one backend can be enabled"):
        selected_backend(both)


def test_without_the_registry_line_there_is_no_such_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="logging: unknown section"):
        configured(tmp_path, "[logging]\nenabled = true\n")
    assert selected_backend(configured(tmp_path, "")) == "local"
    assert selected_backend(configured(tmp_path, "[slurm]\nenabled = true\n")) == "slurm"


def test_every_backend_of_the_registry_is_one(tmp_path: Path) -> None:
    from scheduler_feedback.backends.kubernetes.api_server.client import Access
    from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
    from scheduler_feedback.backends.local.local_backend import LocalNode, LocalSettings
    from scheduler_feedback.backends.slurm.section import SlurmSection
    from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
    from scheduler_feedback.backends.slurm.slurm_commands import Commands

    cluster = KubernetesSettings(Access("http://nowhere"))
    settings = {
        "local": LocalSettings((LocalNode("n0", 2),)),
        "slurm": SlurmSection(),
        "kubernetes": cluster,
        "kubernetes-advisor": cluster,
    }
    assert settings.keys() == BACKENDS.keys()
    for name, one in settings.items():
        backend = make_backend(name, tmp_path, one)
        assert isinstance(backend, Backend)
        backend.stop()
    assert [seen.node for seen in make_backend("local", tmp_path, settings["local"]).nodes()] == ["n0"]
    slurm = make_backend("slurm", tmp_path, SlurmSection(programs="/opt/slurm", agents="http://{node}:9400"))
    assert isinstance(slurm, SlurmBackend)
    assert isinstance(slurm._commands, Commands) and slurm._settings.agents == "http://{node}:9400"
    for name, section in sections().items():
        assert issubclass(section, BackendSection) and not section().enabled, f"{name} is not selected by default"


@pytest.mark.usefixtures("registered")
def test_a_backend_that_cannot_start_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path, "[logging]\nenabled = true\n")

    def refuse(_backend: LoggingBackend) -> None:
        raise BackendError("nothing to log to")

    with monkeypatch.context() as patch:
        patch.setattr(LoggingBackend, "start", refuse)
        with pytest.raises(BackendError, match="nothing to log to"), composed(tmp_path, config):
            pass
    assert (tmp_path / "actions.log").read_text() == "stop\n"
    assert not (tmp_path / "store.sqlite").exists()
    with composed(tmp_path, config) as controller:
        until(lambda: controller.ready() == (True, ""))


@pytest.mark.usefixtures("registered")
def test_a_rebuilt_state_replaces_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path, "[logging]\nenabled = true\n")
    with composed(tmp_path, config) as controller:
        submit(controller, 1)

    def rebuild(_backend: LoggingBackend, policy: Policy, now_ns: int) -> State:
        return State(policy=policy, now_ns=now_ns, nodes={"log-0": Node("log-0", 2, (), "m", backoff=3)})

    with monkeypatch.context() as patch:
        patch.setattr(LoggingBackend, "rebuild_state", rebuild)
        with composed(tmp_path, config) as controller:
            assert controller.cycle.ask(lambda state: list(state.jobs)).result(20) == []
            assert controller.cycle.ask(lambda state: state.nodes["log-0"].backoff).result(20) == 3
    assert len(list(tmp_path.glob("store.sqlite.before-*"))) == 1
    with composed(tmp_path, config) as controller:
        assert controller.cycle.ask(lambda state: state.nodes["log-0"].backoff).result(20) == 3


@pytest.mark.usefixtures("registered")
def test_a_backend_gets_the_jobs_of_the_journal_before_the_first_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, given = configured(tmp_path, "[logging]\nenabled = true\n"), []
    monkeypatch.setattr(LoggingBackend, "resume", lambda _backend, state: given.append((state.cycle, list(state.jobs))))
    with composed(tmp_path, config) as controller:
        submit(controller, 1)
        cycle, jobs = controller.cycle.ask(lambda state: (state.cycle, list(state.jobs))).result(20)
    with composed(tmp_path, config):
        pass
    assert len(jobs) == 1
    assert [found for _, found in given] == [[], jobs]
    assert given[1][0] >= cycle


@pytest.mark.usefixtures("registered")
def test_the_backend_completes_the_policy_at_the_start_and_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_backend: LoggingBackend, policy: Policy) -> Policy:
        return replace(policy, quarantine_seconds=policy.quarantine_seconds / 2)

    monkeypatch.setattr(LoggingBackend, "effective_policy", half)
    policies = [Policy(quarantine_seconds=100.0)]
    configuration = ControllerConfiguration(
        tmp_path, Policy(quarantine_seconds=60.0), "logging", LoggingSection(), ControllerSettings(detectors=()),
        policies.pop,
    )  # fmt: skip
    with compose(configuration) as controller:

        def seconds() -> float:
            return controller.cycle.ask(lambda state: state.policy.quarantine_seconds).result(20)

        until(lambda: seconds() == 30.0)
        asyncio.run(controller.reload("test"))
        until(lambda: seconds() == 50.0)
