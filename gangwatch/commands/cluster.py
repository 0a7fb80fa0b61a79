"""Commands for the cluster: nodes, queue, node, freeze, thaw."""

from __future__ import annotations

from urllib.parse import quote

import click

from gangwatch.commands.options import client_of, json_option, print_json, say, state_option, user_name
from gangwatch.state_folder import StateFolder


@click.command()
@state_option
@json_option
def nodes(state: StateFolder, as_json: bool) -> None:
    """List nodes: slots, who is on them, state and why.

    \b
    Example:
      gangwatch nodes --json
    """
    listed = client_of(state).get("/api/nodes")
    if as_json:
        print_json(listed)
        return
    from gangwatch import rendering

    rendering.nodes(listed)


@click.command()
@state_option
@json_option
def queue(state: StateFolder, as_json: bool) -> None:
    """List the jobs that wait, first the first, with the reason and the expected start of each; and draw the cluster.

    The drawing has a line a node and a sign a slot: who holds it, what is kept for the first in the queue ('+'), and
    who went ahead of it meanwhile.

    \b
    Example:
      gangwatch queue --json
    """
    client = client_of(state)
    waiting = client.get("/api/queue")
    if as_json:
        print_json(waiting)
        return
    from gangwatch import rendering

    rendering.queue(waiting, client.get("/api/nodes"), client.get("/api/jobs?active=1"))


@click.command()
@state_option
@click.argument("action", type=click.Choice(["release", "quarantine", "maintenance"]))
@click.argument("node")
@click.option("--reason", default="", help="Kept in the node's story.")
def node(state: StateFolder, action: str, node: str, reason: str) -> None:
    """Release NODE, put it in quarantine, or take it out for maintenance.

    Quarantine takes nothing new and ends by a probe; maintenance ends only by `release`. Running jobs are left alone.

    \b
    Example:
      gangwatch node maintenance node-2 --reason "new NIC"
    """
    client_of(state).post(f"/api/nodes/{quote(node, safe='')}/{action}", {"by": user_name(), "reason": reason})
    say(f"{node}: {action}")


@click.command()
@state_option
def freeze(state: StateFolder) -> None:
    """Stop all actions within a second: nothing is started, moved or stopped until `thaw`. Survives restarts.

    Running jobs go on; verdicts are still found and decisions still logged. Only your own `cancel` still acts.

    \b
    Example:
      gangwatch freeze
    """
    answer = client_of(state).post("/api/freeze", {"by": user_name()})
    if warning := answer.get("warning"):
        say(f"warning: {warning}")
    say("frozen: running jobs go on, nothing is started, moved or stopped")


@click.command()
@state_option
def thaw(state: StateFolder) -> None:
    """Allow actions again.

    \b
    Example:
      gangwatch thaw
    """
    client_of(state).post("/api/thaw", {"by": user_name()})
    say("thawed")
