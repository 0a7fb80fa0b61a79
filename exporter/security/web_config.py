"""TLS and basic auth from a file in the exporter-toolkit's web configuration format.

node_exporter and Prometheus can use the same file. Format, as of exporter-toolkit 0.15:
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md

Settings that Python's ssl does not support are rejected: ``RequireAnyClientCert`` (an unverified certificate proves
nothing), versions before TLS 1.2, and more than one entry of ``curve_preferences``. ``http2`` is accepted without
effect: the server uses HTTP/1.1 only. A certificate, key or CA may be inline or in a file, with a path relative to
the configuration's folder.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent.schema.errors import ConfigError

_VERSIONS = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
"""TLS versions of the format. TLS10 and TLS11 are refused: RFC 8996 forbids them."""

_CLIENT_AUTH = {
    # Without a CA, requesting a certificate admits the same clients as not requesting one.
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

_CIPHERS = {
    # Go's crypto/tls.CipherSuites() for TLS 1.2, and OpenSSL's names for the same (openssl-ciphers(1)).
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
_TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Ciphers of TLS 1.3. They are accepted in `cipher_suites` without effect: Go and OpenSSL apply such a list only to
TLS 1.2."""

_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}

_HEADERS = {
    "Content-Security-Policy": None,
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": None,
    "Strict-Transport-Security": None,
}

_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Seconds of each unit of Go's time.Duration. A duration must have exactly one unit, as in the format's examples."""

_TLS_KEYS = (
    *("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type"),
    *("client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"),
    "curve_preferences",
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings, and the requirements for clients. Certificates and key are PEM texts, or paths of PEM files."""

    certificate: str | Path
    key: str | Path = field(repr=False)
    client_ca: str | Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    client_names: frozenset[str] = frozenset()
    least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ciphers: tuple[str, ...] = ()
    curve: str = ""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Content of one web configuration file.

    users: bcrypt hashes of passwords, by user name. rate_seconds, burst: one request per `rate_seconds` seconds is
    allowed, with bursts of at most `burst` requests; 0 disables the limit.
    """

    file: Path
    tls: Tls | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_seconds: float = 0.0
    burst: int = 0

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate, by password or certificate."""
        return bool(self.users) or (self.tls is not None and self.tls.client_auth is ssl.CERT_REQUIRED)

    def files(self) -> tuple[Path, ...]:
        """Return all files of this configuration."""
        tls = self.tls
        named = (tls.certificate, tls.key, tls.client_ca) if tls is not None else ()
        return (self.file, *(one for one in named if isinstance(one, Path)))


def load_web_config(file: Path) -> WebConfig:
    """Read a web configuration file. Raises ConfigError with the file, the key and the reason."""
    file = file.absolute()
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{file}:{place} not YAML: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:
        # PyYAML's constructors raise other errors: 2026-13-45 looks like a date but is invalid.
        raise ConfigError(f"{file}: not YAML: {error}") from None
    return _Reading(file).whole(tree)


