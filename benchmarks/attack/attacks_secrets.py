"""Attacks on logins, roles and secrets: ``python -m benchmarks.attack.attacks_secrets --json [NAME...]``.

Each attack runs against a real controller, from a separate process. At the same time an operator sends commands
about a node, a submitter requests its own identity by token, and a user logs in on the page. These requests are
measured with and without the attack, in the same run. Attackers get only spare CPU time (SCHED_IDLE), so that they
slow down the others only through the controller.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.attack.http_bed import NODE, BedError, Daemon, attacker, controller, percentile
from scheduler_feedback.api.access.tokens import OWN_TOKENS, TokenEntry, hash_of, make_token, write_entries

SECONDS = 5.0
THREADS = 4
"""Number of connections of one attacker. More connections from one client are a different attack (attacks_http)."""

SUBMISSION = {"name": "train", "command": ["sleep", "60"], "ranks": 1, "grace_seconds": 0.1, "time_limit_seconds": 600}


class Result(TypedDict):
    """Result of one attack. p99_ms_of_others: latency of all honest requests; with _quiet: the same before the attack.

    lost: honest requests that were refused or not answered, and jobs missing at the end. wrong_actions: requests of
    the attacker that were wrongly accepted, and changes that they made. requests: number of the attacker's requests.
    statuses: number of responses to the attacker, by HTTP status.
    """

    name: str
    survived: bool
    rss_growth_mib: float
    p99_ms_of_others: float
    p99_ms_of_others_quiet: float
    lost: int
    wrong_actions: int
    requests: int
    statuses: dict[str, int]


@dataclass(slots=True)
class Ask:
    """A request that the attacker repeats; '{random}' is replaced by 32 random bytes."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    most: int = 0
    """Maximum number of requests; 0: no limit."""
    allowed: tuple[int, ...] = (400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 431, 503)
    """HTTP statuses that mean that the attacker had no success."""


ATTACKER = r"""
import base64, http.client, json, os, sys, threading, time
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
port, seconds, threads = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
asks = json.loads(open(sys.argv[4]).read())
end = time.monotonic() + seconds
lock, counts, wrong, left = threading.Lock(), {}, [], [ask["most"] or -1 for ask in asks]
def fill(text):
    return text.replace("{random}", base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("="))
def work(number):
    connection, index = http.client.HTTPConnection("127.0.0.1", port, timeout=20), number
    while time.monotonic() < end:
        index = (index + 1) % len(asks)
        ask = asks[index]
        with lock:
            if not left[index]:
                continue
            left[index] -= 1
        headers = {name: fill(value) for name, value in ask["headers"].items()}
        try:
            connection.request(ask["method"], ask["path"], fill(ask["body"]) or None, headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            status, content = type(error).__name__, b""
            connection.close()
            time.sleep(0.01)
        with lock:
            counts[str(status)] = counts.get(str(status), 0) + 1
            if isinstance(status, int) and status not in ask["allowed"] and len(wrong) < 1000:
                wrong.append([ask["method"], ask["path"], status, content[:200].decode("latin-1")])
print("begun", flush=True)
workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for one in workers: one.start()
for one in workers: one.join()
print(json.dumps({"counts": counts, "wrong": wrong}), flush=True)
"""


