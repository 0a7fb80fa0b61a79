"""Commands for the configuration: config and reload."""

from __future__ import annotations

from pathlib import Path

import click

from agent.schema.errors import GangwatchError
from gangwatch.commands.options import config_option, json_option, print_json, say, state_option, user_name
from gangwatch.configuration.config_file import Change, Config, as_toml, changes, flatten, load
from gangwatch.configuration.in_force import read_in_force
from gangwatch.configuration.notices import notices_of
from gangwatch.controller_client import Client
from gangwatch.state_folder import NotRunningError, StateFolder
from gangwatch.supervisor.daemon_ends import why_no_controller


@click.command()
@state_option
@config_option
@json_option
def config(state: StateFolder, config_file: Path | None, as_json: bool) -> None:
    """Show the effective configuration as TOML, and how it differs from that of the running controller.

    An invalid file is reported with file, key and reason. Nothing is changed.

    \b
    Example:
      gangwatch config --config gangwatch.toml
    """
    show(state, load(config_file), as_json)


def show(state: StateFolder, effective: Config, as_json: bool) -> None:
    """Print the configuration, and on standard error how it differs from the running controller's. Change nothing."""
    in_force = read_in_force(state)
    running = in_force is not None and state.controller() is not None
    different = changes(in_force.config, effective) if in_force is not None and running else []
    if as_json:
        print_json(
            {
                "source": effective.source or None,
                "effective": flatten(effective),
                "running": running,
                "changes": [
                    {"key": one.key, "before": one.before, "after": one.after, "restart": one.restart}
                    for one in different
                ],
                "notices": list(notices_of(effective)),
            }
        )
        return
    click.echo(as_toml(effective), nl=False)
    say(f"# from {effective.source or 'the defaults alone'}")
    say_changes(different, "would change") if running else say("# no controller is running")
    say_notices(effective)


def say_notices(effective: Config) -> None:
    """Print on standard error each setting that has no effect, one per line."""
    for notice in notices_of(effective):
        say(f"Notice: {notice}")


def say_changes(different: list[Change], word: str) -> None:
    """Print each changed key on standard error, and whether it needs a restart. word: participle for the message, such
    as 'changed'."""
    if not different:
        say(f"# nothing {word}")
    for one in different:
        note = "needs `gangwatch down --keep-jobs` and `gangwatch up`" if one.restart else "applied by a reload"
        done = f"not {word}" if one.restart and word == "changed" else word
        say(f"# {done}: {one.key}: {one.before!r} -> {one.after!r}, {note}")


@click.command()
@state_option
@config_option
@click.option("--check-config", is_flag=True, help="Only show what would change.")
@json_option
def reload(state: StateFolder, config_file: Path | None, check_config: bool, as_json: bool) -> None:
    """Make the running controller read its configuration again (the same as sending it SIGHUP).

    An invalid file is rejected and the old configuration stays active. The mode and the policy change at once; the
    command lists the settings that need a restart.

    \b
    Example:
      gangwatch reload --check-config
    """
    in_force = read_in_force(state)
    if state.controller() is None or in_force is None:
        raise NotRunningError(why_no_controller(state))
    file = Path(in_force.file) if in_force.file else None
    if config_file is not None and config_file != file:
        raise GangwatchError(
            f"the controller was started with {file or 'no file'}: `reload` can't switch it to {config_file}"
        )
    wanted = in_force.read_again()
    different = changes(in_force.config, wanted)
    if check_config:
        show(state, wanted, as_json)
        return
    Client(state).post("/api/reload", {"by": user_name()})
    if as_json:
        print_json(
            {
                "changes": [{"key": one.key, "after": one.after, "restart": one.restart} for one in different],
                "notices": list(notices_of(wanted)),
            }
        )
    else:
        say_changes(different, "changed")
        say_notices(wanted)
