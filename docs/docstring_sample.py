"""Random sample of the project's docstrings, for a reader who judges whether they are easy to understand.

Each entry has the module's name and first sentence, the class, the signature and the docstring, but no code.

Example: ``python docs/docstring_sample.py --seed 0c838e59 --count 40``.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def signature(node: Documented) -> str:
    """Return the line ``class X(Base):`` or ``def f(a: int) -> str:`` with its decorators, without the body."""
    body, node.body = node.body, [ast.Expr(ast.Constant(...))]
    try:
        return ast.unparse(node).rsplit("\n", 1)[0]
    finally:
        node.body = body


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (position, text) of each docstring of a file. The first is that of the module."""
    tree = ast.parse(path.read_text())
    about = ast.get_docstring(tree)
    name = str(path.relative_to(ROOT))
    if about:
        yield f"{name}:1", f"module {name}\n{about}"
    heading = f"module {name}: {about.splitlines()[0] if about else ''}"

    def below(parent: ast.AST, lines: list[str]) -> Iterator[tuple[str, str]]:
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, Documented):
                yield from below(node, lines)
                continue
            text = ast.get_docstring(node)
            if text:
                yield f"{name}:{node.lineno}", "\n".join([heading, *lines, signature(node), f'"""{text}"""'])
            inside = [*lines, f"class {node.name}: {(text or '').splitlines()[0] if text else ''}"]
            yield from below(node, inside if isinstance(node, ast.ClassDef) else lines)

    yield from below(tree, [])


def docstrings(folders: list[str]) -> list[tuple[str, str]]:
    """Return (position, text) of all docstrings in tracked files below the folders, in a fixed order; [] for all
    files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f":(glob){folder}/**/*.py" for folder in folders or ["."])],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return [entry for name in sorted(filter(None, listed)) for entry in documented(ROOT / name)]


def main(arguments: list[str]) -> None:
    """Print the sample, or with ``--all`` every docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="only files below these folders")
    parser.add_argument("--seed", default="0", help="text that determines the sample")
    parser.add_argument("--count", type=int, default=40, help="docstrings in the sample")
    parser.add_argument("--all", action="store_true", help="print all docstrings, in order")
    parser.add_argument("--positions", action="store_true", help="print the file and line of each")
    chosen = parser.parse_args(arguments)
    found = docstrings(chosen.folders)
    if not chosen.all:
        found = random.Random(chosen.seed).sample(found, min(chosen.count, len(found)))
    for number, (position, text) in enumerate(found, 1):
        sys.stdout.write(f"--- {number}{f' {position}' if chosen.positions else ''}\n{text}\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
