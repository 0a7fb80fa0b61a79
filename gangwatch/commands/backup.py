"""The command `backup`: copies the journal."""

from __future__ import annotations

from pathlib import Path

import click

from gangwatch.commands.options import json_option, print_json, say, state_option
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@json_option
def backup(state: StateFolder, target: Path, as_json: bool) -> None:
    """Copy the journal to FILE, whether or not a controller is running. The copy is consistent and is verified before
    it gets its final name.

    To restore: `gangwatch down`, replace store.sqlite in the state folder with FILE, `gangwatch up`. The backup does
    not include the token and the logs.

    \b
    Example:
      gangwatch backup /var/backups/gangwatch.sqlite
    """
    # The journal brings in SQLite, which `--help` and shell completion must not load.
    from scheduler_feedback.journal.backup import back_up

    copied = back_up(state.path / "store.sqlite", target)
    if as_json:
        print_json(
            {"file": str(copied.path), "bytes": copied.size_bytes, "cycle": copied.cycle, "cycles": copied.cycles}
        )
    else:
        say(f"{copied.path}: {copied.size_bytes} bytes, up to cycle {copied.cycle}; verified")
