"""HTTP requests for the fuzz targets, with headers and bodies that the servers check."""

from __future__ import annotations

import json
import random
from typing import Any

from benchmarks.fuzz.mutate import octets
from scheduler_feedback.api.reading.lists import mark_text

TOKEN = "a-token-of-the-state-folder"
_METHODS = (b"GET", b"HEAD", b"POST", b"OPTIONS", b"DELETE", b"PRI", b"get", b"G" * 17)
_PATHS = (
    *(b"/", b"/metrics", b"/frame", b"/frames", b"/healthz", b"/api/jobs", b"/%2e%2e/%00", b"//x", b"*", b"x"),
    *(b"http://evil/", b"/a#b", b"/\xc3\xa9", b"/ b", b"/" + b"a" * 300),
)
QUERIES = (
    *(b"metrics=gangwatch_step*", b"metrics=gangwatch_nvlink_errors_total(gpu)", b"metrics=*", b"metrics=a*b"),
    *(b"metrics=a(b", b"metrics=gangwatch_gpu_power_watts(gpu)", b"x=1", b"limit=5&continue=AAAA", b"limit=-1"),
    *(b"continue=" + mark_text([5]).encode(), b"state=a,b", b"since=" + b"9" * 30, b"%ff=%00", b"&&==", b"a" * 2000),
)
HEADERS: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (
        b"Host",
        (b"127.0.0.1:9420", b"localhost:9420", b"[::1]:9420", b"[::1", b"evil.example", b"127.0.0.1:1", b"", b":"),
    ),
    (b"Accept", (b"*/*", b"application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5", b"a/b;q=x,,;,q=0.1")),
    (b"Accept-Encoding", (b"gzip", b"gzip;q=0", b"*;q=0.5, identity", b"br;q=1.0.0", b";;;", b"gzip;q=nan")),
    (b"Connection", (b"close", b"keep-alive", b"Upgrade, close", b"")),
    (b"Upgrade", (b"websocket", b"h2c")),
    (b"Content-Length", (b"0", b"2", b"-1", b"+2", b"2, 2", b"18446744073709551616", b"1048577", b"0x2", b" 2")),
    (b"Transfer-Encoding", (b"chunked", b"identity", b"chunked, chunked", b"gzip, chunked")),
    (b"Content-Type", (b"application/json", b"application/json; charset=utf-8", b"text/plain")),
    (
        b"Authorization",
        (
            b"Bearer " + TOKEN.encode(),
            b"bearer x",
            b"Bearer gwt_" + b"A" * 43,
            b"Bearer a.b.c",
            b"Basic YTpi",
            b"Basic !",
            b"Bearer",
            b"\xff",
        ),
    ),
    (b"Cookie", (b"gangwatch-9420=x", b"gangwatch-9420=", b";;=", b"a=b; gangwatch-9420=\xff", b"x" * 9000)),
    (b"Origin", (b"http://127.0.0.1:9420", b"http://evil.example", b"null")),
    (b"Expect", (b"100-continue",)),
    (b"If-None-Match", (b'"a"', b"*", b"W/")),
    (b"Last-Event-ID", (b"5", b"-5", b"9" * 40)),
    (b"Range", (b"bytes=0-1",)),
)
_ODD_LINES = (
    *(
        b"X : y",
        b": y",
        b"X",
        b"X:\x00",
        b" folded: no",
        b"\tfolded",
        b"X:" + b"a" * 20_000,
        b"X\x7f: y",
        b"X: \xff\xfe",
    ),
    *(b"Host: a\r\nHost: b", b"X: a\nY: b", b"\r", b"X: " + b"\t" * 50),
)
_SPEC: dict[str, tuple[Any, ...]] = {
    "name": ("train", "", "x" * 300, 5, None, "a\u202eb", "<script>"),
    "command": (["true"], [], "true", [5], ["\ud800"], None),
    "ranks": (1, 2, 0, -1, 1 << 21, 1.5, "2", True, None),
    "user": ("ana", "x" * 2000, 7, "a\nb"),
    "queue": ("default", "", "q" * 300),
    "time_limit_seconds": (60, 0, -1, 1e300, "1h", None),
    "working_directory": ("/tmp", "here", ""),
    "environment": ({}, {"A": "b"}, {"A": 5}, [], {"": ""}),
    "array_size": (0, 5, -1, 10**6),
    "groups": ([], [{"role": "a", "ranks": 1}], [{"role": 5}], {}),
    "after": ([], [{"job_id": "j-1", "condition": "ok"}], [{"job_id": "\n", "condition": "ok"}], [{"job_id": 1}]),
    "gpu_types": ([], ["H100"], ["\x9b"], "H100"),
    "throughput": ({}, {"H100": 2.0}, {"H100": 0}, {"H100": "x"}),
    "packing": ("pack", "spread", "x"),
    "required_level": ("rack", "node", "x", None),
    "unknown": (1,),
    "by": ("ana", "x" * 2000, "a\u202eb", 5),
    "reason": ("new NIC", "\x1b[2J", [], None),
    "drain": (True, False, "yes"),
}


