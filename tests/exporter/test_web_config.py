"""Web configuration file: known keys are read, and unknown ones are rejected with file and key."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import ConfigError
from exporter.security.web_config import load_web_config, make_context
from tests.exporter.certificates import Authority

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
"""From the documentation of the format."""

PAIR = "tls_server_config:\n  cert_file: a.pem\n  key_file: a.key\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


def test_every_key_of_the_format_is_read(tmp_path: Path) -> None:
    config = load_web_config(
        write(
            tmp_path,
            PAIR + "  client_ca_file: /ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n"
            "  client_allowed_sans: [a.example, 10.0.0.1]\n  min_version: TLS12\n  max_version: TLS13\n"
            "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"
            "  prefer_server_cipher_suites: true\n  curve_preferences: [CurveP256]\n"
            "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n"
            "    Strict-Transport-Security: max-age=31536000\n    X-XSS-Protection: ''\n"
            f"basic_auth_users:\n  a: {HASH}\n  b: {HASH}\n"
            "rate_limit: {interval: 1s, burst: 20}\n",
        )
    )
    tls = config.tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.client_ca) == (tmp_path / "a.pem", tmp_path / "a.key", Path("/ca.pem"))
    assert tls.client_auth is ssl.CERT_REQUIRED and tls.client_names == {"a.example", "10.0.0.1"}
    assert tls.ciphers == ("ECDHE-RSA-AES128-GCM-SHA256",) and tls.curve == "prime256v1"
    assert config.headers == (("X-Frame-Options", "deny"), ("Strict-Transport-Security", "max-age=31536000"))
    assert dict(config.users) == {"a": HASH, "b": HASH}
    assert (config.rate_seconds, config.burst) == (1.0, 20)
    assert config.authenticates
    assert HASH not in repr(config), "secrets must not appear in a log"


@pytest.mark.parametrize("text", ["", "{}", "tls_server_config:\nbasic_auth_users:\n", "# nothing\n"])
def test_an_empty_file_is_a_configuration_without_protection(tmp_path: Path, text: str) -> None:
    config = load_web_config(write(tmp_path, text))
    assert config.tls is None and not config.authenticates


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("basic_auth: {}", "basic_auth: unknown key (known are tls_server_config,"),
        (PAIR + "  cert_fil: x\n", "tls_server_config.cert_fil: unknown key"),
        ("http_server_config: {headers: {X-Powered-By: us}}", "http_server_config.headers.X-Powered-By: unknown key"),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}", "X-Frame-Options: expected deny or sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\r\\nb"}}', "holds a character that no header can"),
        ("http_server_config: {http2: 1}", "http_server_config.http2: expected true or false, not 1"),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file: TLS needs a certificate and its key"),
        ("tls_server_config: {key_file: a}", "tls_server_config.cert_file: TLS needs"),
        ("tls_server_config: [a]", "tls_server_config: expected keys with values"),
        (PAIR + "  cert: x\n", "tls_server_config.cert: cert_file is also set"),
        (PAIR + "  client_auth_type: Maybe\n", "tls_server_config.client_auth_type: expected one of NoClientCert"),
        (PAIR + "  client_auth_type: RequireAnyClientCert\n", "admits any client with a certificate"),
        (PAIR + "  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file: a client's certificate can't"),
        (PAIR + "  client_ca_file: ca\n", "client_ca_file: a CA has no effect without client_auth_type"),
        (PAIR + "  client_allowed_sans: [a]\n", "client_allowed_sans: needs client_auth_type"),
        (PAIR + "  client_allowed_sans: a\n", "client_allowed_sans: expected a list of strings"),
        (PAIR + "  min_version: TLS10\n", "tls_server_config.min_version: expected one of TLS12, TLS13, not 'TLS10'"),
        (PAIR + "  min_version: TLS13\n  max_version: TLS12\n", "max_version: is older than min_version"),
        (PAIR + "  cipher_suites: [RC4]\n", "tls_server_config.cipher_suites: unknown suite 'RC4'"),
        (
            PAIR + "  curve_preferences: [X25519, CurveP256]\n",
            "curve_preferences: Python's ssl supports only one curve",
        ),
        (PAIR + "  curve_preferences: [Curve9]\n", "curve_preferences: expected one of"),
        ("basic_auth_users: {a: secret}", "basic_auth_users.a: is no bcrypt hash"),
        ("basic_auth_users: {a: 5}", "basic_auth_users.a: expected a string"),
        (f"basic_auth_users: {{'a:b': {HASH}}}", "a user's name can't be empty or hold ':'"),
        ("rate_limit: {interval: soon}", "rate_limit.interval: expected 0 or a duration"),
        ("rate_limit: {burst: -1}", "rate_limit.burst: expected a whole number"),
        ("[1, 2]", "the file: expected keys with values"),
        ("a: [", "line 1, column 5"),
        ("a: 2026-13-45", "not YAML"),
        ("!!python/object/apply:os.system [ls]", "not YAML"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load_web_config(file)
    assert str(refusal.value).startswith(f"{file}:")
    assert complaint in str(refusal.value)
    assert "secret" not in str(refusal.value)


@given(st.text(max_size=200))
def test_arbitrary_text_is_loaded_or_rejected(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "web.yml")
        file.write_text(text, encoding="utf-8", errors="replace")
        try:
            load_web_config(file)
        except ConfigError as error:
            assert str(error).startswith(str(file))


def test_a_key_pair_may_be_inline(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("inline")
    indent = "\n    "
    text = "tls_server_config:\n" + "".join(
        f"  {name}: |{indent}{indent.join(file.read_text().splitlines())}\n"
        for name, file in (("cert", certificate), ("key", key))
    )
    config = load_web_config(write(tmp_path, text))
    assert config.files() == (tmp_path / "web.yml",)
    assert make_context(config) is not None


def _supports_x25519() -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve("X25519")
    except (OSError, ValueError):
        return False
    return True


def test_the_error_names_an_unusable_key_pair(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.yml: tls_server_config\.cert_file, key_file: No such file"):
        make_context(load_web_config(write(tmp_path, PAIR)))
    (tmp_path / "a.pem").write_text("nonsense")
    (tmp_path / "a.key").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"web\.yml: tls_server_config\.cert_file, key_file"):
        make_context(load_web_config(write(tmp_path, PAIR)))
    for suites in ("CurveP256", "CurveP384", "CurveP521", "X25519"):
        certificate, key = Authority(tmp_path).sign("curve")
        text = f"tls_server_config: {{cert_file: {certificate}, key_file: {key}, curve_preferences: [{suites}]}}"
        if suites == "X25519" and not _supports_x25519():  # CPython 3.11.2 of Debian 12
            with pytest.raises(ConfigError, match=r"web\.yml: tls_server_config\.curve_preferences: "):
                make_context(load_web_config(write(tmp_path, text)))
            continue
        assert make_context(load_web_config(write(tmp_path, text))) is not None
