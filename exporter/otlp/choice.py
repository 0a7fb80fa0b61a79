"""Choice between the exporters of opentelemetry-sdk and gangwatch's own."""

from __future__ import annotations

import importlib.util

from agent.schema.errors import ConfigError
from exporter.push.target import PushTarget

_PACKAGES = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "otlp"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "otlp-grpc"),
}
"""Module and extra of the SDK's exporter, by protocol."""


def uses_sdk(target: PushTarget, what: str = "otlp", *, automatic: bool = True) -> bool:
    """Return whether the SDK's exporter sends to this target.

    automatic: whether 'auto' chooses the SDK for HTTP if it is installed. For gRPC it always does.

    Raises ConfigError, with the command that installs it, if it is absent and can't be replaced.
    """
    module, extra = _PACKAGES[target.protocol or "http/protobuf"]
    if target.exporter == "own" and target.protocol != "grpc":
        return False
    if target.exporter == "own":
        raise ConfigError(f"{what}.exporter: 'own' has no gRPC: use 'auto', or the protocol http/protobuf")
    if target.exporter == "auto" and target.protocol != "grpc" and not automatic:
        return False
    if _is_installed(module):
        return True
    label = target.variables.get("protocol", f"{what}.protocol")
    if target.protocol == "grpc":
        raise ConfigError(f"{label}: OTLP over gRPC is not installed: pip install 'gangwatch[{extra}]'")
    if target.exporter == "sdk":
        raise ConfigError(f"{what}.exporter: opentelemetry-sdk is not installed: pip install 'gangwatch[{extra}]'")
    return False


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False  # a package above it is absent
