"""`gangwatch`: the command line.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 no controller is running, 4 an extra is not installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from agent.schema.errors import ExtraMissingError, GangwatchError
from gangwatch.state_folder import NotRunningError

DONE, FAILED, NOTHING_THERE, EXTRA_MISSING = 0, 1, 3, 4

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("gangwatch.commands.lifecycle:up", "Start the agents and the controller."),
    "down": ("gangwatch.commands.lifecycle:down", "Stop everything, running jobs included."),
    "submit": ("gangwatch.commands.jobs.jobs:submit", "Submit a gang of processes."),
    "templates": ("gangwatch.commands.jobs.templates:templates", "List templates of jobs, or show one."),
    "jobs": ("gangwatch.commands.jobs.jobs:jobs", "List jobs, or show one: state, time, reason."),
    "logs": ("gangwatch.commands.jobs.jobs:logs", "Show the output of a job's ranks."),
    "cancel": ("gangwatch.commands.jobs.jobs:cancel", "Stop jobs; they are not restarted."),
    "explain": ("gangwatch.commands.jobs.reasons:explain", "Explain why a job is pending, and what it waits for."),
    "story": ("gangwatch.commands.jobs.reasons:story", "Show what happened to a job or node, and why."),
    "stacks": ("gangwatch.commands.jobs.reasons:stacks", "Show where the ranks of a hanging job are blocked."),
    "verdict": ("gangwatch.commands.jobs.reasons:verdict", "List, confirm or reject verdicts."),
    "nodes": ("gangwatch.commands.cluster:nodes", "List nodes, their slots and states."),
    "queue": ("gangwatch.commands.cluster:queue", "List pending jobs, and what each waits for."),
    "top": ("gangwatch.commands.top:top", "Show the cluster live in the terminal."),
    "node": ("gangwatch.commands.cluster:node", "Release, quarantine or remove a node, or drain it for maintenance."),
    "freeze": ("gangwatch.commands.cluster:freeze", "Stop all actions at once; running jobs continue."),
    "thaw": ("gangwatch.commands.cluster:thaw", "Allow actions again."),
    "detect": ("gangwatch.commands.offline.detect:detect", "Find stragglers and their causes in recorded steps."),
    "simulate": (
        "gangwatch.commands.offline.simulate:simulate",
        "Run the scheduler over a trace of jobs, on a virtual clock.",
    ),
    "replay": ("gangwatch.commands.offline.replay:replay", "Replay the journal's decisions offline and compare them."),
    "backup": ("gangwatch.commands.backup:backup", "Copy the journal while it is in use, and verify the copy."),
    "support-bundle": (
        "gangwatch.commands.support_bundle:support_bundle",
        "Pack the files for a bug report, without secrets.",
    ),
    "dashboards": ("gangwatch.commands.dashboards:dashboards", "Write Grafana dashboards, recording rules and alerts."),
    "slurm": (
        "gangwatch.commands.slurm:slurm",
        "With Slurm: submit restartable jobs, hold and release jobs, report actions.",
    ),
    "check": ("gangwatch.commands.check:check", "Check this machine or cluster: what works and what is missing."),
    "demo": (
        "gangwatch.demo.command:demo",
        "Watch gangwatch detect a real straggler and move the job, on this machine.",
    ),
    "config": ("gangwatch.commands.configuration:config", "Show the effective configuration, or its first error."),
    "reload": ("gangwatch.commands.configuration:reload", "Make the controller read its configuration again."),
    "token": ("gangwatch.commands.authentication.token:token", "Create, list and revoke tokens with roles."),
    "whoami": ("gangwatch.commands.authentication.token:whoami", "Show your user and role at the controller."),
    "agent": ("gangwatch.commands.lifecycle:agent", "Run one node's agent in the foreground."),
    "controller": ("gangwatch.commands.lifecycle:controller", "Run the controller in the foreground."),
    "certificates": (
        "gangwatch.commands.authentication.certificates:certificates",
        "Issue, renew and revoke one certificate per node.",
    ),
    "kubernetes": (
        "gangwatch.commands.kubernetes:kubernetes",
        "Schedule a Kubernetes cluster, or advise its scheduler.",
    ),
}
"""Import path and one-line help of each command, by command name."""


class CommandTable(click.Group):
    """Click group of all COMMANDS. The module of a command is imported when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            import difflib  # imports inside functions here: `gangwatch` starts without them

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"no such command: {args[0]}" + (f" (did you mean {near[0]}?)" if near else ""))
        return super().resolve_command(ctx, args)


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"gangwatch {version('gangwatch')}")
        context.exit()


@click.group(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Telemetry and gang scheduling for GPU training clusters.

    \b
    Example:
      gangwatch up
      gangwatch submit --ranks 2 --restartable -- python train.py
      gangwatch jobs
      gangwatch down

    Exit codes: 0 done; 1 failed or refused; 2 wrong usage; 3 no controller is running; 4 packages are missing (the
    error has the install command).
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    An expected error is printed as one line on standard error. An exception because of a bug is raised.
    """
    try:
        code = cli.main(arguments, "gangwatch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return 128 + 2  # as a shell counts SIGINT
    except NotRunningError as error:
        click.echo(f"Error: {error}", err=True)
        return NOTHING_THERE
    except ExtraMissingError as error:
        click.echo(f"Error: {error}", err=True)
        return EXTRA_MISSING
    except GangwatchError as error:
        click.echo(f"Error: {error}", err=True)
        return FAILED
    except ModuleNotFoundError as error:
        from gangwatch.extras import missing_of

        if (missing := missing_of(error)) is None:
            raise
        click.echo(f"Error: {missing}", err=True)
        return EXTRA_MISSING
    return code if isinstance(code, int) else DONE
