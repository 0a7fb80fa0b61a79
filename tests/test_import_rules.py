"""Import rules: each refuses what it forbids. A test adds forbidden imports to a copy of the packages.

The rules are the contracts of import-linter in pyproject.toml; docs/adr/0001 explains them.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PACKAGES: list[str] = SETTINGS["root_packages"]

PURE = {
    "core": "scheduler_feedback/core/verdict.py",
    "detectors": "scheduler_feedback/detectors/straggler/cusum.py",
    "policies": "scheduler_feedback/policies/queue/placement.py",
    "cycle": "scheduler_feedback/cycle.py",
}
"""The pure packages, each with one of its modules."""

IMPURE = ["time", "asyncio", "socket", "sqlite3", "logging", "threading"]
IMPURE += ["random", "os", "pathlib", "urllib", "http", "subprocess"]
"""Modules of the standard library that no pure package may import. The contract forbids some more."""


class Case(NamedTuple):
    """One forbidden import."""

    file: str
    """File to which the line is added. The test creates a file that does not exist."""
    line: str
    contract: str
    """First words of the name of the contract that refuses the import."""
    report: str = ""
    """Expected part of the report; empty: the file's module -> the module that the line imports."""


AGENT = "agent never imports the other packages"
INDEPENDENT = "exporter, scheduler_feedback and dashboards never import one another"
VOCABULARY = "exporter, scheduler_feedback and dashboards import only agent.schema"
COMPOSED = "Only gangwatch imports gangwatch"
AGENT_LAYERS = "Modules of agent never import from a higher layer"
FEEDBACK_LAYERS = "Modules of scheduler_feedback never import from a higher layer"
IS_PURE = "core, detectors, policies and cycle are pure"
FEW_LIBRARIES = "agent.schema and the pure packages use only"
WORLD = "sim.world never imports detectors, policies or cycle"
TRAINING = "gangwatch.steps and gangwatch.torch import only"

