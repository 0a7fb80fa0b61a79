"""The command `templates`, and the options of `submit` for a template."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gangwatch.commands.options import environment, json_option, print_json
from gangwatch.job_templates import files, template
from gangwatch.job_templates.template import Parameter, Template, TemplateError

_Command = TypeVar("_Command", bound=Callable[..., Any])


def template_options(command: _Command) -> _Command:
    """Add --template and --set to a command. It receives `template_name` (None: none) and `template_values`."""
    for option in (
        click.option(
            "--set",
            "template_values",
            multiple=True,
            callback=environment,
            metavar="NAME=VALUE",
            help="Parameter of the template; repeatable.",
        ),
        click.option(
            "--template",
            "template_name",
            metavar="NAME|FILE",
            help="Template of the job (`gangwatch templates`); COMMAND is its words.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class FromTemplate:
    """What a template contributes to a specification."""

    command: list[str]
    fields: dict[str, Any]
    environment: dict[str, str]


def rendered(name: str, values: dict[str, str], words: Sequence[str]) -> FromTemplate:
    """Return the job of a template for the values and words of the command line. Raises click.UsageError."""
    try:
        path = files.find(name, os.environ)
        found = files.load(path)
        given = {key: _absolute(key, found.parameters.get(key), value) for key, value in values.items()}
        made = template.render(found, given, words, sys.executable)
    except TemplateError as error:
        raise click.UsageError(str(error)) from None
    fields = dict(made.job)
    return FromTemplate(made.command, fields, fields.pop("environment", {}))


def _absolute(name: str, parameter: Parameter | None, value: str) -> str:
    """Return the absolute path of a parameter of the type file, and other values as they are."""
    if parameter is None or parameter.type != "file":
        return value
    path = Path(value).expanduser().resolve()
    if not path.is_file():
        raise TemplateError(f"--set {name}: {path} is not a file")
    return str(path)


@click.command()
@json_option
@click.argument("name", required=False)
def templates(as_json: bool, name: str | None) -> None:
    """List the templates for `gangwatch submit --template`, or show the parameters of one.

    NAME is a template's name or its file. Own templates are *.toml files in the folders of GANGWATCH_TEMPLATES
    (separated by colons), which precede the shipped ones.

    With --json: a list of {name, file, description}, or {name, file, description, words, command, job, schema} of one;
    schema is a JSON Schema of the parameters.

    \b
    Example:
      gangwatch templates
      gangwatch templates mpi
      gangwatch submit --template mpi --ranks 4 --set threads=2 -- ./solve input.dat
    """
    try:
        if name is not None:
            path = files.find(name, os.environ)
            _show(path, files.load(path), as_json)
            return
        found = {known: (path, files.load(path)) for known, path in sorted(files.names(os.environ).items())}
    except TemplateError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json(
            [{"name": one, "file": str(path), "description": made.description} for one, (path, made) in found.items()]
        )
        return
    from gangwatch.display import tables  # rich, which --json does not need, is half of the start-up time

    table = tables.table_of("NAME", "DESCRIPTION")
    for one, (_, made) in found.items():
        tables.add_row(table, one, made.description)
    tables.print_table(tables.output_console(), table)


def _show(path: Path, found: Template, as_json: bool) -> None:
    if as_json:
        document = msgspec.to_builtins(found)
        del document["parameters"]
        print_json({"name": path.stem, "file": str(path), **document, "schema": template.schema(found)})
        return
    click.echo(f"{path.stem}: {found.description}\n")
    click.echo(f"gangwatch submit --template {path.stem} [--set NAME=VALUE]... -- {found.words}\n")
    for name, parameter in found.parameters.items():
        click.echo(f"  {name} ({_type(parameter)}): {parameter.help or 'no description'}")
    click.echo(f"\n{path}")


def _type(parameter: Parameter) -> str:
    words = [parameter.type if not parameter.choices else "one of " + ", ".join(map(str, parameter.choices))]
    if parameter.minimum is not None:
        words.append(f"at least {parameter.minimum:g}")
    if parameter.maximum is not None:
        words.append(f"at most {parameter.maximum:g}")
    if parameter.default is not None:
        words.append(f"default {parameter.default}")
    elif not parameter.optional:
        words.append("required")
    return ", ".join(words)
