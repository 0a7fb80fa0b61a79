"""Certificate authority: keys, requests and certificates, as PEM bytes.

Keys are ECDSA on P-256: all TLS libraries support it, and signing is fast. Serial numbers are random (RFC 5280
section 4.1.2.2). A certificate is valid from shortly before its creation, because clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.schema.errors import ConfigError
from agent.schema.identity import CONTROLLER, node_of

EARLY = timedelta(minutes=5)
"""How much earlier than its creation a certificate becomes valid, because a node's clock may be slow."""

AUTHORITY_DAYS = 3650
DAYS = 90
LEAST_RSA_BITS = 2048
"""Minimum size in bits of an RSA key in a certificate request (NIST SP 800-57 part 1, table 2)."""

MAX_COMMON_NAME = 64
"""Maximum length in characters of a certificate's common name (X.520, ub-common-name)."""


@dataclass(frozen=True, slots=True)
class Issued:
    """An issued certificate in PEM format, with its names, serial number and validity."""

    certificate: bytes
    names: tuple[str, ...]
    serial: str
    not_before: datetime
    not_after: datetime


def new_key() -> bytes:
    """Return a new private key, in PEM format."""
    return _key_bytes(ec.generate_private_key(ec.SECP256R1()))


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def new_request(key: bytes, names: Iterable[str]) -> bytes:
    """Return a certificate signing request (PKCS#10) for the given names, signed with the key."""
    wanted = tuple(names)
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(wanted[0]))
    builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in wanted]), critical=False)
    return builder.sign(_private(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def requested(request: bytes) -> tuple[x509.CertificateSigningRequest, tuple[str, ...]]:
    """Return the parsed certificate request and the names in it.

    Raises ConfigError if the request is malformed, has a weak key, or is not signed with its own key. A request may
    have extensions only for names and key uses.
    """
    try:
        found = x509.load_pem_x509_csr(request)
        signed = found.is_signature_valid
        extensions = list(found.extensions)
        key = found.public_key()
    except (ValueError, TypeError, InvalidSignature, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"not a certificate signing request: {error}") from None
    except Exception as error:  # the library raises many types for undecodable input
        raise ConfigError(f"not a certificate signing request: {type(error).__name__}: {error}") from None
    if not signed:
        raise ConfigError("the request is not signed with its own key")
    _check_key(key)
    names: tuple[str, ...] = ()
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = tuple(_text(name) for name in extension.value)
        elif not isinstance(extension.value, x509.KeyUsage | x509.ExtendedKeyUsage):
            raise ConfigError(f"the request has extension {extension.oid.dotted_string}, which no agent needs")
    if not names:
        raise ConfigError("the request has no subjectAltName")
    return found, names


def _check_key(key: object) -> None:
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < LEAST_RSA_BITS:
            raise ConfigError(f"an RSA key of {key.key_size} bits is too short; use at least {LEAST_RSA_BITS}")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1):
            raise ConfigError(f"unsupported curve {key.curve.name}; use P-256")
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        raise ConfigError(f"unsupported key type {type(key).__name__}; use ECDSA on P-256")


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificate authority: its certificate and private key, in PEM format."""

    certificate: bytes
    key: bytes

    @classmethod
    def make(cls, name: str = "gangwatch", days: int = AUTHORITY_DAYS, now: datetime | None = None) -> Authority:
        """Return a new certificate authority with a new key. days: validity of its certificate."""
        now = datetime.now(UTC) if now is None else now
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLY)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return cls(made, _key_bytes(key))

    def issue(
        self,
        request: bytes,
        names: Iterable[str],
        days: float = DAYS,
        now: datetime | None = None,
        since: datetime | None = None,
    ) -> Issued:
        """Sign a request and return the certificate.

        names: the names in the certificate; names in the request are ignored. since: earliest start of validity;
        certificates of the same name that start earlier are revoked. Raises ConfigError if the request is malformed,
        or if the authority would expire before the certificate.
        """
        now = datetime.now(UTC) if now is None else now
        found, _ = requested(request)
        issuer = self._loaded()
        end = now + timedelta(days=days)
        if end > issuer.not_valid_after_utc:
            raise ConfigError(
                f"the authority expires on {issuer.not_valid_after_utc:%Y-%m-%d}, before a certificate of {days:g} "
                "days would: create a new authority, and trust both while certificates are renewed"
            )
        begin = now - EARLY if since is None else max(now - EARLY, since)
        wanted = tuple(names)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(wanted[0]))
            .issuer_name(issuer.subject)
            .public_key(found.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_uses(wanted)), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in wanted]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(found.public_key()), critical=False)
            .add_extension(_issued_by(issuer), critical=False)
        )
        return read(builder.sign(_private(self.key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _loaded(self) -> x509.Certificate:
        return _certificate(self.certificate)

    def check(self) -> None:
        """Raise ConfigError if the key does not match the certificate, or the certificate may not sign others."""
        found = self._loaded()
        try:
            constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = x509.BasicConstraints(ca=False, path_length=None)
        if not constraints.ca:
            raise ConfigError("the certificate is not that of an authority")
        if _public(found.public_key()) != _public(_private(self.key).public_key()):
            raise ConfigError("the key does not match the authority's certificate")


def read(certificate: bytes) -> Issued:
    """Return a parsed certificate. Raises ConfigError if the certificate is malformed."""
    found = _certificate(certificate)
    try:
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = tuple(_text(name) for name in alternatives)
    except x509.ExtensionNotFound:
        names = ()
    serial = f"{found.serial_number:x}"
    return Issued(certificate, names, serial, found.not_valid_before_utc, found.not_valid_after_utc)


# --- conversions -----------------------------------------------------------------------------------------------------


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"not a certificate in PEM: {error}") from None


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"not a private key in PEM: {error}") from None
    # Helm's genCA creates RSA keys; both types have the same `sign` call.
    if not isinstance(found, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ConfigError(f"unsupported key type {type(found).__name__}; use ECDSA on P-256")
    return found  # type: ignore[return-value]


def _public(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined, no-any-return]


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:MAX_COMMON_NAME])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _text(name: x509.GeneralName) -> str:
    if isinstance(name, x509.DNSName | x509.IPAddress):
        return str(name.value)
    raise ConfigError(f"unsupported name type {type(name).__name__}: only DNS names and addresses are supported")


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _uses(names: Iterable[str]) -> list[x509.ObjectIdentifier]:
    """Return the allowed uses of a certificate with these names.

    A node may use its certificate as a TLS server, the controller as server and client, and others as client only.
    """
    wanted = tuple(names)
    if any(node_of(name) is not None for name in wanted):
        return [ExtendedKeyUsageOID.SERVER_AUTH]
    if CONTROLLER in wanted:
        return [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    return [ExtendedKeyUsageOID.CLIENT_AUTH]
