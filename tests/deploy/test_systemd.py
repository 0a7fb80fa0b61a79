"""The systemd unit: systemd accepts it, it is hardened, and its options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click

from gangwatch.cli import cli
from tests import needs

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "gangwatch-agent.service"

MOST_EXPOSURE = 4.0
"""Limit of systemd's exposure score, 0 to 10. The unit needs the network, root and devices, which raise the score."""


def test_systemd_accepts_the_unit_and_rates_it_hardened() -> None:
    program = needs.component("systemd-analyze", "systemd")
    judged = subprocess.run(
        [program, "security", "--offline=true", f"--threshold={int(MOST_EXPOSURE * 10)}", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    # systemd warns of unknown keys and ignores them.
    assert "Unknown" not in judged.stderr and "Failed to parse" not in judged.stderr, judged.stderr


def test_the_units_command_parses() -> None:
    found = re.search(r"^ExecStart=\S+/gangwatch (.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    name, *words = shlex.split(found[1])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, [word.replace("/etc/gangwatch/gangwatch.toml", "/dev/null") for word in words])
