"""The command `support-bundle`: packs the files for a bug report."""

from __future__ import annotations

from pathlib import Path

import click

from gangwatch.commands.options import json_option, print_json, say, state_option
from gangwatch.state_folder import StateFolder


@click.command("support-bundle")
@state_option
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.tar.gz")
@click.option(
    "--cycles",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Number of latest journal cycles to include.",
)
@json_option
def support_bundle(state: StateFolder, target: Path, cycles: int, as_json: bool) -> None:
    """Pack versions, configuration, the end of the journal, the daemons' logs and metrics into FILE.tar.gz.

    The bundle contains no secrets: no tokens, no passwords, no environment, command line, folder or output of a job.
    Before it is written, it is searched for every secret in this machine's gangwatch configuration, and for text that
    looks like a secret (URLs with passwords, private keys, headers, tokens of known services).

    \b
    Example:
      gangwatch support-bundle /tmp/gangwatch-bundle.tar.gz
    """
    # The bundle brings in SQLite, which `--help` and shell completion must not load.
    from gangwatch.support.bundle import pack

    names = pack(state, target, cycles)
    if as_json:
        print_json({"file": str(target), "bytes": target.stat().st_size, "parts": names})
    else:
        say(f"{target}: {', '.join(names)}")