class _Reading:
    """Converter of a parsed web configuration file into a WebConfig. Every error names the file and the key."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _error(self, key: str, reason: str) -> ConfigError:
        return ConfigError(f"{self._file}: {key}: {reason}")

    def whole(self, tree: Any) -> WebConfig:
        sections = self._section(
            tree, "", ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
        )
        rate_seconds, burst = self._rate(sections.get("rate_limit"))
        return WebConfig(
            self._file,
            self._tls(sections.get("tls_server_config")),
            self._headers(sections.get("http_server_config")),
            self._users(sections.get("basic_auth_users")),
            rate_seconds,
            burst,
        )

    def _section(self, tree: Any, name: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the section of the file at the key `name`; '' means the whole file. known: allowed keys; None for
        any."""
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            raise self._error(name or "the file", f"expected keys with values, not {tree!r}")
        for key in tree:
            if not isinstance(key, str) or (known is not None and key not in known):
                where = f"{name}.{key}" if name else str(key)
                raise self._error(where, f"unknown key (known are {', '.join(known or ('names',))})")
        return tree

    def _text(self, tree: dict[str, Any], section: str, key: str) -> str:
        value = tree.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._error(f"{section}.{key}", f"expected a string, not {value!r}")
        return value

    def _texts(self, tree: dict[str, Any], section: str, key: str) -> tuple[str, ...]:
        value = tree.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._error(f"{section}.{key}", f"expected a list of strings, not {value!r}")
        return tuple(value)

    def _flag(self, tree: dict[str, Any], section: str, key: str) -> None:
        if not isinstance(tree.get(key, True), bool):
            raise self._error(f"{section}.{key}", f"expected true or false, not {tree[key]!r}")

    def _choice(self, tree: dict[str, Any], section: str, key: str, known: Mapping[str, Any], default: str) -> Any:
        value = self._text(tree, section, key) or default
        if value not in known:
            raise self._error(f"{section}.{key}", f"expected one of {', '.join(filter(None, known))}, not {value!r}")
        return known[value]

    # --- sections ----------------------------------------------------------------------------------------------------

    def _tls(self, tree: Any) -> Tls | None:
        section = "tls_server_config"
        values = self._section(tree, section, _TLS_KEYS)
        if not values:
            return None
        certificate, key = self._pem(values, "cert"), self._pem(values, "key")
        if certificate is None or key is None:
            missing = "cert" if certificate is None else "key"
            raise self._error(f"{section}.{missing}_file", "TLS needs a certificate and its key")
        if values.get("client_auth_type") == "RequireAnyClientCert":
            raise self._error(
                f"{section}.client_auth_type",
                "'RequireAnyClientCert' admits any client with a certificate; use RequireAndVerifyClientCert",
            )
        client_auth = self._choice(values, section, "client_auth_type", _CLIENT_AUTH, "")
        client_ca = self._pem(values, "client_ca")
        if client_auth is not ssl.CERT_NONE and client_ca is None:
            raise self._error(f"{section}.client_ca_file", "a client's certificate can't be verified without a CA")
        if client_auth is ssl.CERT_NONE and client_ca is not None:
            raise self._error(
                f"{section}.client_ca_file", "a CA has no effect without client_auth_type: RequireAndVerifyClientCert"
            )
        names = frozenset(self._texts(values, section, "client_allowed_sans"))
        if names and client_auth is not ssl.CERT_REQUIRED:
            raise self._error(f"{section}.client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
        least = self._choice(values, section, "min_version", _VERSIONS, "TLS12")
        most = self._choice(values, section, "max_version", _VERSIONS, "TLS13")
        if least > most:
            raise self._error(f"{section}.max_version", "is older than min_version")
        self._flag(values, section, "prefer_server_cipher_suites")
        curves = self._texts(values, section, "curve_preferences")
        for curve in curves:
            if curve not in _CURVES:
                raise self._error(
                    f"{section}.curve_preferences", f"expected one of {', '.join(_CURVES)}, not {curve!r}"
                )
        if len(curves) > 1:
            raise self._error(f"{section}.curve_preferences", "Python's ssl supports only one curve; set one or none")
        return Tls(
            *(certificate, key, client_ca, client_auth, names, least, most),
            self._ciphers(values),
            _CURVES[curves[0]] if curves else "",
        )

    def _ciphers(self, values: dict[str, Any]) -> tuple[str, ...]:
        chosen = self._texts(values, "tls_server_config", "cipher_suites")
        for name in chosen:
            if name not in _CIPHERS and name not in _TLS13_CIPHERS:
                raise self._error(
                    "tls_server_config.cipher_suites", f"unknown suite {name!r} (known are {', '.join(_CIPHERS)})"
                )
        return tuple(_CIPHERS[name] for name in chosen if name in _CIPHERS)

    def _pem(self, values: dict[str, Any], name: str) -> str | Path | None:
        section = "tls_server_config"
        inline, file = self._text(values, section, name), self._text(values, section, f"{name}_file")
        if inline and file:
            raise self._error(f"{section}.{name}", f"{name}_file is also set; use only one of them")
        return self._file.parent / file if file else inline or None

    def _headers(self, tree: Any) -> tuple[tuple[str, str], ...]:
        section = "http_server_config"
        values = self._section(tree, section, ("http2", "headers"))
        self._flag(values, section, "http2")
        headers = self._section(values.get("headers"), f"{section}.headers", tuple(_HEADERS))
        found: list[tuple[str, str]] = []
        for name in headers:
            value = self._text(headers, f"{section}.headers", name)
            allowed = _HEADERS[name]
            if value and allowed is not None and value.lower() not in allowed:
                raise self._error(f"{section}.headers.{name}", f"expected {' or '.join(allowed)}, not {value!r}")
            if not value.isprintable():
                raise self._error(f"{section}.headers.{name}", "holds a character that no header can")
            if value:
                found.append((name, value))
        return tuple(found)

    def _users(self, tree: Any) -> dict[str, str]:
        section = "basic_auth_users"
        users = self._section(tree, section)
        for name in users:
            # The value is a secret: it is not shown.
            found = _BCRYPT.fullmatch(self._text(users, section, name))
            if ":" in name or not name:
                raise self._error(f"{section}.{name}", "a user's name can't be empty or hold ':'")
            if found is None or not 4 <= int(found[1]) <= 31:
                raise self._error(
                    f"{section}.{name}", "is no bcrypt hash ($2y$10$...): make one with `htpasswd -nBC 10`"
                )
        return users

    def _rate(self, tree: Any) -> tuple[float, int]:
        section = "rate_limit"
        values = self._section(tree, section, ("interval", "burst"))
        interval, burst = values.get("interval", 0), values.get("burst", 0)
        if isinstance(interval, str) and (found := _DURATION.fullmatch(interval)) is not None:
            interval = float(found[1]) * _DURATION_SECONDS[found[2]]
        if isinstance(interval, bool) or not (interval == 0 or isinstance(interval, float)):
            raise self._error(f"{section}.interval", f"expected 0 or a duration such as 100ms, not {interval!r}")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 0:
            raise self._error(f"{section}.burst", f"expected a whole number >= 0, not {burst!r}")
        return float(interval), burst


def certificate_path(file: Path) -> Path | None:
    """Return the certificate file that a web configuration names, even if it does not exist yet; None without TLS.

    Raises ConfigError for a configuration that can't be read.
    """
    tls = load_web_config(file).tls
    return tls.certificate if tls is not None and isinstance(tls.certificate, Path) else None


# --- contexts --------------------------------------------------------------------------------------------------------


def make_context(config: WebConfig) -> ssl.SSLContext | None:
    """Return the TLS context of connections, None without TLS. Raises ConfigError naming file and key."""
    tls = config.tls
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = tls.least, tls.most
    context.verify_mode = tls.client_auth
    context.set_alpn_protocols(["http/1.1"])
    # Connections are kept open: no client resumes one, and a controller would keep two tickets, 9 kB, of every agent.
    context.num_tickets = 0
    try:
        key = "cert_file, key_file"
        with _as_file(tls.certificate) as certificate, _as_file(tls.key) as private:
            context.load_cert_chain(certificate, private, _no_password)
        key = "client_ca_file"
        if isinstance(tls.client_ca, Path):
            context.load_verify_locations(cafile=str(tls.client_ca))
        elif tls.client_ca is not None:
            context.load_verify_locations(cadata=tls.client_ca)
        key = "cipher_suites"
        if tls.ciphers:
            context.set_ciphers(":".join(tls.ciphers))
        key = "curve_preferences"
        if tls.curve:
            context.set_ecdh_curve(tls.curve)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{config.file}: tls_server_config.{key}: {reason}") from None
    return context


@contextmanager
def _as_file(pem: str | Path) -> Iterator[str]:
    """Yield a path from which `ssl` can load the certificates. A PEM text is written into a file in memory."""
    if isinstance(pem, Path):
        yield str(pem)
        return
    descriptor = os.memfd_create("gangwatch-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _no_password() -> str:
    """Raise ValueError.

    ssl calls this function for the password of an encrypted key. Without it, ssl would prompt at the terminal and wait.
    """
    raise ValueError("the key is encrypted, and a daemon can't prompt for its password")


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the Subject Alternative Names in a verified certificate, as returned by ``SSLSocket.getpeercert``."""
    return frozenset(value for _, value in certificate.get("subjectAltName", ()))
