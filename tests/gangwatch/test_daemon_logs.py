"""Where the daemons write their logs: a file, and standard error in a container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gangwatch.logs import TO_STANDARD_ERROR
from gangwatch.state_folder import StateFolder

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import logging, sys
from pathlib import Path
from gangwatch.logs import configure_logging
from gangwatch.state_folder import StateFolder

state = StateFolder(Path(sys.argv[1]))
state.prepare()
configure_logging(state, "controller")
logging.getLogger("x").warning("the lease is lost")
"""
LINE = 'level=warning logger=x message="the lease is lost"'


@pytest.mark.parametrize("value", ["", "1"])
def test_standard_error_has_the_log_if_the_environment_says_so(value: str, tmp_path: Path) -> None:
    environment = {TO_STANDARD_ERROR: value, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert LINE in StateFolder(tmp_path).log_file("controller").read_text()
    assert (LINE in done.stderr) is bool(value), done.stderr


def test_the_images_set_the_variable() -> None:
    """Otherwise `kubectl logs` shows nothing."""
    assert f"{TO_STANDARD_ERROR}=1" in (ROOT / "Dockerfile").read_text()
