"""One identity a node: what an authority signs, whom a certificate speaks for, what is revoked, who may read frames."""

from __future__ import annotations

import json
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.schema.errors import ConfigError
from agent.schema.identity import (
    CONTROLLER,
    Certificate,
    Revocations,
    of_node,
    read_certificate,
    read_revocations,
    speaks_for,
)
from gangwatch.certificates.authority import Authority, new_key, new_request, read, requested
from gangwatch.certificates.folder import AuthorityFolder
from gangwatch.cli import cli

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def certificate(*names: str, made: datetime = NOW) -> Certificate:
    return Certificate(frozenset(names), "AB", made.timestamp(), (made + timedelta(days=90)).timestamp())


# --- whom a certificate speaks for -----------------------------------------------------------------------------------


def test_a_certificate_speaks_for_the_node_that_it_is_made_out_to_and_for_no_other() -> None:
    mine = certificate(of_node("n1"), "gangwatch-agents.gangwatch.svc")
    assert speaks_for(mine, "n1", "10-0-0-5.gangwatch-agents.gangwatch.svc")
    assert speaks_for(mine, "N1", "10.0.0.5"), "names of hosts know no case"
    assert not speaks_for(mine, "n2", "10-0-0-5.gangwatch-agents.gangwatch.svc")
    for names in (
        ("*.node.gangwatch.internal",), ("*.gangwatch-agents.gangwatch.svc",), ("gangwatch-agents.gangwatch.svc",),
        ("10-0-0-5.gangwatch-agents.gangwatch.svc",), (CONTROLLER,), ("n1.evil.org",), (), ("*",), ("n11",),
    ):  # fmt: skip
        assert not speaks_for(certificate(*names), "n1", "10-0-0-5.gangwatch-agents.gangwatch.svc"), names


def test_a_site_that_makes_certificates_out_to_hosts_needs_no_other_name() -> None:
    assert speaks_for(certificate("gpu1"), "gpu1", "gpu1")
    assert speaks_for(certificate("gpu1.example.org"), "gpu1", "gpu1.example.org")
    assert not speaks_for(certificate("gpu1.example.org"), "gpu1", "gpu1"), "a name that was not dialled"
    assert not speaks_for(certificate("gpu1.example.org"), "gpu11", "gpu1.example.org")
    assert not speaks_for(certificate("*.example.org"), "gpu1", "gpu1.example.org")


@pytest.mark.parametrize("node", ["", "*", "n*", " n", "n.", "ü", "n\n", "x" * 240])
def test_names_that_no_certificate_can_have_are_refused(node: str) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        of_node(node)


# --- what is revoked -------------------------------------------------------------------------------------------------


def test_what_is_revoked_is_whatever_was_made_before() -> None:
    revoked = Revocations().revoking(of_node("n1"), NOW, "stolen")
    again = read_revocations(revoked.encode(), "f")
    assert again == revoked
    assert "stolen" in again.refuses(certificate(of_node("n1"), "host", made=NOW - timedelta(days=1)))
    assert again.refuses(certificate(of_node("n1"), made=NOW)) == ""
    assert again.refuses(certificate(of_node("n2"), made=NOW - timedelta(days=1))) == ""
    assert again.bars(of_node("n1"))
    admitted = again.admitting(of_node("n1"))
    assert not admitted.bars(of_node("n1"))
    assert admitted.refuses(certificate(of_node("n1"), made=NOW - timedelta(days=1))), "the old one stays revoked"


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"revoked": 5}', '{"revoked": [{"name": "x"}]}', '{"revoked": [{"name": "x", "before": "soon"}]}',
        '{"revoked": [{"name": "x", "before": "2026-11-23T12:00:00"}]}', '{"revokd": []}', "\xff", "[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_list_is_refused_by_name_and_never_taken_for_an_empty_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^revoked\.json"):
        read_revocations(text.encode("latin-1"), "revoked.json")


# --- the authority ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make(now=NOW)


def test_what_is_signed_is_what_the_authority_says_and_not_what_the_request_says(authority: Authority) -> None:
    request = new_request(new_key(), (CONTROLLER, "everything.example.org"))
    made = authority.issue(request, (of_node("n1"),), 30, NOW)
    assert made.names == (of_node("n1"),)
    assert made.not_after - NOW == timedelta(days=30)
    assert made.not_before < NOW, "a node's clock may be behind"


