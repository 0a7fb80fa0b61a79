"""Commands that explain decisions: explain, story, stacks, verdict."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from gangwatch.commands.options import client_of, json_option, print_json, say, state_option, user_name
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@click.argument("job")
@json_option
def explain(state: StateFolder, job: str, as_json: bool) -> None:
    """Explain why JOB is pending, what it waits for, when it should start, and what would let it start sooner.

    \b
    Example:
      gangwatch explain j-000001
    """
    explanation: dict[str, Any] = client_of(state).get(f"/api/jobs/{quote(job, safe='')}/explain")
    if as_json:
        print_json(explanation)
        return
    from gangwatch.display import rendering  # rich, which --json does not need, is half of the start-up time

    rendering.explanation(explanation)


@click.command()
@state_option
@click.argument("subject", metavar="JOB|node:NAME")
@json_option
def story(state: StateFolder, subject: str, as_json: bool) -> None:
    """Show what happened to a job or a node, and why, with the evidence and the cost terms of each decision.

    \b
    Example:
      gangwatch story j-000001
      gangwatch story node:node-2 --json
    """
    kind, _, name = subject.rpartition(":")
    path = (
        f"/api/nodes/{quote(name, safe='')}/story" if kind == "node" else f"/api/jobs/{quote(subject, safe='')}/story"
    )
    entries: list[dict[str, Any]] = client_of(state).get_all(path)
    if as_json:
        print_json(entries)
        return
    from gangwatch.display import rendering

    rendering.story(entries)


@click.command()
@state_option
@click.argument("job")
@click.option("--rank", type=click.IntRange(0), help="Only this rank. Default: all ranks that reported.")
@click.option("--attempt", type=click.IntRange(1), help="Default: the latest.")
@json_option
def stacks(state: StateFolder, job: str, rank: int | None, attempt: int | None, as_json: bool) -> None:
    """Show where the ranks of JOB were blocked when it hung: collective, group and Python stacks.

    The controller saves them with the verdict, before a restart ends the processes.

    \b
    Example:
      gangwatch stacks j-000001 --rank 3
    """
    query = f"?attempt={attempt}" if attempt is not None else ""
    found: dict[str, Any] = client_of(state).get(f"/api/jobs/{quote(job, safe='')}/stacks{query}")
    if rank is not None:
        found["ranks"] = [one for one in found["ranks"] if one["rank"] == rank]
    if as_json:
        print_json(found)
        return
    click.echo(f"{found['job']}, attempt {found['attempt']}: {found['text']}")
    for one in found["ranks"]:
        number = "" if one["sequence"] is None else f" number {one['sequence']}"
        inside = f", in {one['operation']}{number} of group {one['group']}" if one["operation"] else ""
        silent = "" if one["answered"] else ", does not answer"
        click.echo(
            f"\nrank {one['rank']} on {one['node']}{inside}{silent}: no progress for {one['quiet_seconds']:.0f} s"
        )
        if one.get("communicators"):
            click.echo(f"NCCL reports: {one['communicators']}")
        if one["stacks"]:
            click.echo(one["stacks"])


@click.command()
@state_option
@click.argument("action", type=click.Choice(["list", "confirm", "reject"]))
@click.argument("verdict_id", metavar="[ID]", required=False)
@json_option
def verdict(state: StateFolder, action: str, verdict_id: str | None, as_json: bool) -> None:
    """List verdicts, active ones first, or review one: confirm it, or reject it, which releases its node.

    \b
    Example:
      gangwatch verdict list
      gangwatch verdict reject VERDICT
    """
    client = client_of(state)
    if action != "list":
        if verdict_id is None:
            raise click.UsageError(f"which verdict? gangwatch verdict {action} ID")
        client.post(f"/api/verdicts/{quote(verdict_id, safe='')}/{action}", {"by": user_name()})
        say(f"{verdict_id}: {action}ed")
        return
    if verdict_id is not None:
        raise click.UsageError("list takes no verdict ID")
    listed: list[dict[str, Any]] = client.get_all("/api/verdicts")
    if as_json:
        print_json(listed)
        return
    from gangwatch.display import rendering

    rendering.verdicts(listed)
