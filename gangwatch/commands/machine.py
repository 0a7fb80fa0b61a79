"""`gangwatch check`."""

from __future__ import annotations

from pathlib import Path

import click

from gangwatch.commands.options import config_option, json_option, print_json, state_option
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@config_option
@json_option
def check(state: StateFolder, config_file: Path | None, as_json: bool) -> None:
    """Say what was found on this machine, what is missing, and which package or setting brings it.

    What is missing keeps nothing from running: gangwatch then measures less, or does the same otherwise. Exits with 0.

    \b
    Example:
      gangwatch check --json
    """
    import msgspec

    from gangwatch import config, machine

    found = machine.examine(state, config.load(config_file).controller.port)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    from gangwatch import rendering

    rendering.machine(found)