CASES = [
    Case("agent/node.py", "import scheduler_feedback.cycle", AGENT),
    Case("agent/schema/frame.py", "import exporter.frame_formats", AGENT),
    Case("agent/collectors/gpu/xid.py", "import dashboards.panels", AGENT),
    Case("agent/runner.py", "import gangwatch.logs", COMPOSED),
    Case("exporter/server.py", "import gangwatch.cli", COMPOSED),
    Case("scheduler_feedback/api/app.py", "import gangwatch.controller_client", COMPOSED),
    Case("dashboards/loading.py", "import gangwatch.connection", COMPOSED),
    Case("exporter/frame_formats.py", "import scheduler_feedback.core.verdict", INDEPENDENT),
    Case("exporter/publisher.py", "import dashboards.panels", INDEPENDENT),
    Case("scheduler_feedback/feed/feed.py", "import exporter.frame_formats", INDEPENDENT),
    Case("scheduler_feedback/api/stories.py", "import dashboards.rules.alerts", INDEPENDENT),
    Case("dashboards/panels.py", "import exporter.prometheus.series", INDEPENDENT),
    Case("dashboards/rules/alerts.py", "import scheduler_feedback.core.verdict", INDEPENDENT),
    Case("exporter/server.py", "import agent.node", VOCABULARY),
    Case("exporter/server.py", "import agent.runner", VOCABULARY),
    Case("scheduler_feedback/feed/feed.py", "import agent.sources.files", VOCABULARY),
    Case("dashboards/panels.py", "import agent.collectors.block", VOCABULARY),
    Case("agent/schema/clock.py", "import agent.sources.files", AGENT_LAYERS),
    Case("agent/sources/files.py", "import agent.collectors.block", AGENT_LAYERS),
    Case("agent/collectors/block.py", "import agent.node", AGENT_LAYERS),
    Case("agent/assembly.py", "import agent.worker_thread", AGENT_LAYERS),
    Case("agent/new.py", "", AGENT_LAYERS, report="- agent.new\n"),
    Case("scheduler_feedback/core/job.py", "import scheduler_feedback.policies", FEEDBACK_LAYERS),
    Case("scheduler_feedback/policies/queue/starting.py", "import scheduler_feedback.detectors", FEEDBACK_LAYERS),
    Case("scheduler_feedback/cycle.py", "import scheduler_feedback.journal.store", FEEDBACK_LAYERS),
    Case("scheduler_feedback/feed/feed.py", "import scheduler_feedback.controller.inbox", FEEDBACK_LAYERS),
    Case("scheduler_feedback/journal/store.py", "import scheduler_feedback.sim.job_trace", FEEDBACK_LAYERS),
    Case("scheduler_feedback/new.py", "", FEEDBACK_LAYERS, report="- scheduler_feedback.new\n"),
    *(Case(file, f"import {module}", IS_PURE) for file in PURE.values() for module in IMPURE),
    Case(PURE["policies"], "from datetime import datetime", IS_PURE, report="placement -> datetime"),
    Case(PURE["core"], "def f() -> None:\n    import time", IS_PURE, report="verdict -> time"),
    Case(PURE["core"], "import agent.schema.clock", IS_PURE, report="agent.schema.clock -> time"),
    *(Case(file, "import aiohttp", FEW_LIBRARIES) for file in PURE.values()),
    Case("agent/schema/wire.py", "import yaml", FEW_LIBRARIES),
    Case("scheduler_feedback/sim/world/step.py", "import scheduler_feedback.detectors.stats.medians", WORLD),
    Case("scheduler_feedback/sim/world/plan.py", "import scheduler_feedback.policies.queue.placement", WORLD),
    Case("scheduler_feedback/sim/world/load.py", "import scheduler_feedback.cycle", WORLD),
    Case("gangwatch/steps.py", "import numpy", TRAINING),
    Case("gangwatch/steps.py", "import agent.schema.errors", TRAINING),
    Case("gangwatch/torch.py", "import gangwatch.cli", TRAINING),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the packages and of the contracts."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def lint(folder: Path) -> tuple[list[str], str]:
    """Return the lines about broken contracts, and the whole report."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "400", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert done.returncode == (1 if broken else 0), done.stdout + done.stderr
    return broken, done.stdout


def section_of(contract: str, report: str) -> str:
    """Return the part of the report about the broken contract whose name begins so; '' if there is none."""
    found = re.search(rf"^{re.escape(contract)}[^\n]*\n-+\n(.*?)(?=^[^\n]+\n-{{5,}}\n|\Z)", report, re.M | re.S)
    return found[1] if found else ""


def batches() -> list[list[Case]]:
    """Divide the cases into batches that one run of import-linter can report together.

    import-linter reports only the shortest chain between two packages. So a batch has at most one case for a pair of a
    contract's importing package and imported package, and at most one line for a file without a package.
    """
    divided: list[tuple[set[tuple[str, ...]], list[Case]]] = []
    for case in CASES:
        importer = case.file.split("/")[:2]
        imported = re.findall(r"(?:from|import) ([\w.]+)", case.line)
        target = imported[0].split(".")[:2] if imported else []
        key = (case.contract, *importer, *target)
        for keys, batch in divided:
            if key not in keys:
                keys.add(key)
                batch.append(case)
                break
        else:
            divided.append(({key}, [case]))
    return [batch for _, batch in divided]


def test_the_packages_as_they_are_keep_every_contract(copy: Path) -> None:
    broken, report = lint(copy)
    assert not broken, report


@pytest.mark.parametrize("contract", sorted({case.contract for case in CASES}))
def test_each_forbidden_import_of_a_contract_is_refused(copy: Path, contract: str) -> None:
    """Only the contract's own cases are in the copy, so no other contract's case can break it."""
    for batch in batches():
        cases = [case for case in batch if case.contract == contract]
        if not cases:
            continue
        before = {copy / case.file: None for case in cases} | {
            copy / case.file: (copy / case.file).read_text() for case in cases if (copy / case.file).exists()
        }
        for case in cases:
            file = copy / case.file
            file.write_text(f"{file.read_text() if file.exists() else ''}\n{case.line}\n")
        try:
            broken, report = lint(copy)
        finally:
            for file, text in before.items():
                file.unlink() if text is None else file.write_text(text)
        section = section_of(contract, report)
        assert any(line.startswith(contract) for line in broken), report
        for case in cases:
            module = case.file.removesuffix(".py").replace("/", ".")
            expected = case.report or f"{module} -> {case.line.removeprefix('import ')}"
            assert expected in section, f"{case}: not in\n{report}"


def test_each_contract_has_a_case() -> None:
    names = [contract["name"] for contract in SETTINGS["contracts"]]
    assert [name for name in names if not any(name.startswith(case.contract) for case in CASES)] == []


def test_the_list_of_third_party_packages_is_complete() -> None:
    """The contract lists forbidden libraries. The list must contain every library that gangwatch imports."""
    (listed,) = (c["forbidden_modules"] for c in SETTINGS["contracts"] if c["name"].startswith(FEW_LIBRARIES))
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    # The shim and the stand-in of MPI start without a package, and import modules of their folder by their bare names.
    folders = (ROOT / "scheduler_feedback/backends/local", ROOT / "gangwatch/mpi")
    shim = {path.stem for folder in folders for path in folder.glob("*.py")}
    external = {name for name in graph.modules if graph.is_module_squashed(name)}
    assert external - sys.stdlib_module_names - shim - {"numpy", "msgspec"} <= set(listed)


def impure_calls(source: str) -> Iterator[str]:
    """Yield calls of impure built-in functions and of numpy's random numbers, which import-linter does not detect."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id="open" | "input" | "print" | "exec" | "eval" | "__import__"):
                yield f"{node.lineno}: {node.id}"
            case ast.Attribute(value=ast.Name(id="np"), attr="random" | "load" | "save" | "memmap" | "fromfile"):
                yield f"{node.lineno}: np.{node.attr}"


def test_pure_packages_call_nothing_impure_without_an_import() -> None:
    assert list(impure_calls("open('x')\nnp.random.rand()")) == ["1: open", "2: np.random"]
    pure = [ROOT / "scheduler_feedback/cycle.py"]
    pure += [file for name in PURE for file in (ROOT / "scheduler_feedback" / name).rglob("*.py")]
    assert {str(file): calls for file in pure if (calls := list(impure_calls(file.read_text())))} == {}


def test_a_dashboard_imports_only_dashboards_and_the_schema() -> None:
    """import-linter does not see these files, because `*.dashboard` is not the name of a module."""
    files = list((ROOT / "dashboards").rglob("*.dashboard.py"))
    pattern = re.compile(r"^\s*(?:from|import) (agent\.schema|\w+)", re.M)
    assert {name for file in files for name in pattern.findall(file.read_text())} == {
        "__future__", "agent.schema", "dashboards",
    }  # fmt: skip
