"""systemd units: systemd accepts them, they are hardened, and their commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from gangwatch.cli import cli
from tests import needs

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"

MOST_EXPOSURE = {
    "gangwatch-agent.service": 4.0,
    "gangwatch-slurm.service": 3.0,
    "gangwatch-kubernetes.service": 3.0,
    "gangwatch.service": 9.5,
}
"""Limit of systemd's exposure score, 0 to 10, by unit. The agent needs the network, root and devices, which raise the
score; ``gangwatch.service`` runs users' jobs, which may need anything."""


def test_every_unit_has_a_limit() -> None:
    assert {unit.name for unit in UNITS.glob("*.service")} == set(MOST_EXPOSURE)


@pytest.mark.parametrize("name", MOST_EXPOSURE)
def test_systemd_accepts_the_unit_and_rates_it_hardened(name: str) -> None:
    program = needs.component("systemd-analyze", "systemd")
    threshold = f"--threshold={int(MOST_EXPOSURE[name] * 10)}"
    judged = subprocess.run(
        [program, "security", "--offline=true", threshold, "--no-pager", str(UNITS / name)],
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    # systemd warns of unknown keys and ignores them.
    assert "Unknown" not in judged.stderr and "Failed to parse" not in judged.stderr, judged.stderr


@pytest.mark.parametrize("name", MOST_EXPOSURE)
def test_the_units_commands_parse(name: str) -> None:
    found = re.findall(r"^Exec\w+=\S+/gangwatch (.*)$", (UNITS / name).read_text(), re.MULTILINE)
    assert found
    for line in found:
        group, words = cli, shlex.split(re.sub(r"/etc/gangwatch/\S+", "/dev/null", line))
        command: click.Command = cli
        while isinstance(command, click.Group):
            group, (word, *words) = command, words
            found_command = group.get_command(click.Context(group), word)
            assert found_command is not None, word
            command = found_command
        command.make_context(command.name, words)
