"""Suggestions of mutants of a module, for the catalogue. Review each before you add it.

python -m benchmarks.mutants.suggest MODULE [--seed N] [--count N]

Changes are, for example, a reversed comparison, a bound shifted by one, `min` for `max`, `and` for `or`, or a
removed `not`, check or call. Prints rows for the catalogue.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mutants.mutant import PRODUCT, Mutant, NotApplicableError, apply
from benchmarks.mutants.worker import ROOT

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SYMBOLS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def edits(source: str, function: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield (begin, end, replacement) of each possible change. begin, end: offsets in the source, which must be
    ASCII."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def at(line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, symbol: str, new: str) -> Iterator[tuple[int, int, str]]:
        begin, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        gap = source.encode()[begin:end].decode()
        if gap.count(symbol) == 1:
            here = begin + len(gap[: gap.index(symbol)].encode())
            yield here, here + len(symbol), new

    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            kind = type(node.ops[0])
            yield from between(node.left, node.comparators[0], SYMBOLS[kind], COMPARISONS[kind])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, old, new)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            yield from between(node.left, node.right, SYMBOLS[type(node.op)], ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield at(node.lineno, node.col_offset), at(node.operand.lineno, node.operand.col_offset), ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            begin = at(node.lineno, node.col_offset)
            yield begin, begin + len(node.func.id), SWAPPED[node.func.id]
        elif isinstance(node, ast.If) and len(node.body) == 1:
            if isinstance(node.body[0], ast.Return | ast.Continue | ast.Break):
                yield (
                    at(node.test.lineno, node.test.col_offset),
                    at(node.test.end_lineno, node.test.end_col_offset),
                    "False",
                )
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset), "pass"


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield (qualified name, node) of functions and methods. Nested functions are left out."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def candidates(module: str, seed: int = 0, root: Path = ROOT) -> Iterator[Mutant]:
    """Yield suggested mutants of a product's module, in a random order that depends on the seed."""
    source = (root / PRODUCT / Path(*module.split("."))).with_suffix(".py").read_text()
    raw = source.encode()
    found = [(name, edit) for name, node in functions(ast.parse(source)) for edit in edits(source, node)]
    random.Random(seed).shuffle(found)
    for name, (begin, end, new) in found:
        # Extend the fragment to whole lines, then line by line, until it is unique.
        first, last = raw.rfind(b"\n", 0, begin) + 1, raw.find(b"\n", end)
        left = first + len(raw[first:last]) - len(raw[first:last].lstrip())
        for _ in range(4):
            old = raw[left:last].decode()
            mutant = Mutant(f"{module}:{name}", old, (raw[left:begin] + new.encode() + raw[end:last]).decode())
            try:
                apply(mutant, root)
            except NotApplicableError:
                last = raw.find(b"\n", last + 1)
                if last < 0:
                    break
                continue
            yield mutant
            break


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants.suggest")
    parser.add_argument("module", help=f"below {PRODUCT}, as policies.shares")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    for one in itertools.islice(candidates(options.module, options.seed), options.count):
        print(f"    Mutant({one.place!r}, {one.old!r}, {one.new!r}),")
    return 0


if __name__ == "__main__":
    sys.exit(main())
