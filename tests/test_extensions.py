"""Extensions and their registries: each one is registered, and the error for a missing line names its place."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from agent.schema.catalog import BY_NAME
from scheduler_feedback.backends.registry import BACKENDS
from scheduler_feedback.core.state import Order
from scheduler_feedback.policies.queue.order import ORDERS

ROOT = Path(__file__).parent.parent
PACKAGES = ("agent", "exporter", "scheduler_feedback", "gangwatch")

REGISTRIES = {
    "agent/collectors": "COLLECTORS in agent/collectors/__init__.py",
    "scheduler_feedback/backends": "BACKENDS in scheduler_feedback/backends/registry.py",
    "scheduler_feedback/detectors": "DETECTORS in scheduler_feedback/detectors/__init__.py",
    "scheduler_feedback/policies/queue/order": "ORDERS in scheduler_feedback/policies/queue/order/__init__.py",
}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


@cache
def imported() -> frozenset[str]:
    """Return all names that the product imports (module and module.name), and the modules of the backends."""
    names = {path.partition(":")[0] for entry in BACKENDS.values() for path in entry}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
                elif isinstance(node, ast.Import):
                    names |= {one.name for one in node.names}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.add(node.value.partition(":")[0])
    return frozenset(names)


@pytest.mark.parametrize("folder", REGISTRIES)
def test_every_module_of_an_extension_is_used(folder: str) -> None:
    modules = [module_of(file) for file in (ROOT / folder).rglob("*.py") if not file.name.startswith("__")]
    assert len(modules) > 3
    unused = [module for module in modules if module not in imported()]
    assert unused == [], f"nothing imports these modules: add a line to {REGISTRIES[folder]}"


def test_every_order_has_one_rule_and_a_name_on_the_page() -> None:
    assert sorted(rule.name for rule in ORDERS) == sorted(Order), f"add the rule to {REGISTRIES[list(REGISTRIES)[-1]]}"
    section = (ROOT / "docs/explanation/scheduler.md").read_text().partition("\n## Order and backfill\n")[2]
    named = re.findall(r"`([\w-]+)`", section.partition("Priority takes")[0])
    assert sorted(named) == sorted(Order), "docs/explanation/scheduler.md lists the orders"


def test_collectors_use_only_names_in_the_catalogue() -> None:
    missing = {
        node.value: module_of(file)
        for file in (ROOT / "agent/collectors").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"gangwatch_[a-z0-9_]*[a-z0-9]", node.value)
        and not any(name == node.value or name.startswith(f"{node.value}_") for name in BY_NAME)  # or a prefix
    }
    assert missing == {}, "add a row to agent/schema/catalog"
