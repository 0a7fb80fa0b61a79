"""The registry of backends. To add one, add a file with a subclass of ``Backend`` and a line in BACKENDS."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from scheduler_feedback.backends.backend import Backend


class BackendSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section of the configuration file that selects the backend of the same name. All keys have defaults."""

    enabled: bool = False


class BackendType(NamedTuple):
    """A backend of the registry. Its classes are given as 'module:name', and imported only when needed."""

    backend: str
    """Class of the backend, a subclass of Backend, as 'module:name'."""
    section: str = ""
    """Class of the configuration section, as 'module:name'; '' if the configuration file cannot select the backend."""


BACKENDS: dict[str, BackendType] = {
    "local": BackendType("scheduler_feedback.backends.local.local_backend:LocalBackend"),
    "slurm": BackendType(
        "scheduler_feedback.backends.slurm.slurm_backend:SlurmBackend",
        "scheduler_feedback.backends.slurm.section:SlurmSection",
    ),
    "kubernetes": BackendType("scheduler_feedback.backends.kubernetes.kubernetes_backend:KubernetesBackend"),
    "kubernetes-advisor": BackendType("scheduler_feedback.backends.kubernetes.advisor:AdvisorBackend"),
}


def make_backend(name: str, folder: Path, settings: object) -> Backend:
    """Return the backend with this name for a state folder. Raises BackendError if its saved state is unusable."""
    backend: type[Backend] = _load(BACKENDS[name].backend)
    return backend.configured(folder, settings)


def sections() -> dict[str, type[BackendSection]]:
    """Return the configuration sections that select a backend, by name."""
    return {name: _load(entry.section) for name, entry in BACKENDS.items() if entry.section}


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
