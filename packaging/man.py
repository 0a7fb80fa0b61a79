"""Generator of the manual pages of all commands, from their `--help`: `make man` writes build/man/*.1.

python packaging/man.py FOLDER
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
from click_man.core import write_man_pages

from gangwatch.cli import COMMANDS, cli


def loaded(group: click.Group) -> click.Group:
    """Return the group with all of its commands imported. Otherwise `gangwatch` imports a command only when it is
    called."""
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        group.add_command(command, name)
        command.short_help = COMMANDS[name][1]
    for command in every(group):
        command.help = re.sub(r" *\x08\n", "", command.help or "")  # click's mark: do not wrap this paragraph
    return group


def every(command: click.Command) -> Iterator[click.Command]:
    """Yield the command and all of its subcommands."""
    yield command
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from every(below)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_man_pages("gangwatch", loaded(cli), version=version("gangwatch"), target_dir=str(folder))
    click.echo(f"{len(list(folder.glob('*.1')))} manual pages in {folder}: install them in /usr/local/share/man/man1")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
