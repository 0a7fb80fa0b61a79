"""Commands that give reasons: explain, story, verdict."""

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
    """Say why JOB waits, what it waits for, when it is expected to start, and what would change that.

    \b
    Example:
      gangwatch explain j-000001
    """
    explanation: dict[str, Any] = client_of(state).get(f"/api/jobs/{quote(job, safe='')}/explain")
    if as_json:
        print_json(explanation)
        return
    from gangwatch.display import rendering

    rendering.explanation(explanation)


@click.command()
@state_option
@click.argument("subject", metavar="JOB|node:NAME")
@json_option
def story(state: StateFolder, subject: str, as_json: bool) -> None:
    """Tell what happened to a job, or to a node, and why: with evidence and the terms of each decision.

    \b
    Example:
      gangwatch story j-000001
      gangwatch story node:node-2 --json
    """
    kind, _, name = subject.rpartition(":")
    path = (
        f"/api/nodes/{quote(name, safe='')}/story" if kind == "node" else f"/api/jobs/{quote(subject, safe='')}/story"
    )
    told: list[dict[str, Any]] = client_of(state).get_all(path)
    if as_json:
        print_json(told)
        return
    from gangwatch.display import rendering

    rendering.story(told)


@click.command()
@state_option
@click.argument("action", type=click.Choice(["list", "confirm", "reject"]))
@click.argument("verdict_id", metavar="[ID]", required=False)
@json_option
def verdict(state: StateFolder, action: str, verdict_id: str | None, as_json: bool) -> None:
    """List the verdicts, those that stand first, or judge one: confirm it, or reject it (its node is released).

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
        raise click.UsageError("list takes no verdict's id")
    listed: list[dict[str, Any]] = client.get_all("/api/verdicts")
    if as_json:
        print_json(listed)
        return
    from gangwatch.display import rendering

    rendering.verdicts(listed)
