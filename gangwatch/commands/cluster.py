"""Commands for the cluster: nodes, queue, node, freeze, thaw."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import click

from gangwatch.commands.options import (
    client_of,
    duration,
    json_option,
    plain,
    print_json,
    say,
    state_option,
    user_name,
)
from gangwatch.controller_client import Client, RefusedError
from gangwatch.state_folder import NotRunningError, StateFolder

POLL_SECONDS = 0.5
"""Seconds between two requests for the state of a node that is being drained."""


@click.command()
@state_option
@json_option
def nodes(state: StateFolder, as_json: bool) -> None:
    """List nodes: slots, the jobs on them, state and reason.

    \b
    Example:
      gangwatch nodes --json
    """
    listed = client_of(state).get_all("/api/nodes")
    if as_json:
        print_json(listed)
        return
    from gangwatch.display import rendering  # rich, which --json does not need, is half of the start-up time

    rendering.nodes(listed)


@click.command()
@state_option
@json_option
def queue(state: StateFolder, as_json: bool) -> None:
    """List pending jobs in scheduling order, with the reason and expected start of each, and draw the cluster.

    The drawing has one line per node and one character per slot. It shows which job holds the slot, which slots are
    reserved for the head of the queue ('+'), and which jobs were backfilled ahead of it.

    \b
    Example:
      gangwatch queue --json
    """
    client = client_of(state)
    waiting = client.get_all("/api/queue", "waiting")
    if as_json:
        print_json(waiting)
        return
    from gangwatch.display import rendering

    rendering.queue(waiting, client.get_all("/api/nodes"), client.get_all("/api/jobs?active=1"))


@click.command()
@state_option
@click.argument("action", type=click.Choice(["release", "quarantine", "maintenance", "remove"]))
@click.argument("node")
@click.option("--reason", default="", callback=plain, help="Recorded in the node's story.")
@click.option(
    "--drain", is_flag=True, help="With maintenance: move restartable jobs away, and wait until the node is empty."
)
@click.option("--timeout", callback=duration, metavar="DURATION", help="With --drain: longest wait. Default: no limit.")
@json_option
def node(
    state: StateFolder, action: str, node: str, reason: str, drain: bool, timeout: float | None, as_json: bool
) -> int:
    """Release NODE, put it into quarantine or maintenance, or remove it.

    A node in quarantine or maintenance starts no new jobs. A probe that passes ends quarantine; only `release` ends
    maintenance. Running jobs continue, and the command lists them.

    With --drain, gangwatch stops each restartable job (the job saves first) and restarts it on other nodes, or queues
    it if there is no room. Other jobs run to their end. The command waits until the node is empty. Ctrl-C ends only
    the wait: the node stays in maintenance and the drain continues.

    `remove` deletes a node that no longer exists. It is refused if the node still reports or a job holds its slots.

    Exit codes: 0 done (with --drain: the node is empty); 1 refused or timed out.

    \b
    Example:
      gangwatch node maintenance node-2 --reason "new NIC"
      gangwatch node maintenance node-2 --drain --timeout 30m
      gangwatch node remove node-7 --reason "sold"
    """
    if action != "maintenance" and (drain or timeout is not None):
        raise click.UsageError(f"--drain and --timeout apply to maintenance, not to {action}")
    if timeout is not None and not drain:
        raise click.UsageError("--timeout needs --drain")
    client = client_of(state)
    path = f"/api/nodes/{quote(node, safe='')}/{action}"
    body = {"by": user_name(), "reason": reason}
    left: dict[str, Any] = client.post(path, body | {"drain": True} if drain else body)
    say({"remove": f"{node}: removed", "release": f"{node}: released"}.get(action, f"{node}: in {action}"))
    empty = True
    if action in ("maintenance", "quarantine"):
        from gangwatch.display import rendering

        for line in rendering.still_there(node, left):
            say(line)
        if drain:
            empty = _wait_until_empty(client, f"/api/nodes/{quote(node, safe='')}/jobs", node, left, timeout)
    if as_json:
        print_json({"node": node, "command": action, "empty": empty, "jobs": left["jobs"]})
    return 0 if empty else 1


def _wait_until_empty(client: Client, path: str, node: str, left: dict[str, Any], timeout: float | None) -> bool:
    """Wait until no job holds slots of the node, and return True. Print each change.

    Return False if `timeout` seconds pass or a user releases the node before. left: document of the jobs on the
    node.
    """
    until_s = None if timeout is None else time.monotonic() + timeout
    held = ""
    said = {job["job"]: (job["moving"], job["state"]) for job in left["jobs"]}
    while left["jobs"]:
        why = _why_nothing_moves(left)
        if why and why != held:
            say(why)
        held = why
        if until_s is not None and time.monotonic() >= until_s:
            say(f"{node}: not empty after {timeout:g} s; it stays in maintenance")
            return False
        time.sleep(POLL_SECONDS)
        left = _read_with_retry(client, path, left)
        if not left["draining"]:
            say(f"{node} is no longer being drained: it is {left['state']}")
            return False
        now = {job["job"]: (job["moving"], job["state"]) for job in left["jobs"]}
        for job in said.keys() - now.keys():
            say(f"{job} has left {node}; {len(now)} left")
        for job in left["jobs"]:
            if said.get(job["job"]) != now[job["job"]] and job["moving"]:
                say(f"{job['job']} is being stopped")
        said = now
    say(f"{node} is empty")
    return True


def _why_nothing_moves(left: dict[str, Any]) -> str:
    if left["frozen"] and any(job["movable"] for job in left["jobs"]):
        return "actions are frozen: nothing is moved until `gangwatch thaw`"
    if left["mode"] == "observe" and any(job["movable"] for job in left["jobs"]):
        return "mode observe: nothing is moved; the node is empty once its jobs have ended"
    return ""


def _read_with_retry(client: Client, path: str, before: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the jobs that remain on the node; `before` while the controller is being restarted."""
    try:
        left: dict[str, Any] = client.get(path)
    except (NotRunningError, RefusedError) as error:
        restarting = isinstance(error, NotRunningError) or error.status == 503
        if not restarting or client.state.supervisor() is None:
            raise
        return before
    return left


@click.command()
@state_option
def freeze(state: StateFolder) -> None:
    """Stop all actions within a second: gangwatch starts, moves and stops nothing until `thaw`. Survives restarts.

    Running jobs continue. Detection continues, and decisions are still logged. `cancel` still works.

    \b
    Example:
      gangwatch freeze
    """
    answer = client_of(state).post("/api/freeze", {"by": user_name()})
    if warning := answer.get("warning"):
        say(f"warning: {warning}")
    say("frozen: running jobs continue; nothing is started, moved or stopped until `gangwatch thaw`")


@click.command()
@state_option
def thaw(state: StateFolder) -> None:
    """Allow actions again.

    \b
    Example:
      gangwatch thaw
    """
    client_of(state).post("/api/thaw", {"by": user_name()})
    say("thawed: actions are allowed again")
