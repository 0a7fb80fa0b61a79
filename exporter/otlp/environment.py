"""OpenTelemetry's environment variables for the push by OTLP.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. A key of the configuration file
takes precedence over a variable, and a variable of one signal (metrics or traces) over the variable of all signals.
An empty value counts as unset. Other programs use the same variables, so an invalid value is logged and ignored, or
disables the push; it does not stop the process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from agent.schema.errors import ConfigError
from exporter.otlp.choice import uses_sdk
from exporter.otlp.signals import Signal
from exporter.push.sender import address_of
from exporter.push.target import PushTarget
from exporter.push.target_files import TargetFiles

log = logging.getLogger(__name__)

SHORT_TIMEOUT_SECONDS = 0.1
"""A shorter timeout is probably meant in seconds, the unit of OpenTelemetry's SDK for Python."""


def otlp_target(target: PushTarget, signal: Signal, environ: Mapping[str, str]) -> PushTarget | None:
    """Return the target, with variables for values that the file does not set; None if nothing sets an endpoint.

    target: values of the configuration file; its endpoint may be ''. Raises ConfigError if the file sets the
    endpoint and a variable names an unusable certificate.
    """
    variables = _Variables(signal, environ)
    if variables.value("OTEL_SDK_DISABLED").lower() == "true":
        if target.endpoint:
            log.warning("OTEL_SDK_DISABLED is true: %s are not pushed to %s", signal.name.lower(), target.endpoint)
        return None
    if target.endpoint:
        return _completed(target, variables)
    if not variables.wants_otlp():
        return None
    protocol, protocol_name = variables.exporter("PROTOCOL")
    names: dict[str, str] = {}
    if target.protocol:
        protocol = target.protocol
    elif protocol:
        names["protocol"] = protocol_name
    if protocol not in ("", "http/protobuf", "grpc"):
        log.error(
            "%s: gangwatch can't push %s with the protocol %r: set it to http/protobuf or grpc",
            *(protocol_name, signal.name.lower(), protocol),
        )
        return None
    endpoint, names["endpoint"] = variables.endpoint(protocol == "grpc")
    if not endpoint:
        return None
    found = replace(target, endpoint=endpoint, protocol="grpc" if protocol == "grpc" else "http/protobuf")
    found = _completed(replace(found, variables=names), variables)
    try:
        uses_sdk(found)
        address_of(found, "otlp")
        TargetFiles(found, {}, "otlp")
    except ConfigError as error:
        log.error("%s are not pushed: %s", signal.name.lower(), error)
        return None
    return found


def resource_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME."""
    found: dict[str, str] = {}
    text = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    try:
        found = _pairs(text)
    except ValueError as error:
        log.warning("OTEL_RESOURCE_ATTRIBUTES is ignored: %s (expected name=value,name=value)", error)
    service = environ.get("OTEL_SERVICE_NAME", "").strip()
    return {**found, "service.name": service} if service else found


class _Variables:
    """Environment variables that apply to one signal (metrics or traces)."""

    def __init__(self, signal: Signal, environ: Mapping[str, str]) -> None:
        self._signal, self.environ = signal, environ

    def value(self, name: str) -> str:
        """Return the value of a variable; '' if it is unset or empty."""
        return self.environ.get(name, "").strip()

    def exporter(self, option: str) -> tuple[str, str]:
        """Return the value of OTEL_EXPORTER_OTLP_<signal>_<option>, or else of OTEL_EXPORTER_OTLP_<option>, and the
        variable's name."""
        own, general = f"OTEL_EXPORTER_OTLP_{self._signal.name}_{option}", f"OTEL_EXPORTER_OTLP_{option}"
        name = own if self.value(own) else general
        return self.value(name), name

    def endpoint(self, is_grpc: bool) -> tuple[str, str]:
        """Return the complete URL and the variable's name. Over HTTP, the signal's path is added to a base endpoint.

        Over gRPC, an endpoint may have no scheme; OTEL_EXPORTER_OTLP_INSECURE then decides whether TLS is used.
        """
        text, name = self.exporter("ENDPOINT")
        if is_grpc and text and "://" not in text:
            insecure, _ = self.exporter("INSECURE")
            return f"{'http' if insecure.lower() == 'true' else 'https'}://{text}", name
        if is_grpc or not text or name != "OTEL_EXPORTER_OTLP_ENDPOINT":
            return text, name
        try:
            base = urlsplit(text)
        except ValueError:
            return text, name  # the check of the target rejects it
        return urlunsplit(base._replace(path=f"{base.path.rstrip('/')}/{self._signal.path}")), name

    def wants_otlp(self) -> bool:
        """Return whether OTEL_METRICS_EXPORTER or OTEL_TRACES_EXPORTER is unset or contains otlp."""
        wanted = self.value(f"OTEL_{self._signal.name}_EXPORTER")
        return not wanted or "otlp" in {one.strip() for one in wanted.split(",")}

    def headers(self) -> dict[str, str]:
        text, name = self.exporter("HEADERS")
        try:
            found = _pairs(text)
        except ValueError as error:
            log.warning("%s is ignored: %s (expected name=value,name=value)", name, error)
            return {}
        for header, value in list(found.items()):
            if not header.isascii() or not value.isprintable():
                log.warning("%s: the header %r is ignored: it has characters that HTTP does not allow", name, header)
                del found[header]
        return found

    def timeout_seconds(self, default: float) -> float:
        text, name = self.exporter("TIMEOUT")
        if not text:
            return default
        try:
            seconds = float(text) / 1000
        except ValueError:
            seconds = 0.0
        if not math.isfinite(seconds) or seconds <= 0:
            log.warning("%s=%r is ignored: expected a number of milliseconds above 0", name, text)
            return default
        if seconds < SHORT_TIMEOUT_SECONDS:
            log.warning("%s=%s: the timeout is %s milliseconds, not seconds", name, text, text)
        return seconds

    def compression(self) -> Literal["gzip", "none"]:
        text, name = self.exporter("COMPRESSION")
        if text == "none":
            return "none"
        if text not in ("", "gzip"):
            log.warning("%s=%r is ignored: expected gzip or none", name, text)
        return "gzip"


def _completed(target: PushTarget, variables: _Variables) -> PushTarget:
    """Return the target with the values of variables where the configuration file has none."""
    names = dict(target.variables)

    def file(field: str, option: str, given: Path | None = None) -> Path | None:
        text, name = variables.exporter(option)
        if given is not None or not text:
            return given
        names[field] = name
        return Path(text)

    return replace(
        target,
        ca_file=file("ca_file", "CERTIFICATE", target.ca_file),
        cert_file=file("cert_file", "CLIENT_CERTIFICATE"),
        key_file=file("key_file", "CLIENT_KEY"),
        timeout_seconds=variables.timeout_seconds(target.timeout_seconds),
        compression=variables.compression(),
        headers=variables.headers(),
        resource=resource_attributes(variables.environ),
        variables=names,
    )


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs of "name=value,name=value", whose values are percent-encoded. Raises ValueError, without the
    value, which may be a secret."""
    found: dict[str, str] = {}
    for number, one in enumerate(text.split(","), 1):
        if not one.strip():
            continue
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"pair {number} has no name or no '='")
        try:
            found[unquote(name.strip(), errors="strict")] = unquote(value.strip(), errors="strict")
        except UnicodeDecodeError:
            raise ValueError(f"the value of {name.strip()!r} is not UTF-8 after percent-decoding") from None
    return found
