"""Examples on the scheduler's page: they print the output that the page shows."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/explanation/scheduler.md"


def test_the_examples_print_the_output_on_the_page() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 20 and not failed
