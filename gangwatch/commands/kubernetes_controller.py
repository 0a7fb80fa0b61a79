"""The Kubernetes controller: the controller daemon with leader election and with certificates for agents."""

from __future__ import annotations

import gc
import logging
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import GangwatchError
from agent.schema.sample import Sample
from gangwatch.commands import kubernetes_restart
from gangwatch.commands.kubernetes_standby import standing_by
from gangwatch.configuration.config_file import Config
from gangwatch.daemons.controller_daemon import ControllerServer, StopRequest, prepare_process
from gangwatch.state_folder import StateFolder
from gangwatch.supervisor.service_manager import heartbeats, notify
from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.api_server.lease import Leadership
from scheduler_feedback.backends.kubernetes.api_server.rights import essential_rights
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings

if TYPE_CHECKING:
    from gangwatch.certificates.signer import Signer

_WAIT_SECONDS = 0.5
_CYCLES_AFTER = 50_000
"""Number of new objects after which Python's garbage collector runs (gc.set_threshold). Binding a pod creates hundreds
of objects, but no reference cycles that the garbage collector must find."""

_log = logging.getLogger("gangwatch.kubernetes")


@dataclass(frozen=True, slots=True)
class Signing:
    """Settings for the certificates of agents."""

    account: str
    """Name of the agents' service account."""
    hosts: tuple[str, ...]
    """DNS names that every certificate contains."""
    signer: str
    folder: str | None
    """Folder with the authority's ca.crt and ca.key; None if another signer signs the approved requests."""
    days: int
    revoked: str | None
    """Path of the file that lists revoked certificates; None if there is none."""


def run(
    state: StateFolder,
    config: Config,
    settings: KubernetesSettings,
    lease: tuple[str, str],
    *,
    advise: bool,
    signing: Signing | None,
) -> None:
    """Wait for leadership, then run the controller until SIGTERM.

    A controller that loses its Lease executes its program again, and is a standby. lease: namespace and name of the
    Lease object. advise: the controller binds and evicts no pods. Raises GangwatchError if the cluster can't be
    reached, or if the leader gave up its Lease because its cycles do not finish. The process must then be restarted.
    """
    stop = prepare_process(state)
    identity = _identity(state.path)

    def lose() -> None:
        if leadership.stuck:
            stop.make()
        else:
            kubernetes_restart.stop_and_restart(state, stop)

    needs = essential_rights(advise=advise, upstream_groups=settings.upstream_groups)
    leadership = Leadership(settings.access, *lease, identity, lost=lose, needs=needs)
    leadership.start()
    signer = _signer_of(settings.access, lease[0], signing)
    if signer is not None:
        signer.start()  # on every replica: certificates must be available while the leader changes
    try:
        if not _stand_by(config, leadership, stop):
            return
        leading = replace(
            settings,
            may_act=leadership.may_act,
            missing_rights=leadership.missing_rights,
            rebuilds=leadership.before != identity,
        )
        _log.info("%s leads %s", identity, settings.access.url)
        with ControllerServer(state, config) as server:
            stop.pass_to(server)
            controller = server.compose(config.policy, "kubernetes-advisor" if advise else "kubernetes", leading)

            def started() -> None:
                leadership.follow(controller.cycle.cycles)
                gc.freeze()  # modules, state and informer cache, whose structs are in no reference cycle
                gc.set_threshold(_CYCLES_AFTER)

            measures = [leadership.measures, kubernetes_restart.measures]
            if signer is not None:
                measures.append(signer.measures)
            server.run(controller, measures, started)
    except GangwatchError as error:
        if not stop.restarts:
            raise
        _log.warning("ended after the Lease was lost: %s", error)
    finally:
        leadership.stop()
        if signer is not None:
            signer.stop()
    if leadership.stuck:
        raise GangwatchError(f"gave up lease {'/'.join(lease)}, because the controller's cycles do not finish")
    if stop.restarts and not stop.made:
        kubernetes_restart.restart(state)


def _signer_of(access: Access, namespace: str, signing: Signing | None) -> Signer | None:
    """Return the thread that approves and signs certificate requests of agents; None if it is disabled."""
    if signing is None:
        return None
    from gangwatch.certificates.signer import Rules, Signer

    rules = Rules(f"{namespace}:{signing.account}", signing.hosts, signing.signer, float(signing.days))
    folder, revoked = (Path(one) if one is not None else None for one in (signing.folder, signing.revoked))
    return Signer(access, rules, folder, revoked)


def _stand_by(config: Config, leadership: Leadership, stop: StopRequest) -> bool:
    """Wait until this controller leads or is stopped; return whether it leads.

    If another controller leads at the start, serve the endpoints of a standby during the wait.
    """
    if leadership.wait(_WAIT_SECONDS):
        return True

    def measures() -> list[Sample]:
        return leadership.measures() + kubernetes_restart.measures()

    # Before its first term, systemd expects no heartbeats.
    with standing_by(config, leadership.obstacle, measures) as url, heartbeats(lambda: True):
        notify(f"STATUS=standby, metrics at {url}/metrics")
        _log.info("standby until this controller gets the lease; metrics at %s/metrics", url)
        while not leadership.wait(_WAIT_SECONDS):
            if stop.made:
                return False
    return True


def _identity(folder: Path) -> str:
    """Return the name with which the controller of this state folder holds the Lease.

    The name is stored in a file in the folder, so that a restarted controller recognises its own Lease.
    """
    path = folder / "identity"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        identity = f"{socket.gethostname()}_{os.urandom(6).hex()}"
        unfinished = path.with_name(f".identity.{os.getpid()}")
        unfinished.write_text(identity)
        unfinished.replace(path)
        return identity
