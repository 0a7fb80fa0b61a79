"""Construction of controllers: builds a controller with any backend from one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler_feedback.backends.registry import make_backend
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.state import Policy
from scheduler_feedback.journal.store import NumberedEntry


@dataclass(frozen=True, slots=True)
class ControllerConfiguration:
    """Configuration of one controller."""

    folder: Path
    """State folder of the controller, with the journal and the token."""
    policy: Policy
    backend: str
    """Name of the backend in the registry."""
    backend_settings: object
    """Settings of the backend: its section of the configuration file, or the settings that its own command builds."""
    settings: ControllerSettings = ControllerSettings()  # noqa: RUF009
    reload: Callable[[], Policy] | None = None
    """Reads the configuration again and returns its policy; None if it cannot be reloaded."""
    on_entries: Callable[[Sequence[NumberedEntry]], None] | None = None
    """Called with the journal entries of each cycle."""


def compose(configuration: ControllerConfiguration) -> Controller:
    """Build the controller without starting it. Raises BackendError if the backend's saved state is unusable."""
    return Controller(
        configuration.folder,
        make_backend(configuration.backend, configuration.folder, configuration.backend_settings),
        configuration.policy,
        configuration.settings,
        reload=configuration.reload,
        on_entries=configuration.on_entries,
    )
