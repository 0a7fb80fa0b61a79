"""Options of `gangwatch submit` with a number: nan and infinity are refused by name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gangwatch.cli import cli


@pytest.mark.parametrize("option", ["--slot-share", "--latency-objective", "--dataset-gib"])
def test_nan_is_refused_by_the_option(option: str) -> None:
    done = CliRunner().invoke(cli, ["submit", option, "nan", "--", "true"])
    assert done.exit_code == 2
    assert f"'{option}': nan is not a finite number" in done.output
