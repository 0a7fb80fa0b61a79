"""Renewal of the certificate that the chart's agents and controller share, before it expires.

The signing authority stays the same, so clients need no change. Servers read the new certificate when its file
changes. The program openssl creates the certificate.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from scheduler_feedback.backends.kubernetes.api_server.client import Access, Client
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part

_OPENSSL_SECONDS = 30
_FORM = "%b %d %H:%M:%S %Y %Z"
"""Date format in the output of `openssl x509 -dates`."""

_CURVE = "P-256"


class _Secret(Part):
    metadata: Metadata
    data: dict[str, str] | None = None


_secrets = msgspec.json.Decoder(_Secret)


@dataclass(frozen=True, slots=True)
class Renewed:
    """Result of the renewal of a certificate."""

    until: datetime
    """Time at which the certificate in the secret expires, after the renewal."""
    renewed: bool
    """Whether a new certificate was created; False if the old one is still valid for long enough."""


async def renew(access: Access, namespace: str, authority: str, secret: str, days: int, left: float) -> Renewed:
    """Replace the certificate in the Kubernetes secret if less than the share `left` of its lifetime remains.

    authority: secret of the signing authority. days: validity of the new certificate, which has the same names.
    Raises GangwatchError if openssl is missing or fails, BackendError if the API server refuses.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets"
    async with Client(access, agent="gangwatch-renewal") as client:
        present = await client.get(f"{path}/{secret}", _secrets)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _write(folder, present, "tls.crt")
            begin, end = _life(folder)
            now = datetime.now(UTC)
            if (end - now) / (end - begin) > left:
                return Renewed(end, False)
            signs = await client.get(f"{path}/{authority}", _secrets)
            _write(folder, signs, "ca.crt")
            _write(folder, signs, "ca.key")
            _make(folder, days)
            data = {
                name: base64.b64encode((folder / file).read_bytes()).decode()
                for name, file in (("tls.crt", "new.crt"), ("tls.key", "new.key"), ("ca.crt", "ca.crt"))
            }
            (folder / "tls.crt").write_bytes((folder / "new.crt").read_bytes())
            _, end = _life(folder)
        # Replace only the version read above: another renewal or an upgrade may have changed the secret meanwhile.
        version = present.metadata.resource_version
        await client.patch(f"{path}/{secret}", {"metadata": {"resourceVersion": version}, "data": data})
        return Renewed(end, True)


def _write(folder: Path, secret: _Secret, name: str) -> None:
    try:
        (folder / name).write_bytes(base64.b64decode((secret.data or {})[name], validate=True))
    except (KeyError, ValueError) as error:
        raise GangwatchError(f"secret {secret.metadata.key}: {name} is missing or can't be decoded: {error}") from error


def _life(folder: Path) -> tuple[datetime, datetime]:
    """Return the start and the end of the validity of the certificate tls.crt in the folder."""
    text = _openssl(folder, "x509", "-in", "tls.crt", "-noout", "-startdate", "-enddate")
    found = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    begin, end = (datetime.strptime(found[key], _FORM).replace(tzinfo=UTC) for key in ("notBefore", "notAfter"))
    return begin, end


def _make(folder: Path, days: int) -> None:
    """Create the key new.key and the certificate new.crt, which has the names of tls.crt and is signed with ca.key."""
    output = _openssl(folder, "x509", "-in", "tls.crt", "-noout", "-ext", "subjectAltName")
    names = next((line.strip() for line in output.split("\n") if "DNS:" in line or "IP" in line), "")
    if not names:
        raise GangwatchError("the certificate has no subjectAltName")
    first = names.split(",")[0].partition(":")[2].strip()
    (folder / "extensions").write_text(
        f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=critical,digitalSignature\n"
    )
    key = ("-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{_CURVE}", "-nodes", "-keyout", "new.key")
    _openssl(folder, "req", "-new", *key, "-subj", f"/CN={first[:64]}", "-out", "request")
    signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days), "-sha256")
    _openssl(folder, "x509", "-req", "-in", "request", *signer, "-extfile", "extensions", "-out", "new.crt")
    _openssl(folder, "verify", "-CAfile", "ca.crt", "new.crt")


def _openssl(folder: Path, *arguments: str) -> str:
    program = shutil.which("openssl")
    if program is None:
        raise GangwatchError("openssl, which creates certificates, is not installed")
    try:
        done = subprocess.run(
            [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=_OPENSSL_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise GangwatchError(f"openssl {arguments[0]}: {error.stderr.strip()[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise GangwatchError(f"openssl {arguments[0]}: timed out after {_OPENSSL_SECONDS} s") from error
    return done.stdout
