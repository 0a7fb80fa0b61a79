"""OpenID provider on loopback that signs any token that a test requests."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLIENT = "gangwatch-test"


class Provider:
    """OpenID provider: issuer, keys and endpoints. It serves inside the ``with``."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.keys = {"first": rsa.generate_private_key(public_exponent=65537, key_size=2048)}
        self.curve = ec.generate_private_key(ec.SECP256R1())
        self.down = False
        self.claims: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(provider.get(urlsplit(self.path).path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(provider.redeem({key: one[0] for key, one in parse_qs(body).items()}))

            def _answer(self, document: Any) -> None:
                provider.asked[urlsplit(self.path).path] += 1
                content = json.dumps(document).encode()
                self.send_response(503 if provider.down else 200 if document is not None else 400)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Provider:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # --- endpoints ----------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
            }
        if path == "/keys":
            return {"keys": self.published()}
        return None

    def published(self) -> list[dict[str, Any]]:
        keys = []
        for name, key in self.keys.items():
            keys.append(json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": name, "use": "sig"})
        keys.append(json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.curve.public_key())) | {"kid": "curve"})
        # A provider may also publish keys that must not be used: a shared secret, and a key for encryption.
        keys.append({"kty": "oct", "kid": "shared", "k": "c2VjcmV0"})
        keys.append({**keys[0], "kid": "encryption", "use": "enc"})
        return keys

    def authorize(self, address: str, **claims: Any) -> dict[str, str]:
        """Return the query with which the provider redirects the browser back after the user has logged in."""
        query = {key: one[0] for key, one in parse_qs(urlsplit(address).query).items()}
        assert query["response_type"] == "code" and query["client_id"] == CLIENT
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        self.claims = {"nonce": query["nonce"]} | claims
        return {"code": code, "state": query["state"]}

    def redeem(self, form: dict[str, str]) -> Any:
        query = self.codes.pop(form.get("code", ""), None)
        if query is None or form["redirect_uri"] != query["redirect_uri"]:
            return None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != query["code_challenge"]:
            return None
        return {"id_token": self.token(**self.claims), "token_type": "Bearer"}

    # --- tokens -------------------------------------------------------------------------------------------------------

    def body(self, **claims: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "ana",
            "iat": now,
            "exp": now + 300,
            "groups": ["researchers"],
        }
        return {key: value for key, value in (usual | claims).items() if value is not None}

    def token(
        self, key: str = "first", algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        return jwt.encode(self.body(**claims), self.keys[key], algorithm, headers={"kid": key, **(header or {})})

    def public_pem(self) -> bytes:
        public = self.keys["first"].public_key()
        return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def raw_token(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token with this header and body, even if a library would refuse to sign them."""

    def encoded(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    return ".".join((encoded(json.dumps(header).encode()), encoded(json.dumps(body).encode()), encoded(signature)))