def body(chance: random.Random) -> bytes:
    """Return the body of a POST request, sometimes malformed."""
    if chance.random() < 0.1:
        return chance.choice(
            (b"", b"{", b"[]", b"null", b"\xff", b"[" * 5000, b'{"a":1e999}', b'{"name":"\\ud800"}', b"5")
        )
    names = chance.sample(list(_SPEC), chance.randrange(len(_SPEC)))
    if chance.random() < 0.6:
        names = ["name", "command", "ranks", *names]
    made = {name: _SPEC[name][0] if chance.random() < 0.8 else chance.choice(_SPEC[name]) for name in names}
    if chance.random() < 0.85:
        made.pop("unknown", None)
    if chance.random() < 0.7:
        for name in ("by", "reason", "drain"):
            made.pop(name, None)
    elif chance.random() < 0.7:
        made = {name: value for name, value in made.items() if name in ("by", "reason", "drain")}
    content = json.dumps(made).encode()
    return octets(chance, content, chance.randrange(1, 4)) if chance.random() < 0.15 else content


def request(chance: random.Random, bodies: bool = True) -> bytes:
    """Return one request as a client would send it, or slightly wrong. Sometimes it contains two requests, or none."""
    if chance.random() < 0.04:
        return chance.choice(
            (chance.randbytes(chance.randrange(300)), b"\r\n" * chance.randrange(1, 400), b"\x16\x03\x01")
        )
    usual = chance.random() < 0.7
    method = chance.choice(_METHODS[:3] if usual else _METHODS)
    path = chance.choice(_PATHS[:6] if usual else _PATHS)
    if chance.random() < 0.4:
        path += b"?" + b"&".join(chance.choices(QUERIES, k=chance.randrange(1, 3)))
    version = (
        b"HTTP/1.1" if usual else chance.choice((b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 ", b""))
    )
    lines = [method + b" " + path + b" " + version]
    if chance.random() < 0.95:
        lines.append(b"Host: " + (b"127.0.0.1:9420" if chance.random() < 0.85 else chance.choice(HEADERS[0][1])))
    for name, values in chance.sample(HEADERS[1:], chance.randrange(5)):
        if name in (b"Content-Length", b"Transfer-Encoding") and chance.random() < 0.7:
            continue
        lines.append(name + b": " + chance.choice(values))
    if chance.random() < 0.1:
        lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(_ODD_LINES))
    content = b""
    if bodies and method == b"POST" and chance.random() < 0.8:
        content = body(chance)
        if chance.random() < 0.5:
            lines.append(b"Content-Length: %d" % (len(content) + (chance.random() < 0.1)))
        else:
            lines.append(b"Transfer-Encoding: chunked")
            content = b"%x\r\n%b\r\n0\r\n%b\r\n" % (
                len(content),
                content,
                b"T: x\r\n" if chance.random() < 0.1 else b"",
            )
        lines.append(b"Content-Type: application/json")
    made = b"\r\n".join(lines) + b"\r\n\r\n" + content
    match chance.randrange(20):
        case 0:
            return octets(chance, made, chance.randrange(1, 4))
        case 1:
            return made[: chance.randrange(len(made))]
        case 2:
            return made + request(chance, bodies)
    return made