@pytest.mark.parametrize(
    "request_", [b"", b"x", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
)
def test_what_is_no_request_is_refused(request_: bytes) -> None:
    with pytest.raises(ConfigError, match="not a certificate signing request"):
        requested(request_)


def test_a_request_whose_names_were_changed_after_it_was_signed_is_refused() -> None:
    import base64

    lines = new_request(new_key(), (of_node("n1"),)).decode().splitlines()
    body = bytearray(base64.b64decode("".join(lines[1:-1])))
    at = body.rindex(b"n1.node")
    body[at : at + 2] = b"n2"
    changed = base64.encodebytes(bytes(body)).decode()
    with pytest.raises(ConfigError, match="not signed by the key"):
        requested(f"{lines[0]}\n{changed}{lines[-1]}\n".encode())


def test_a_request_for_more_than_names_is_refused() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    wants_all = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    with pytest.raises(ConfigError, match=r"2\.5\.29\.19"):
        requested(wants_all.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    weak = ec.generate_private_key(ec.SECP192R1()) if hasattr(ec, "SECP192R1") else None
    if weak is not None:
        with pytest.raises(ConfigError, match="curve"):
            requested(builder.sign(weak, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_an_authority_that_ends_first_signs_nothing(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="ends on 2036"):
        authority.issue(new_request(new_key(), ("x",)), ("x",), 90, NOW + timedelta(days=3600))
    Authority(authority.certificate, authority.key).check()
    with pytest.raises(ConfigError, match="not that of"):
        Authority(authority.certificate, new_key()).check()
    leaf = authority.issue(new_request(new_key(), ("x",)), ("x",), 90, NOW)
    with pytest.raises(ConfigError, match="no authority"):
        Authority(leaf.certificate, new_key()).check()


# --- a folder --------------------------------------------------------------------------------------------------------


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["certificates", arguments[0], "--folder", str(folder), *arguments[1:]])
    if code and isinstance(result.exception, ConfigError):
        return str(result.exception)
    assert result.exit_code == code, f"{result.output} {result.exception!r}"
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    run(tmp_path / "ca", "authority")
    yield tmp_path / "ca"


def test_an_authority_is_made_once_and_its_key_is_nobody_elses(folder: Path) -> None:
    assert "already" in run(folder, "authority", code=1)
    assert stat.S_IMODE((folder / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "authority.key").chmod(0o644)
    assert "chmod 0600" in run(folder, "issue", "n1", code=1)


def test_each_node_of_a_host_list_has_a_certificate_and_key_of_its_own(folder: Path) -> None:
    told = run(folder, "issue", "--controller", "--client", "prometheus", "gpu[01-03]")
    assert "node gpu02" in told
    keys = {(folder / "nodes" / f"gpu{n:02}" / "tls.key").read_bytes() for n in (1, 2, 3)}
    assert len(keys) == 3
    made = read((folder / "nodes" / "gpu02" / "tls.crt").read_bytes())
    assert made.names == (of_node("gpu02"), "gpu02")
    assert read((folder / "controller" / "tls.crt").read_bytes()).names == (CONTROLLER,)
    assert (folder / "nodes" / "gpu02" / "ca.crt").read_bytes() == (folder / "authority.crt").read_bytes()
    assert "authority.key" not in {file.name for file in (folder / "nodes" / "gpu02").iterdir()}
    documents = json.loads(run(folder, "list", "--json"))["certificates"]
    assert [one["kind"] for one in documents] == ["authority", "controller", "node", "node", "node", "client"]
    assert len((folder / "issued.jsonl").read_text().splitlines()) == 5
    # They are what OpenSSL takes for each of their uses.
    context = ssl.create_default_context(cafile=str(folder / "authority.crt"))
    context.load_cert_chain(folder / "controller" / "tls.crt", folder / "controller" / "tls.key")


def test_only_what_is_due_is_renewed_and_a_revoked_name_is_not(folder: Path) -> None:
    run(folder, "issue", "n1", "n2")
    before = (folder / "nodes" / "n1" / "tls.crt").read_bytes()
    run(folder, "renew")
    assert (folder / "nodes" / "n1" / "tls.crt").read_bytes() == before
    run(folder, "revoke", "n2", "--reason", "its disk was stolen")
    assert "n1" in run(folder, "renew", "--left", "1")
    assert (folder / "nodes" / "n1" / "tls.crt").read_bytes() != before
    assert "revoked: its disk was stolen" in run(folder, "list")
    assert "admit" in run(folder, "issue", "n2", code=1)
    run(folder, "admit", "n2")
    run(folder, "issue", "n2")
    known = AuthorityFolder(folder)
    (entry,) = [one for one in known.entries() if one.name == "n2"]
    told = Certificate(frozenset(entry.issued.names), "", entry.issued.not_before.timestamp(), 0.0)
    assert known.revocations().refuses(told) == "", "a certificate that was made afterwards is valid at once"
    assert "not revoked" in run(folder, "admit", "n1", code=1)


def test_a_nodes_own_request_is_signed_and_its_key_stays_where_it_is(folder: Path, tmp_path: Path) -> None:
    key = new_key()
    (tmp_path / "n1.csr").write_bytes(new_request(key, (of_node("someone-else"),)))
    run(folder, "sign", "n1", str(tmp_path / "n1.csr"))
    assert read((folder / "nodes" / "n1" / "tls.crt").read_bytes()).names == (of_node("n1"), "n1")
    assert not (folder / "nodes" / "n1" / "tls.key").exists()
    result = CliRunner().invoke(cli, ["certificates", "renew", "--folder", str(folder), "--left", "1"])
    assert "sign a new request" in str(result.exception)


@pytest.mark.parametrize("node", ["../n1", "a/b", "..", "*"])
def test_no_name_leads_out_of_the_folder(folder: Path, node: str) -> None:
    run(folder, "issue", "--", node, code=1)
    assert not (folder / "nodes").exists() or not list((folder / "nodes").iterdir())


def test_without_an_authority_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    assert "gangwatch certificates authority" in run(tmp_path / "none", "issue", "n1", code=1)
    (tmp_path / "empty").mkdir()
    assert "gangwatch certificates authority" in run(tmp_path / "empty", "issue", "n1", code=1)


def test_times_of_a_peers_certificate_are_read_as_openssl_writes_them() -> None:
    told = {"subjectAltName": (("DNS", "N1"), ("IP Address", "::1")), "notAfter": "Jan  5 09:34:43 2038 GMT"}
    found = read_certificate(told)
    assert found.names == {"n1"}
    assert found.not_after == datetime(2038, 1, 5, 9, 34, 43, tzinfo=UTC).timestamp()
    assert read_certificate({}).names == frozenset()
