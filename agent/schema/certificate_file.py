"""Parser of the validity period in a PEM certificate file. Pure: it does not verify signatures.

The format is X.509 (RFC 5280 section 4.1) in DER (X.690). The validity is the fourth element of the certificate's
first field, or the fifth if a version precedes it. A library for X.509 is not used: it would take a fifth of the
agent's memory.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from agent.schema.errors import ConfigError

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18

MOST_BYTES = 1 << 20
"""Maximum size of a certificate file in bytes. A chain of a few certificates has about 10 kB."""


def validity(pem: bytes) -> tuple[float, float]:
    """Return the start and end of the validity of the first certificate in a PEM file, in seconds since the epoch.

    Raise ConfigError if the file has no valid certificate.
    """
    found = _PEM.search(pem[:MOST_BYTES])
    if found is None:
        raise ConfigError("no PEM certificate")
    try:
        der = base64.b64decode(b"".join(found[1].split()), validate=True)
        certificate = _content(der, _SEQUENCE)
        fields = list(_fields(_content(certificate, _SEQUENCE)))
        # Fields: an optional version, serial number, algorithm, issuer, validity.
        at = 4 if fields[0][0] == _VERSION else 3
        tag, body = fields[at]
        times = list(_fields(body))
        if tag != _SEQUENCE or len(times) != 2:
            raise ValueError("no validity at its position")
        return _seconds(*times[0]), _seconds(*times[1])
    except (ValueError, IndexError, binascii.Error) as error:
        raise ConfigError(f"the certificate cannot be parsed: {error}") from None


def _content(data: bytes, wanted: int) -> bytes:
    tag, body = next(_fields(data), (0, b""))
    if tag != wanted:
        raise ValueError(f"field with tag {tag:#x}, expected {wanted:#x}")
    return body


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the (tag, content) of each DER field in `data`. Raise ValueError if a field is longer than the data."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("invalid DER length")
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            raise ValueError("the data is truncated")
        yield tag, data[at : at + length]
        at += length


def _seconds(tag: int, text: bytes) -> float:
    """Convert a UTCTime (YYMMDDHHMMSSZ; before 2050) or GeneralizedTime (YYYYMMDDHHMMSSZ) to epoch seconds."""
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"time with unknown tag {tag:#x}")
    time = text.decode("ascii")
    if tag == _UTC_TIME:
        time = ("19" if time[:2] >= "50" else "20") + time  # RFC 5280 section 4.1.2.5.1
    return datetime.strptime(time, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
