"""The examples on the scheduler's page print what the page says that they print."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/explanation/scheduler.md"


def test_the_examples_on_the_page_come_out_as_shown() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 20 and not failed
