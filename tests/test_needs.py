"""Skipped tests: each names the missing requirement and fails where all are required, by use of tests/needs.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import needs

TESTS = Path(__file__).parent

BYPASSES = {"skip", "skipif", "importorskip", "SkipTest", "skipTest", "skipUnless", "skipIf", "xfail", "exit"}
"""Functions and marks of pytest and unittest that skip a test or ignore its result."""


def bypasses(source: str) -> list[str]:
    """Return `line: name` of each skip in the source that does not use tests/needs.py."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in BYPASSES:
            if ast.unparse(node.value).split(".")[0] in ("pytest", "unittest", "self", "mark"):
                found.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest", "_pytest.outcomes"):
            found += [f"{node.lineno}: {name.name}" for name in node.names if name.name in {*BYPASSES, "mark", "case"}]
        elif isinstance(node, ast.Name) and node.id in ("collect_ignore", "collect_ignore_glob"):
            found.append(f"{node.lineno}: {node.id}")
    return found


def test_every_skip_uses_tests_needs() -> None:
    own = TESTS / "needs.py"
    found = {str(path): here for path in TESTS.rglob("*.py") if path != own and (here := bypasses(path.read_text()))}
    assert found == {}, "call tests.needs.absent instead, which fails under GANGWATCH_REQUIRE=all"


@pytest.mark.parametrize(
    "source",
    [
        "pytest.skip('x')",
        "@pytest.mark.skipif(True, reason='x')\ndef test(): pass",
        "pytest.importorskip('x')",
        "from pytest import skip as leave\nleave('x')",
        "from unittest import SkipTest",
        "pytestmark = [pytest.mark.skip]",
        "pytest.mark.xfail(reason='x')",
        "collect_ignore = ['test_x.py']",
    ],
)
def test_another_way_to_skip_is_detected(source: str) -> None:
    assert bypasses(source)


def test_a_skip_names_the_missing_requirement_and_fails_if_all_are_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GANGWATCH_REQUIRE", raising=False)
    with pytest.raises(BaseException, match=r"no-such-program is absent: apt-get install a-package") as caught:
        needs.component("no-such-program", "a-package")
    assert type(caught.value).__name__ == "Skipped"
    monkeypatch.setenv("GANGWATCH_REQUIRE", "all")
    for need in (
        lambda: needs.component("no-such-program", "a-package"),
        lambda: needs.package("no_such_module"),
        lambda: needs.data("no-such-trace"),
        lambda: needs.python_with("no_such_module", "python3-nothing"),
        lambda: needs.small_file_system(tmp_path / "absent", "400k"),
        lambda: needs.read_only(tmp_path / "absent"),
    ):
        with pytest.raises(BaseException, match=r"^GANGWATCH_REQUIRE=all, and ") as caught:
            need()
        assert type(caught.value).__name__ == "Failed"
