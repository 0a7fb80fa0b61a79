"""The certificate of the chart's agents and controller, made anew before it runs out.

The authority that signs it stays, so whoever trusts it goes on to; who serves the certificate reads the new one when
its file changes. openssl makes it: the image carries it, and no key is held longer than the command runs.
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
from scheduler_feedback.backends.kubernetes import Access
from scheduler_feedback.backends.kubernetes.api_server.client import Client
from scheduler_feedback.backends.kubernetes.objects.objects import Metadata, Part

_OPENSSL_SECONDS = 30
_FORM = "%b %d %H:%M:%S %Y %Z"
"""How openssl x509 -dates writes an instant."""

_CURVE = "P-256"


class _Secret(Part):
    metadata: Metadata
    data: dict[str, str] | None = None


_secrets = msgspec.json.Decoder(_Secret)


@dataclass(frozen=True, slots=True)
class Renewed:
    """until: when the certificate that is now in the secret ends. renewed: whether it is a new one."""

    until: datetime
    renewed: bool


async def renew(access: Access, namespace: str, authority: str, secret: str, days: int, left: float) -> Renewed:
    """Replace the secret's certificate where less than `left` of its life, as a share, remains.

    The new one is for the names of the old one, and of the secret's authority. Raises GangwatchError where openssl is
    absent or refuses, BackendError where the API server does.
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
        # Only in place of the one that was looked at: another renewal, or an upgrade, may have been faster.
        version = present.metadata.resource_version
        await client.patch(f"{path}/{secret}", {"metadata": {"resourceVersion": version}, "data": data})
        return Renewed(end, True)


def _write(folder: Path, secret: _Secret, name: str) -> None:
    try:
        (folder / name).write_bytes(base64.b64decode((secret.data or {})[name], validate=True))
    except (KeyError, ValueError) as error:
        raise GangwatchError(f"secret {secret.metadata.key}: no {name} that can be read: {error}") from error


def _life(folder: Path) -> tuple[datetime, datetime]:
    """When tls.crt begins and ends."""
    text = _openssl(folder, "x509", "-in", "tls.crt", "-noout", "-startdate", "-enddate")
    found = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    begin, end = (datetime.strptime(found[key], _FORM).replace(tzinfo=UTC) for key in ("notBefore", "notAfter"))
    return begin, end


def _make(folder: Path, days: int) -> None:
    """new.key and new.crt: for the names of tls.crt, signed by ca.key."""
    told = _openssl(folder, "x509", "-in", "tls.crt", "-noout", "-ext", "subjectAltName")
    names = next((line.strip() for line in told.split("\n") if "DNS:" in line or "IP" in line), "")
    if not names:
        raise GangwatchError("the certificate names nobody (no subjectAltName)")
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
        raise GangwatchError("certificates are made by openssl, which is not installed here")
    try:
        done = subprocess.run(
            [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=_OPENSSL_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise GangwatchError(f"openssl {arguments[0]}: {error.stderr.strip()[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise GangwatchError(f"openssl {arguments[0]}: no end after {_OPENSSL_SECONDS} s") from error
    return done.stdout
