"""GitHub workflows and pre-commit hooks: their commands exist, on the Python versions that the locks cover."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(workflow: Path) -> list[str]:
    document: dict[str, Any] = yaml.safe_load(workflow.read_text())
    return [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_make_targets_and_files_of_a_workflow_exist(workflow: Path) -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    for command in commands(workflow):
        for words in re.findall(r"^make ([a-z -]+)", command, re.MULTILINE):
            assert set(words.split()) <= targets, command
        for path in re.findall(r"(?:deploy|packaging|\.ci)/[\w./-]+", command):
            assert (ROOT / path).exists(), path


def test_tests_run_on_every_python_version_with_locks() -> None:
    found = re.search(r"^PYTHONS = \((.*)\)", (ROOT / "packaging" / "lock.py").read_text(), re.MULTILINE)
    assert found is not None
    locked = set(re.findall(r"[\d.]+", found[1]))
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert set(document["jobs"]["test"]["strategy"]["matrix"]["python-version"]) == locked


def test_hooks_run_programs_of_the_development_environment() -> None:
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in document["repos"][0]["hooks"]:
        program, *arguments = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        assert all((ROOT / argument).exists() for argument in arguments if "/" in argument), hook["entry"]
