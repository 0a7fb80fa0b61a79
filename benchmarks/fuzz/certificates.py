"""Fuzz targets: certificates, certificate requests, and the list of revoked certificates."""

from __future__ import annotations

import base64
import functools
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.schema.certificate_file import validity
from agent.schema.errors import ConfigError
from agent.schema.identity import of_node, read_certificate, read_revocations, speaks_for
from benchmarks.fuzz.frames import FEW_BYTES, change
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from gangwatch.certificates.authority import requested


def make_revocations(rng: random.Random) -> bytes:
    """Make a list of revoked certificates."""
    entries: list[Any] = []
    for _ in range(rng.randrange(4)):
        entry: dict[str, Any] = {
            "name": rng.choice((of_node("n0"), "controller.gangwatch.internal", "", "*")),
            "before": rng.choice(("2026-11-23T13:36:36Z", "2026-11-23T13:36:36", "yesterday", 5, None)),
            "barred": rng.choice((True, False)),
            "reason": "x",
        }
        if rng.random() < 0.2:
            change(rng, entry)
        if rng.random() < 0.2:
            entry.pop(rng.choice(list(entry)))
        entries.append(entry)
    tree: Any = {"revoked": entries}
    if rng.random() < 0.1:
        change(rng, tree)
    data = json.dumps(tree, default=repr).encode()
    return octets(rng, data, rng.randint(1, 4)) if rng.random() < FEW_BYTES else data


def parse_revocations(data: bytes) -> str:
    try:
        found = read_revocations(data, "fuzz")
    except ConfigError as error:
        return REFUSED_FIRST if "JSON" in str(error) or "truncated" in str(error) else REFUSED
    again = read_revocations(found.encode(), "fuzz")
    assert again == found
    return ACCEPTED


def make_peer(rng: random.Random) -> bytes:
    """Make a peer certificate as Python's ssl module describes it."""
    names = [
        [
            "DNS",
            rng.choice((of_node("n0"), of_node("n1"), "*.node.gangwatch.internal", "n0", "n0.example.org", "*", "")),
        ]
        for _ in range(rng.randrange(3))
    ]
    if rng.random() < 0.3:
        names.append(rng.choice((["URI", "x"], ["IP Address", "10.0.0.1"], ["DirName", "x"])))
    times = ("Nov 23 13:31:37 2026 GMT", "Nov  3 13:31:37 2026 GMT", "Feb 31 13:31:37 2026 GMT", "soon", "", None, 7)
    tree = {
        "subjectAltName": names,
        "serialNumber": "AB",
        "notBefore": rng.choice(times),
        "notAfter": rng.choice(times),
    }
    for key in list(tree):
        if rng.random() < 0.1:
            del tree[key]
    return json.dumps(tree).encode()


def parse_peer(data: bytes) -> str:
    certificate = read_certificate(json.loads(data))
    is_n0 = {of_node("n0"), "n0"} & certificate.names
    assert speaks_for(certificate, "n0", "10-0-0-5.agents") == bool(is_n0)
    return ACCEPTED if is_n0 else REFUSED


def make_certificate(rng: random.Random) -> bytes:
    """Make a certificate in a PEM file."""
    if rng.random() < 0.05:
        return rng.choice((b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"))
    der = octets(rng, _certificate(), rng.randint(1, 4)) if rng.random() < 0.7 else _certificate()
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def parse_certificate(data: bytes) -> str:
    try:
        begin, end = validity(data)
    except ConfigError as error:
        return REFUSED_FIRST if "in PEM" in str(error) else REFUSED
    assert isinstance(begin, float)
    assert isinstance(end, float)
    return ACCEPTED


def make_request(rng: random.Random) -> bytes:
    """Make a certificate request, as an agent sends it to the controller through the API server."""
    request = rng.choice(_requests())
    return octets(rng, request, rng.randint(1, 4)) if rng.random() < 0.3 else request


def parse_request(data: bytes) -> str:
    try:
        _, names = requested(data)
    except ConfigError as error:
        return REFUSED_FIRST if "not a certificate signing request" in str(error) else REFUSED
    assert all(isinstance(name, str) for name in names)
    return ACCEPTED


@functools.cache
def _certificate() -> bytes:
    key = ec.derive_private_key(18, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n0")])
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 18, begin, begin + timedelta(days=30))
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@functools.cache
def _requests() -> tuple[bytes, ...]:
    """Return certificate requests as agents send them, and some for names that an agent must not get."""
    found = []
    keys: list[Any] = [ec.derive_private_key(18, ec.SECP256R1()), ec.derive_private_key(18, ec.SECP192R1())]
    for key in keys:
        for extensions in (
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0"))])],
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0")), x509.DNSName("agents.svc")])],
            [x509.SubjectAlternativeName([x509.RFC822Name("a@example.org")])],
            [x509.SubjectAlternativeName([x509.DNSName(of_node("n0"))]), x509.BasicConstraints(ca=True, path_length=1)],
            [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])],
            [],
        ):
            builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
            for one in extensions:
                builder = builder.add_extension(one, critical=False)
            # The same signatures in each run: a run with a seed must reach the same lines.
            signed = builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)
            found.append(signed.public_bytes(serialization.Encoding.PEM))
    der = signed.public_bytes(serialization.Encoding.DER)
    altered = base64.encodebytes(der[:-1] + bytes([der[-1] ^ 1]))  # the last byte of the signature
    found.append(b"-----BEGIN CERTIFICATE REQUEST-----\n" + altered + b"-----END CERTIFICATE REQUEST-----\n")
    return tuple(found)


TARGETS: tuple[Target, ...] = (
    Target("frames-revocations", make_revocations, parse_revocations, ("agent.schema.identity:read_revocations",)),
    Target("frames-peer", make_peer, parse_peer, ("agent.schema.identity:read_certificate",)),
    Target("frames-certificate", make_certificate, parse_certificate, ("agent.schema.certificate_file",)),
    Target("frames-request", make_request, parse_request, ("gangwatch.certificates.authority:requested",)),
)
