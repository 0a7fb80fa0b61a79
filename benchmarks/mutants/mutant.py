"""Class of mutants: one deliberate error in one function, class or constant of the product, and its application.

A mutant has a place (package, module and qualified name: "policies.index.queue_shares:Shares.room") and replaces one
fragment of source, which must occur exactly once in this place. A module that was moved is found by its last name
and its definitions; MOVED has the exceptions.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PRODUCT = "scheduler_feedback"
PACKAGES = (PRODUCT, "agent", "exporter", "gangwatch", "dashboards")

MOVED: dict[str, str] = {}
"""Current path of each module that cannot be found by its name in the catalogue, from the repository's root."""


class NotApplicableError(ValueError):
    """The mutant's place or fragment does not exist, or the changed file is not a valid program."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate error in the product, which the named tests should detect."""

    place: str
    """Changed function, method, class or constant, as "module:qualified name"; "module:" for a whole module.

    The module is named from scheduler_feedback, or from another package with the package's name.
    """
    old: str
    """Source fragment to replace. It occurs exactly once in the place; lines after the first keep their indentation."""
    new: str
    """Replacement of the source fragment."""
    tests: tuple[str, ...] = ()
    """Paths or node ids of the tests that should notice the mutant; empty: those of its module (catalogue.TESTS)."""
    hangs: bool = False
    """Whether the mutant makes a loop endless. A test run that does not end then counts as noticed."""

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def name(self) -> str:
        """Return the qualified name of the changed place within its module."""
        return self.place.partition(":")[2]

    @property
    def title(self) -> str:
        def short(text: str) -> str:
            words = " ".join(text.split())
            return words if len(words) <= 60 else words[:57] + "..."

        return f"{self.place}: {short(self.old)} -> {short(self.new) or '(nothing)'}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A source file of the product after the change by a mutant."""

    path: Path
    """Path of the file from the repository's root."""
    source: str
    function: bool
    """Whether the change is within one function. Its code can be exchanged in a process that has imported it."""


def find(mutant: Mutant, root: Path) -> Path:
    """Return the path of the file with the mutant's place, from the root. Raises NotApplicableError."""
    if mutant.module in MOVED:
        return Path(MOVED[mutant.module])
    usual = Path(*mutant.module.split(".")).with_suffix(".py")
    for path in (PRODUCT / usual, usual):
        if (root / path).exists() and _node(_parsed((root / path).read_text()), mutant.name) is not None:
            return path
    last = mutant.module.rpartition(".")[2]
    found = [
        path.relative_to(root)
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if path.stem == last and _node(_parsed(path.read_text()), mutant.name) is not None
    ]
    if len(found) != 1:
        where = ", ".join(map(str, found)) or "nowhere"
        raise NotApplicableError(f"{mutant.place}: found in {where}; name its file in MOVED")
    return found[0]


def apply(mutant: Mutant, root: Path) -> Applied:
    """Return the source file with the mutant's change. Raises NotApplicableError if the fragment does not occur
    once."""
    path = find(mutant, root)
    source = (root / path).read_text()
    node = _node(_parsed(source), mutant.name)
    assert node is not None
    begin, end = _span(source, node)
    here = source[begin:end]
    if (count := here.count(mutant.old)) != 1:
        raise NotApplicableError(f"{mutant.place}: the fragment occurs {count} times, not once: {mutant.old!r}")
    mutated = source[:begin] + here.replace(mutant.old, mutant.new) + source[end:]
    try:
        tree = ast.parse(mutated)
    except SyntaxError as error:
        raise NotApplicableError(f"{mutant.place}: no Python any more: {error}") from None
    if ast.dump(tree) == _dumped(source):
        raise NotApplicableError(f"{mutant.place}: the edit changes nothing that runs: {mutant.old!r}")
    _check_names(mutant, source, tree)
    return Applied(path, mutated, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@lru_cache(16)
def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module. It is cached, so callers must not change it."""
    return ast.parse(source)


@lru_cache(16)
def _dumped(source: str) -> str:
    """Return the syntax tree of a module as text."""
    return ast.dump(_parsed(source))


@lru_cache(16)
def _read_names(source: str) -> frozenset[str]:
    """Return the names that a module reads."""
    return frozenset(_names(_parsed(source), ast.Load))


def _names(tree: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}


def _node(tree: ast.AST, name: str) -> ast.AST | None:
    """Return the definition with this qualified name; the module for an empty name; None if there is no such
    definition."""
    at: ast.AST = tree
    for part in name.split(".") if name else ():
        for child in getattr(at, "body", ()):
            if getattr(child, "name", None) == part or part in _assigned(child):
                at = child
                break
        else:
            return None
    return at


def _assigned(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _span(source: str, node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.Module):
        return 0, len(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:  # columns count bytes of UTF-8
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    assert isinstance(node, ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def _check_names(mutant: Mutant, source: str, tree: ast.AST) -> None:
    """Raise NotApplicableError if the mutant uses an undefined name: a NameError would make any test fail."""
    fresh = _names(tree, ast.Load) - _read_names(source)
    if not fresh:
        return
    bound = _names(tree, ast.Store) | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        if isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    if unknown := fresh - bound:
        raise NotApplicableError(f"{mutant.place}: unknown name {', '.join(sorted(unknown))}")
