"""When a certificate ends, read from its PEM file. Pure; no cryptography: nothing is verified here, only told.

X.509 (RFC 5280 section 4.1) in DER (X.690): of a certificate's first field the fifth or sixth field, its validity. A
library for it would cost the agent a fifth of its memory.
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
"""Of a file of certificates; a chain of a few takes ten thousand."""


def validity(pem: bytes) -> tuple[float, float]:
    """Begin and end of the first certificate in a PEM file, in seconds since the epoch.

    Raises ConfigError for what is no certificate.
    """
    found = _PEM.search(pem[:MOST_BYTES])
    if found is None:
        raise ConfigError("no certificate in PEM")
    try:
        der = base64.b64decode(b"".join(found[1].split()), validate=True)
        certificate = _content(der, _SEQUENCE)
        fields = list(_fields(_content(certificate, _SEQUENCE)))
        # An optional version, then serial number, algorithm, issuer, validity.
        at = 4 if fields[0][0] == _VERSION else 3
        tag, body = fields[at]
        times = list(_fields(body))
        if tag != _SEQUENCE or len(times) != 2:
            raise ValueError("no validity where it should stand")
        return _seconds(*times[0]), _seconds(*times[1])
    except (ValueError, IndexError, binascii.Error) as error:
        raise ConfigError(f"a certificate that can't be read: {error}") from None


def _content(data: bytes, wanted: int) -> bytes:
    tag, body = next(_fields(data), (0, b""))
    if tag != wanted:
        raise ValueError(f"a field of the kind {tag:#x}, not {wanted:#x}")
    return body


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each field, in order. Raises ValueError where one is longer than what it is in."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("a length of no form that DER has")
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            raise ValueError("it is cut off")
        yield tag, data[at : at + length]
        at += length


def _seconds(tag: int, text: bytes) -> float:
    """Of a UTCTime (YYMMDDHHMMSSZ; before 2050) or GeneralizedTime (YYYYMMDDHHMMSSZ)."""
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"a time of the kind {tag:#x}")
    told = text.decode("ascii")
    if tag == _UTC_TIME:
        told = ("19" if told[:2] >= "50" else "20") + told  # RFC 5280 section 4.1.2.5.1
    return datetime.strptime(told, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
