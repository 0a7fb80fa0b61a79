"""Optional parts of the installation (extras of pyproject.toml), and what needs them.

`pip install gangwatch` installs the agent and the command line. A command that needs more checks this before it
changes anything.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import click

from agent.schema.errors import ExtraMissingError

P = ParamSpec("P")
R = TypeVar("R")


class Extra(NamedTuple):
    """An extra that installs packages of its own."""

    modules: tuple[str, ...]
    """Modules that gangwatch imports only if the extra is installed."""
    purpose: str
    """What does not work without the extra."""


EXTRAS: dict[str, Extra] = {
    "controller": Extra(
        ("starlette", "uvicorn", "h11", "cryptography"),
        "`gangwatch up`, `controller`, `demo` and `certificates`; also for Slurm",
    ),
    "kubernetes": Extra(("aiohttp", "cryptography"), "`gangwatch kubernetes`, `check --kubernetes` and [token_review]"),
    "devices": Extra(("cel_expr_python",), "selectors of resource claims and device classes on Kubernetes"),
    "dashboards": Extra(("grafana_foundation_sdk",), "`gangwatch dashboards`"),
    "remote-write": Extra(("cramjam",), "[remote_write]: push to Prometheus"),
    "oidc": Extra(("jwt", "aiohttp"), "[oidc]: login with an identity provider"),
    "otlp": Extra(
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
        "otlp.exporter = 'sdk': the exporter of the SDK",
    ),
    "otlp-grpc": Extra(
        ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc"), "otlp.protocol = 'grpc': OTLP over gRPC"
    ),
    "traces": Extra(("pyarrow",), "Parquet files in `gangwatch detect`"),
}
"""Extras by name. The extras `slurm` and `all` only name others."""


def missing_modules(extra: str) -> tuple[str, ...]:
    """Return the modules of an extra that are not installed."""
    return tuple(name for name in EXTRAS[extra].modules if not is_installed(name))


def is_installed(module: str) -> bool:
    """Return whether a module can be found. Imports at most the packages above it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False  # a package above it is absent


def require(what: str, *extras: str) -> None:
    """Raise ExtraMissingError if an extra is not installed in full. what: the part of gangwatch that needs it."""
    if lacking := [extra for extra in extras if missing_modules(extra)]:
        raise ExtraMissingError(what, *lacking)


def needs(*extras: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of click commands: the command first checks that these extras are installed.

    Its help and its options work without them.
    """

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            require(f"`{click.get_current_context().command_path}`", *extras)
            return command(*arguments, **options)

        return checked

    return decorate


def missing_of(error: ModuleNotFoundError) -> ExtraMissingError | None:
    """Return the error that names the extra of a module that was not found; None if no extra provides the module."""
    absent = error.name or ""
    extras = [
        name
        for name, extra in EXTRAS.items()
        if any(
            f"{absent}.".startswith(f"{module}.") or f"{module}.".startswith(f"{absent}.") for module in extra.modules
        )
    ]
    return ExtraMissingError(f"the module {absent}", extras[0]) if extras and absent else None
