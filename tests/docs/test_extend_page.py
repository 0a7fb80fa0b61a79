"""Extensions on the page "Extend gangwatch": they work as written."""

from __future__ import annotations

import enum
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agent.collectors import Machine
from agent.rank_attribution import Attribution
from agent.schema.catalog.metric import Metric
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.verdicts import kinds
from exporter.plugins.entry_points import GROUP
from gangwatch.configuration.config_file import load, selected_backend
from scheduler_feedback.backends import registry
from scheduler_feedback.core import state, verdict
from scheduler_feedback.core.actions import StopGang
from scheduler_feedback.core.job import StopReason
from tests.core.test_verdict_kinds import missing_cells

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/extend.md").read_text()


def snippets(heading: str, language: str = "python") -> list[str]:
    """Return the code blocks below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```$", section, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


def executed(snippet: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module with the snippet's code, executed."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(snippet, vars(module))
    return module


def extended(members: type[enum.StrEnum], name: str, value: str) -> Any:
    """Return the enum with one more member."""
    assert f'`{name} = "{value}"`' in PAGE
    return enum.StrEnum(members.__name__, {**{one.name: one.value for one in members}, name: value})


def test_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, code, line = snippets("Add a collector")
    metric = eval(row, {"Metric": Metric})
    module = executed(code, "agent.collectors.host.entropy", monkeypatch)
    ((name, make),) = eval(line, vars(module)).items()
    assert name == module.EntropyCollector.name
    with pytest.raises(UnsupportedError):
        make(Machine(Attribution(None), proc_root=str(tmp_path)))
    file = tmp_path / "sys/kernel/random/entropy_avail"
    file.parent.mkdir(parents=True)
    file.write_text("256\n")
    collector = make(Machine(Attribution(None), proc_root=str(tmp_path)))
    block = collector.collect()
    assert [column.metric for column in block.gauge_columns] == [metric.name] and block.gauges.tolist() == [256.0]
    file.write_text("none\n")
    with pytest.raises(SourceError):
        collector.collect()
    collector.close()


def test_metrics_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, folder = snippets("Serve metrics of your own", "toml")
    example = tomllib.loads((ROOT / "examples/plugin/pyproject.toml").read_text())
    declared = tomllib.loads(entry)["project"]["entry-points"]
    assert declared == example["project"]["entry-points"]
    assert set(declared) == {GROUP}
    file = tmp_path / "gangwatch.toml"
    file.write_text(folder)
    assert load(file).exporter.textfile_folder == "/var/lib/gangwatch/textfiles"


def test_the_frame_in_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = snippets("Serve metrics of your own")
    text = executed(code, "embedding", monkeypatch).text.decode()
    assert 'gangwatch_host_load1{node="node-0"}' in text
    assert "process_open_fds" not in text, "the program's own metrics are not gangwatch's"


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = snippets("Add an order of the queue")
    monkeypatch.setattr(state, "Order", extended(state.Order, "LIFO", "lifo"))
    rule = executed(code, "scheduler_feedback.policies.queue.order.lifo", monkeypatch).LastComeFirstServed()
    jobs = [SimpleNamespace(submitted_ns=at) for at in (5, 9, 7)]
    assert rule.name == "lifo"
    assert [job.submitted_ns for job in sorted(jobs, key=lambda job: rule.key(None, job, 0))] == [9, 7, 5]


def test_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    code, line = snippets("Add a backend")
    (configuration,) = snippets("Add a backend", "toml")
    executed(code, "scheduler_feedback.backends.logging_backend", monkeypatch)
    for name, entry in eval(line, vars(registry)).items():
        monkeypatch.setitem(registry.BACKENDS, name, entry)
    file = tmp_path / "gangwatch.toml"
    file.write_text(configuration)
    config = load(file)
    assert selected_backend(config) == "logging"
    backend = registry.make_backend("logging", tmp_path, config.backend_section("logging"))
    assert [node.slots for node in backend.nodes()] == [4]
    backend.apply(StopGang("a-1", "j-000001", 1, "SIGTERM", 1.0, StopReason.CANCEL))
    assert "action=StopGang job=j-000001" in caplog.text
    assert backend.observe([("j-000001", 1)]) == []


def test_the_verdict_kind_and_its_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    row, code = snippets("Add a verdict kind and its detector")
    extended_kind = extended(kinds.Kind, "POWER_CAPPED", "power_capped")
    ((kind, made),) = eval(row, {**vars(kinds), "Kind": extended_kind}).items()
    assert kind == "power_capped" and missing_cells(made) == []
    monkeypatch.setattr(verdict, "Kind", extended_kind)
    module = executed(code, "scheduler_feedback.detectors.power.power", monkeypatch)
    event = SimpleNamespace(node="n0", event=SimpleNamespace(kind="power_cap", entity="GPU-0"))
    context = SimpleNamespace(telemetry=SimpleNamespace(now_ns=5, events=[event]))
    detector = module.PowerDetector()
    (found,) = detector.tick(context)
    assert (found.kind, found.node, found.device) == ("power_capped", "n0", "GPU-0")
    assert list(detector.measures()) == [] and not module.PowerDetector(timed=False).tick(context)
    detector.restore(detector.snapshot())
    with pytest.raises(ValueError, match="snapshot"):
        detector.restore(b"other")
