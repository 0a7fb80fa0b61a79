"""A mutant: one edit of one function, class or constant, and how to find and apply it.

A mutant names its place by package, module and qualified name ("policies.index.queue_shares:Shares.room"), and the edit
by the exact source fragment that it replaces, which must occur exactly once in that place. A moved module is found by
its last name and by what it defines; MOVED holds the exceptions. A mutant that cannot be applied is an error, never a
kill.
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
"""Current paths, from the root, of modules that cannot be found by their name in the catalogue."""


class NotApplicableError(ValueError):
    """A mutant's place or fragment does not exist, or its result is not a valid program; the message says which."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate break."""

    place: str
    """Module, below scheduler_feedback or of another package with its name, a colon, and the qualified name of a
    function, method, class or constant; nothing after the colon: the whole module."""
    old: str
    """Source fragment that occurs exactly once there; lines after the first keep their indentation."""
    new: str
    """Its replacement."""
    tests: tuple[str, ...] = ()
    """Paths or node ids of the tests that should notice; empty: those of the module (catalogue.TESTS)."""
    hangs: bool = False
    """The break makes a loop endless: a run that does not end counts as noticed."""

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def name(self) -> str:
        """Return the qualified name within the module."""
        return self.place.partition(":")[2]

    @property
    def title(self) -> str:
        def short(text: str) -> str:
            words = " ".join(text.split())
            return words if len(words) <= 60 else words[:57] + "..."

        return f"{self.place}: {short(self.old)} -> {short(self.new) or '(nothing)'}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A mutant's file after the edit."""

    path: Path
    """From the root of the repository."""
    source: str
    function: bool
    """The edit is within one function, whose code can be exchanged in a process that has imported it."""


def find(mutant: Mutant, root: Path) -> Path:
    """Return the path, from the root, of the file that holds the mutant's place. Raises NotApplicableError."""
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
    """Return the mutated source. Raises NotApplicableError if the fragment does not occur exactly once."""
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
    if ast.dump(tree) == ast.dump(_parsed(source)):
        raise NotApplicableError(f"{mutant.place}: the edit changes nothing that runs: {mutant.old!r}")
    _check_names(mutant, source, tree)
    return Applied(path, mutated, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@lru_cache(16)
def _parsed(source: str) -> ast.Module:
    """Return the syntax tree of a module, cached because mutants are sorted by module. Callers must not change it."""
    return ast.parse(source)


def _node(tree: ast.AST, name: str) -> ast.AST | None:
    """Return the definition of that qualified name; the module itself for an empty name."""
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
    """Return the offsets of a node in the source."""
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
    """Raise NotApplicableError for an undefined name: a NameError is no realistic mutant."""

    def names(of: ast.AST, kinds: tuple[type[ast.expr_context], ...]) -> set[str]:
        return {node.id for node in ast.walk(of) if isinstance(node, ast.Name) and isinstance(node.ctx, kinds)}

    fresh = names(tree, (ast.Load,)) - names(_parsed(source), (ast.Load,))
    bound = names(tree, (ast.Store,)) | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        if isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    if unknown := fresh - bound:
        raise NotApplicableError(f"{mutant.place}: unknown name {', '.join(sorted(unknown))}")
