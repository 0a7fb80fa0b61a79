"""Words that the glossary marks *never*: they occur in no text for users."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agent.schema.catalog import METRICS
from gangwatch.cli import cli

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/reference/glossary.md"
PAGE_MODULES = sorted((ROOT / "scheduler_feedback/api/web").glob("*.py"))
PACKAGES = ("agent", "dashboards", "exporter", "gangwatch", "scheduler_feedback")
QUOTES_THEM = {GLOSSARY, ROOT / "docs/how-to/upgrade.md", ROOT / "docs/adr/0042-modules-are-grouped-by-topic.md"}
DOCUMENTS = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - QUOTES_THEM)
HTML_PAGES = (ROOT / "scheduler_feedback/sim/page.html", ROOT / "gangwatch/display/heat_map_page.html")


def never() -> list[str]:
    """Return the words that the glossary marks *never*."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| never \|$", GLOSSARY.read_text(), flags=re.MULTILINE)
    return [word.strip() for row in rows for word in row.split(",")]


def used(text: str) -> list[str]:
    return [word for word in never() if re.search(rf"\b{re.escape(word)}\b", text, flags=re.IGNORECASE)]


def help_texts(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Return (command, text of --help) of a command and all commands below it."""
    context = click.Context(command, info_name=path)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from help_texts(below, f"{path} {name}")


def page_texts(module: Path) -> list[str]:
    """Return the string constants of a module, without docstrings."""
    tree = ast.parse(module.read_text())
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str)]


def docstrings(module: Path) -> Iterator[str]:
    """Yield the docstrings of a module, of its classes, functions and fields."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_the_glossary_marks_words_and_this_test_finds_them() -> None:
    assert len(never()) > 10
    assert used("A wish; j-000001 Keeps pace.") == ["keeps pace", "wish"]
    assert used("wishful") == []


def test_terms_are_defined_once() -> None:
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", GLOSSARY.read_text(), flags=re.MULTILINE)
    names = [name.strip() for term in terms if term not in ("term", "---") for name in term.split(",")]
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize(("command", "text"), [pytest.param(*one, id=one[0]) for one in help_texts(cli, "gangwatch")])
def test_help_uses_no_forbidden_word(command: str, text: str) -> None:
    assert used(text) == [], command


def test_metric_help_uses_no_forbidden_word() -> None:
    assert {metric.name: used(metric.help) for metric in METRICS if used(metric.help)} == {}


@pytest.mark.parametrize("module", PAGE_MODULES, ids=lambda path: path.name)
def test_the_page_uses_no_forbidden_word(module: Path) -> None:
    assert {text: used(text) for text in page_texts(module) if used(text)} == {}


@pytest.mark.parametrize("page", HTML_PAGES, ids=lambda path: path.name)
def test_a_static_page_uses_no_forbidden_word(page: Path) -> None:
    text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    assert used(text) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_uses_no_forbidden_word(document: Path) -> None:
    assert used(document.read_text()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_use_no_forbidden_word(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert {str(module): text for module in modules for text in docstrings(module) if used(text)} == {}
