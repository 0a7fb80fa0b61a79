"""Options --collector.NAME and --no-collector.NAME of `gangwatch agent`, for every collector."""

from __future__ import annotations

import re

import click

_KEY = "gangwatch.collectors"
_SWITCH = re.compile(r"--(no-)?collector\.(.+)")
_DISABLE_DEFAULTS = "--collector.disable-defaults"


class CollectorCommand(click.Command):
    """Command with the collectors' options.

    They are not declared to click, because their names are in the registry of collectors, which is slow to load. The
    configuration rejects unknown names.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        chosen: dict[str, bool] = {}
        others: list[str] = []
        for position, argument in enumerate(args):
            if argument == "--":
                others.extend(args[position:])
                break
            if argument == _DISABLE_DEFAULTS:
                chosen["*"] = False
            elif (found := _SWITCH.fullmatch(argument)) is not None:
                chosen[found[2]] = found[1] is None
            else:
                others.append(argument)
        ctx.meta[_KEY] = chosen
        return super().parse_args(ctx, others)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with the collectors' options for `--help`."""
        *others, help_option = super().get_params(ctx)
        shown = [
            click.Option(
                ["collector_name", "--collector.NAME/--no-collector.NAME"],
                expose_value=False,
                help="Run the collector NAME, or not (docs/how-to/agent.md); repeatable.",
            ),
            click.Option(
                ["collector_disable_defaults", _DISABLE_DEFAULTS],
                is_flag=True,
                expose_value=False,
                help="Run only collectors with --collector.NAME.",
            ),
        ]
        return [*others, *shown, help_option]


def chosen_collectors(context: click.Context) -> dict[str, bool]:
    """Return whether the command line enables each collector that it names, by name; '*' is all others."""
    return dict(context.meta.get(_KEY, {}))