class Honest:
    """Honest clients: each repeats its own request while `running` is set."""

    def __init__(self, daemon: Daemon, token: str) -> None:
        self._daemon, self._token = daemon, token
        self.failures: list[str] = []

    def waits(self, seconds: float) -> list[float]:
        """Return the seconds that each honest request took."""
        end, found = time.monotonic() + seconds, list[float]()

        def go(ask: Callable[[], None], pause: float) -> None:
            while time.monotonic() < end:
                begun = time.perf_counter()
                try:
                    ask()
                except Exception as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                found.append(time.perf_counter() - begun)
                time.sleep(pause)

        asks: tuple[tuple[Callable[[], None], float], ...] = (
            (self._command, 0.05), (self._who, 0.02), (self._log_in, 0.1),
        )  # fmt: skip
        threads = [threading.Thread(target=go, args=one) for one in asks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _command(self) -> None:
        self._daemon.ask("POST", f"/api/nodes/{NODE}/release", {"by": "operator"})

    def _who(self) -> None:
        assert request(self._daemon, "GET", "/api/whoami", token=self._token)[0] == 200

    def _log_in(self) -> None:
        assert request(self._daemon, "POST", "/login", {"token": self._token})[0] == 200


def request(
    daemon: Daemon, method: str, path: str, body: Any = None, token: str = "", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Send one request; return its status, document and headers."""
    import http.client

    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent |= {"Authorization": f"Bearer {token}"} if token else {}
    sent |= {"Content-Type": "application/json"} if body is not None else {}
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        content = response.read()
        document = json.loads(content) if "json" in response.headers.get("content-type", "") else content
        return response.status, document, {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()


@dataclass(slots=True)
class Site:
    """A running controller with tokens of three users and a running job of the user bob."""

    daemon: Daemon
    tokens: dict[str, str]
    job: str = ""


@contextlib.contextmanager
def site(configuration: str = "") -> Iterator[Site]:
    """Run a real controller with three users. configuration: text of its file; '' for none."""
    with tempfile.TemporaryDirectory(prefix="gangwatch-attack-") as folder:
        options = []
        if configuration:
            file = Path(folder) / "gangwatch.toml"
            file.write_text(configuration)
            options = ["--config", str(file)]
        with controller(*options) as daemon:
            tokens = {name: make_token() for name in ("bob", "eve", "boss")}
            roles = {"bob": "submitter", "eve": "submitter", "boss": "operator"}
            entries = [TokenEntry(name, roles[name], hash_of(token)) for name, token in tokens.items()]
            file = daemon.folder / OWN_TOKENS
            file.touch(mode=0o600)
            file.write_bytes(write_entries(entries))
            made = Site(daemon, tokens)
            status, document, _ = request(daemon, "POST", "/api/jobs", SUBMISSION, tokens["bob"])
            assert status == 201, document
            made.job = document["job"]
            yield made
            for job in daemon.ask("GET", "/api/jobs?active=1"):
                with contextlib.suppress(BedError):  # it has ended in the meantime
                    daemon.ask("POST", f"/api/jobs/{job['job']}/cancel", {})
            time.sleep(0.5)


# --- attacks ---------------------------------------------------------------------------------------------------------


def brute_force(_here: Site) -> list[Ask]:
    """Return requests that guess tokens: at the login and as bearer tokens, well-formed and malformed."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return [
        Ask("POST", "/login", form, "token=gwt_{random}&next=/"),
        Ask("POST", "/login", form, "token={random}"),
        Ask("POST", "/login", {"Content-Type": "application/json"}, '{"token": "{random}"}'),
        Ask("GET", "/api/journal", {"Authorization": "Bearer gwt_{random}"}),
        Ask("POST", "/api/freeze", {"Authorization": "Bearer {random}", "Content-Type": "application/json"}, "{}"),
    ]


def forged_cookie(here: Site) -> list[Ask]:
    """Return requests with session cookies that were never issued, and with a truncated cookie."""
    _, _, headers = request(here.daemon, "POST", "/login", {"token": here.tokens["boss"]})
    name, _, value = headers["set-cookie"].partition(";")[0].partition("=")
    change = {"Content-Type": "application/json", "X-Gangwatch-Csrf": "{random}"}
    return [
        Ask("POST", "/api/freeze", change | {"Cookie": f"{name}={{random}}"}, "{}"),
        Ask("POST", f"/api/jobs/{here.job}/cancel", change | {"Cookie": f"{name}={value[:-1]}"}, "{}"),
        Ask("GET", f"/api/jobs/{here.job}/logs?rank=0", {"Cookie": f"{name}={{random}}"}),
        Ask("GET", "/api/journal", {"Cookie": f"{name}={value}x; {name}={{random}}"}),
    ]


def cross_site(here: Site) -> list[Ask]:
    """Return requests that a foreign web page can make an operator's browser send: with its cookie, without the CSRF
    token."""
    _, _, headers = request(here.daemon, "POST", "/login", {"token": here.tokens["boss"]})
    cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
    evil = cookie | {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    own = {"Origin": f"http://127.0.0.1:{here.daemon.port}"}
    plain, kind = {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}
    return [
        Ask("POST", "/api/freeze", evil | plain, "{}"),
        Ask("POST", "/api/freeze", cookie | kind | {"Origin": "null"}, "{}"),
        Ask("POST", f"/api/jobs/{here.job}/cancel", cookie | kind | own | {"X-Gangwatch-Csrf": "{random}"}, "{}"),
        Ask("POST", f"/api/nodes/{NODE}/quarantine", cookie | kind, "{}"),
        Ask("POST", "/logout", evil | plain, ""),
        Ask("POST", "/login", evil | kind, json.dumps({"token": here.tokens["eve"]})),
        Ask("GET", f"/api/jobs/{here.job}/cancel", evil),
    ]


def forged_user(here: Site) -> list[Ask]:
    """Return requests of a submitter who claims to be another user, in bodies, proxy headers and paths."""
    eve = {"Authorization": f"Bearer {here.tokens['eve']}", "Content-Type": "application/json"}
    as_bob = eve | {"X-Forwarded-User": "bob", "X-Remote-User": "boss", "X-Remote-Group": "system:masters"}
    claimed = json.dumps(SUBMISSION | {"user": "bob", "command": ["true"]})
    return [
        Ask("POST", f"/api/jobs/{here.job}/cancel", as_bob, '{"by": "bob"}'),
        Ask("POST", f"/api/nodes/{NODE}/quarantine", as_bob, '{"by": "boss"}'),
        Ask("POST", "/api/freeze", as_bob, '{"by": "boss"}'),
        Ask("GET", f"/api/jobs/{here.job}/logs?rank=0", as_bob),
        Ask("GET", "/api/journal", as_bob),
        Ask("POST", "/api/jobs", as_bob, json.dumps(SUBMISSION | {"priority": 1_000_000})),
        Ask("POST", "/api/jobs", as_bob, claimed, most=20, allowed=(201, 403, 429)),
    ]


def count_changes(here: Site) -> int:
    """Return how many changes attackers have made: to bob's job, users of other jobs, the freeze and the nodes."""
    jobs = {job["job"]: job for job in here.daemon.ask("GET", "/api/jobs")}
    bob = jobs.get(here.job)
    wrong: int = 0 if bob is not None and bob["state"] in ("pending", "starting", "running") else 1
    wrong += sum(job["user"] != "eve" for name, job in jobs.items() if name != here.job)
    wrong += bool(here.daemon.ask("GET", "/api/queue")["frozen"])
    wrong += sum(node["state"] not in ("healthy", "suspect") for node in here.daemon.ask("GET", "/api/nodes"))
    return wrong


def run(name: str, seconds: float = SECONDS) -> Result:
    """Run one attack and return its result. seconds: duration before the attack, and of the attack."""
    if name == "secrets_forged_jwt":
        return _forged_jwt(seconds)
    with site() as here:
        return _measured(name, here, PLANS[name](here), seconds)


def _forged_jwt(seconds: float) -> Result:
    """Send forged tokens of an identity provider: for example unsigned, expired, for another audience, or huge."""
    from tests.security.provider import CLIENT, Provider
    from tests.security.test_login import forged_tokens

    with Provider() as provider:
        text = f'[oidc]\nissuer = "{provider.issuer}"\nclient_id = "{CLIENT}"\n'
        text += '[oidc.roles]\nadmins = "operator"\nresearchers = "submitter"\n'
        with site(text) as here, Provider() as stranger:
            good = request(here.daemon, "GET", "/api/whoami", token=provider.token())
            assert good[0] == 200 and good[1]["role"] == "submitter", good
            before = provider.asked["/keys"]
            asks = []
            for number, token in enumerate(forged_tokens(provider, stranger).values()):
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                asks.append(Ask(*(("POST", "/api/freeze") if number % 2 else ("GET", "/api/journal")), headers, "{}"))
            result = _measured("secrets_forged_jwt", here, asks, seconds)
            # Unknown keys must not cause a request to the provider each time.
            result["wrong_actions"] += max(0, provider.asked["/keys"] - before - 1 - round(seconds / 30))
            return result


def _measured(name: str, here: Site, asks: list[Ask], seconds: float) -> Result:
    daemon, honest = here.daemon, Honest(here.daemon, here.tokens["bob"])
    quiet = honest.waits(seconds)
    before = daemon.rss_mib()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as plan:
        json.dump([{slot: getattr(ask, slot) for slot in Ask.__slots__} for ask in asks], plan)
        plan.flush()
        Path(plan.name).chmod(0o644)
        with attacker(ATTACKER, daemon.port, seconds, THREADS, plan.name) as process:
            assert process.stdout is not None and process.stdout.readline().strip() == "begun"
            waits = honest.waits(seconds)
            printed = json.loads(process.stdout.readline() or '{"counts": {}, "wrong": []}')
    counts: Counter[str] = Counter(printed["counts"])
    survived = daemon.alive()
    with contextlib.suppress(subprocess.SubprocessError):
        survived = survived and daemon.ask("GET", "/readyz") is not None
    for one in (*printed["wrong"][:5], *honest.failures[:5]):
        print(f"{name}: {one}", file=sys.stderr)
    return Result(
        name=name,
        survived=survived,
        rss_growth_mib=round(max(0.0, daemon.rss_mib() - before), 2),
        p99_ms_of_others=round(percentile(waits, 0.99), 2),
        p99_ms_of_others_quiet=round(percentile(quiet, 0.99), 2),
        lost=len(honest.failures),
        wrong_actions=len(printed["wrong"]) + count_changes(here),
        requests=sum(counts.values()),
        statuses=dict(sorted(counts.items())),
    )


PLANS: dict[str, Callable[[Site], list[Ask]]] = {
    "secrets_brute_forced_login": brute_force,
    "secrets_forged_cookie": forged_cookie,
    "secrets_cross_site_request": cross_site,
    "secrets_forged_user": forged_user,
}

ATTACKS: tuple[tuple[str, Callable[[], Result]], ...] = tuple(
    (name, functools.partial(run, name)) for name in (*PLANS, "secrets_forged_jwt")
)


def main() -> int:
    names = [name for name, _ in ATTACKS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="length of each measurement, without and with the attack"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"unknown attack {unknown[0]!r}; known: {', '.join(names)}")
    results = [run(name, options.seconds) for name in options.names or names]
    print(json.dumps({"attacks": results}, indent=2) if options.json else "\n".join(map(str, results)))
    return 0 if all(one["survived"] and not one["wrong_actions"] and not one["lost"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
