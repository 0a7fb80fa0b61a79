"""Command that packs what a bug report needs: support-bundle."""

from __future__ import annotations

from pathlib import Path

import click

from gangwatch.commands.options import json_option, print_json, say, state_option
from gangwatch.state_folder import StateFolder


@click.command("support-bundle")
@state_option
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.tar.gz")
@click.option("--cycles", default=1000, show_default=True, type=click.IntRange(0), help="Of the journal's end.")
@json_option
def support_bundle(state: StateFolder, target: Path, cycles: int, as_json: bool) -> None:
    """Pack versions, configuration, the end of the journal, the daemons' logs and metrics into FILE.tar.gz.

    No secret goes in: no token, no password, no job's environment, command line or folder, nothing that a job wrote.
    What was packed is searched once more for every secret that this machine's gangwatch knows, and for whatever looks
    like one (URLs with passwords, private keys, headers, tokens of known services).

    \b
    Example:
      gangwatch support-bundle /tmp/gangwatch-bundle.tar.gz
    """
    from gangwatch.support.bundle import pack

    names = pack(state, target, cycles)
    if as_json:
        print_json({"file": str(target), "bytes": target.stat().st_size, "parts": names})
    else:
        say(f"{target}: {', '.join(names)}")
