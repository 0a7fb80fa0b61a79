"""Command-line options and output functions that several commands share."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gangwatch.configuration.config_file import load
from gangwatch.configuration.durations import parse_duration
from gangwatch.connection import Trust
from gangwatch.controller_client import Client, Remote
from gangwatch.state_folder import StateFolder
from scheduler_feedback.core.plain_text import misleading

Command = TypeVar("Command", bound=Callable[..., Any])


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an option value such as 90, 90s, 10m or 2h (click callback)."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def plain(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the value. Reject control and bidirectional characters (click callback)."""
    if value is not None and (wrong := misleading(f"the {parameter.name}", value)) is not None:
        raise click.BadParameter(wrong)
    return value


def environment(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the NAME=VALUE pairs of a repeated option as a dict (click callback)."""
    pairs = {}
    for value in values:
        name, separator, content = value.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[name] = content
    return pairs


def _as_state_folder(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> StateFolder:
    return StateFolder(value)


def state_option(command: Command) -> Command:
    """Add the option --state DIR to a command. The command receives a StateFolder."""
    return click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        callback=_as_state_folder,
        metavar="DIR",
        help="State folder. Default: $GANGWATCH_STATE, else ~/.local/state/gangwatch.",
    )(command)


def config_option(command: Command) -> Command:
    """Add the option --config FILE to a command. The command receives an absolute path, or None if it is not given."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path, resolve_path=True),
        metavar="FILE",
        help="Configuration. Default: $GANGWATCH_CONFIG, else ~/.config/gangwatch/gangwatch.toml if it exists.",
    )(command)


def json_option(command: Command) -> Command:
    """Add the flag --json to a command. The command receives it as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(command)


def cluster_options(command: Command) -> Command:
    """Add the options that override the configuration to the commands `up` and `controller`."""
    for option in (
        click.option("--web-config", metavar="FILE", help="TLS and passwords, in the exporter-toolkit's format."),
        click.option("--listen", metavar="HOST:PORT", help="Controller address; off loopback it needs --web-config."),
        click.option("--no-gpus", is_flag=True, help="Use CPU slots even if the machine has GPUs."),
        click.option("--port", type=int, help="The controller's port on loopback; 0 picks a free one."),
        click.option("--slots", type=int, help="Slots per node. Default: the node's share of GPUs or processors."),
        click.option("--nodes", type=int, help="Virtual nodes on this machine. Default: from its size."),
    ):
        command = option(command)
    return command


def overrides(
    nodes: int | None,
    slots: int | None,
    port: int | None,
    no_gpus: bool,
    listen: str | None = None,
    web_config: str | None = None,
) -> dict[str, object]:
    """Return the values of the options that `cluster_options` adds, by configuration key."""
    return {
        "controller.listen": listen,
        "controller.web_config": str(Path(web_config).absolute()) if web_config is not None else None,
        "cluster.nodes": nodes,
        "cluster.slots": slots,
        "controller.port": port,
        "cluster.gpus": False if no_gpus else None,
    }


def client_of(state: StateFolder) -> Client:
    """Return a client of the state folder's controller, or of [client].url if no state folder was given.

    Raises ConfigError if the configuration file is invalid.
    """
    section = load(None).client
    token_file, ca_file, cert_file, key_file = (
        Path(file).expanduser() if file is not None else None
        for file in (section.token_file, section.ca_file, section.cert_file, section.key_file)
    )
    trust = Trust(None, ca_file, cert_file, key_file)
    if state.named or not section.url:
        return Client(state, trust=trust)
    return Client(state, remote=Remote(section.url, token_file, trust))


def user_name() -> str:
    """Return the login name of the calling user, which is recorded with each request to the controller."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name: KeyError before Python 3.13, OSError since
        return str(os.getuid())


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print a message on standard error; standard output is for results."""
    click.echo(text, err=True)
