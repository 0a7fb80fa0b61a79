"""Authentication and audit log of the controller, from the sections [access], [oidc] and [token_review]."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.schema.errors import ConfigError
from exporter.serving.http_messages import Request
from gangwatch.configuration.config_file import Config
from gangwatch.configuration.sections import OidcSection, TokenReviewSection
from gangwatch.extras import require
from gangwatch.state_folder import StateFolder
from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import UNIX_PEER, Authentication
from scheduler_feedback.api.access.principal import ROLES, Role
from scheduler_feedback.api.access.sessions import Sessions
from scheduler_feedback.api.access.tokens import Tokens

if TYPE_CHECKING:  # optional or heavy: imported only if they are configured
    from scheduler_feedback.api.access.oidc import Issuer
    from scheduler_feedback.api.access.token_review import Reviewing


def authentication_of(state: StateFolder, config: Config) -> Authentication:
    """Return the configured authentication. Raises ConfigError that names the invalid key or token file."""
    section = config.access
    return Authentication(
        Tokens(state.token_file, [_path(file) for file in section.token_files], state.tokens_file),
        Sessions(section.session_seconds, section.session_idle_seconds),
        _issuer(config.oidc),
        _reviewing(config.token_review),
        closed=config.controller.web_config is not None,
        trust=_trust(config.oidc),
    )


def audit_of(state: StateFolder, config: Config) -> Audit:
    """Return the configured audit log."""
    section = config.access
    path = state.audit_file if section.audit_target == "file" else None
    return Audit(path, section.audit_bytes, section.audit_files)


def delegating(access: Authentication) -> Callable[[Request], bool]:
    """Return a function that decides whether a request needs no password of the web configuration.

    That is so if the API authenticates the request, for example by a token, or if it comes through the unix socket.
    """
    return lambda request: request.peer.startswith(UNIX_PEER) or access.proves(request.path, request.headers)


def _issuer(section: OidcSection) -> Issuer | None:
    if not section.issuer:
        if section.client_id or section.redirect_url or section.roles:
            raise ConfigError("oidc.issuer: missing, although other keys of [oidc] are set")
        return None
    from scheduler_feedback.api.access.oidc import Issuer

    issuer = Issuer(
        section.issuer,
        section.client_id,
        {group: ROLES[role] for group, role in section.roles.items()},
        ROLES.get(section.default_role, Role.ANONYMOUS),
        section.user_claim,
        section.groups_claim,
        section.algorithms,
        _path(section.client_secret_file) if section.client_secret_file is not None else None,
        section.redirect_url,
        section.scopes,
    )
    issuer.check()
    return issuer


def _reviewing(section: TokenReviewSection) -> Reviewing | None:
    if not section.enabled:
        return None
    require("[token_review]", "kubernetes")
    from scheduler_feedback.api.access.token_review import Reviewing
    from scheduler_feedback.backends.kubernetes.api_server.kubeconfig import from_kubeconfig, in_cluster

    access = from_kubeconfig(_path(section.kubeconfig)) if section.kubeconfig is not None else in_cluster()
    if access is None:
        raise ConfigError("token_review.kubeconfig: missing, and this process does not run in a pod")
    roles = {name: ROLES[role] for name, role in section.roles.items()}
    return Reviewing(access, section.audiences, roles, section.access_review)


def _trust(section: OidcSection) -> ssl.SSLContext | None:
    if section.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(_path(section.ca_file)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"oidc.ca_file: {section.ca_file}: {error}") from None


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()
