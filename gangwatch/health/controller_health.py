"""Check of a state folder's controller, for `gangwatch check`."""

from __future__ import annotations

from agent.schema.errors import GangwatchError
from gangwatch.controller_client import Client
from gangwatch.health.machine import Finding
from gangwatch.state_folder import NotRunningError, StateFolder

NAME = "controller"

TIMEOUT_SECONDS = 5.0


def findings(state: StateFolder) -> tuple[Finding, ...]:
    """Check whether the controller runs. Return a check result for each part of it that failed because of a bug."""
    try:
        parts = Client(state, TIMEOUT_SECONDS).get("/api/parts")
    except NotRunningError as error:
        return (Finding(NAME, "missing", str(error), "`gangwatch up`, if jobs should run on this machine"),)
    except GangwatchError as error:
        return (Finding(NAME, "limited", str(error), f"see {state.log_file('controller')}"),)
    if not parts:
        return (Finding(NAME, "found", "running, all parts work"),)
    remedy = f"see {state.log_file('controller')}, and report the traceback"
    return tuple(
        Finding(NAME if number == 0 else f"{NAME}: {part['part']}", "limited", part["words"], remedy)
        for number, part in enumerate(parts)
    )
