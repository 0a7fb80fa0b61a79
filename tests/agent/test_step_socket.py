"""Step socket: no client can block it, and only one agent listens on it."""

from __future__ import annotations

import array
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schema.errors import ReporterError, SourceError
from agent.schema.frame import Member
from agent.sources.steps.step_connection import MAX_PLACES, Admission
from agent.sources.steps.step_messages import Claim, Peer, Place, parse_claim
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Quotas, Tenant
from tests.agent.test_rings import WHOLE, memory_file


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


TENANT = Tenant("job", "test")


def admit_all(peer: Peer, claim: Claim, waited: float) -> Admission | None:
    return Admission(Member(claim.gang or "", claim.attempt or 0, claim.rank or 0), TENANT)


def refusals(listening: StepSocket) -> int:
    return sum(listening.refused.values())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "n.sock")


@pytest.fixture
def listening(path: str) -> Iterator[StepSocket]:
    made = StepSocket(path, admit_all, message_seconds=0.3)
    yield made
    made.close()


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(30)
    client.connect(path)
    return client


def message(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def claim(**fields: object) -> bytes:
    return message(json.dumps({"v": 1, **fields}).encode())


def place(**fields: object) -> bytes:
    return message(json.dumps({"v": 1, "place": fields}).encode())


def send(client: socket.socket, data: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        client.sendmsg([data], rights)
    except BrokenPipeError:
        pass  # rejected before all data were read; the response is still there to read


def answer(client: socket.socket) -> dict[str, object]:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = client.recv(4096)
        assert more, "no answer"
        data += more
    said = json.loads(data[4:])
    assert isinstance(said, dict)
    return said


def register(path: str, rank: int = 0) -> socket.socket:
    client = connect(path)
    descriptor = memory_file(WHOLE)
    send(client, claim(gang="g", rank=rank, attempt=1, world_size=2, pid=1), [descriptor])
    os.close(descriptor)
    return client


def test_a_reporter_is_admitted_and_its_end_is_detected(listening: StepSocket, path: str) -> None:
    with register(path) as client:
        assert answer(client) == {"ok": True}
        (found,) = listening.registered()
        assert (found.peer, found.member) == (Peer(os.getpid(), os.getuid()), Member("g", 1, 0))
        assert not found.closed
    wait_until(lambda: found.closed, "the end of the connection is not detected")
    assert found.ring.read(1) == []
    listening.forget(found)
    assert listening.registered() == []
    assert refusals(listening) == 0


def test_a_registered_reporter_reports_its_place(listening: StepSocket, path: str) -> None:
    with register(path) as client:
        assert answer(client) == {"ok": True}
        (found,) = listening.registered()
        assert found.place == Place()
        # Two places at once, in pieces, and with fields that it may not set: only its own rank's place changes.
        both = place(data=1, stage=2, tensor=3) + place(data=4, stage=5, rank=7, gang="other")
        for start in range(0, len(both), 11):
            client.sendall(both[start : start + 11])
        wait_until(lambda: found.place == Place(4, 5), f"{found.place}")
        assert found.member == Member("g", 1, 0) and not found.closed
    assert refusals(listening) == 0


@pytest.mark.parametrize(
    "said",
    [
        b"not a real message" * 1000,
        message(b"not json"),
        message(b'{"v":2,"place":{}}'),
        message(b'{"v":1}'),
        message(b'{"v":1,"place":{"data":-1}}'),
        message(b'{"v":1,"place":{"stage":1048576}}'),
        message(b'{"v":1,"place":{"data":0}}') * (MAX_PLACES + 1),
    ],
)
def test_an_invalid_place_closes_only_its_own_connection(said: bytes, listening: StepSocket, path: str) -> None:
    with register(path) as client, register(path, rank=1) as other:
        assert answer(client) == answer(other) == {"ok": True}
        first, second = sorted(listening.registered(), key=lambda one: one.member.rank)
        try:
            client.sendall(said)
        except OSError:
            pass  # disconnected before everything was sent
        wait_until(lambda: first.closed, "the connection stays open after an invalid place")
        assert not second.closed
        other.sendall(place(tensor=1))
        wait_until(lambda: second.place == Place(tensor=1), "the place of the other rank is not received")
    assert refusals(listening) == 1


def test_only_this_user_can_use_the_socket(listening: StepSocket, path: str) -> None:
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700


def test_a_message_may_arrive_in_pieces_with_the_descriptor_first(listening: StepSocket, path: str) -> None:
    descriptor = memory_file(WHOLE)
    with connect(path) as client:
        whole = claim(gang="g", rank=4)
        send(client, whole[:1], [descriptor])
        for byte in whole[1:]:
            client.sendall(bytes([byte]))
        assert answer(client) == {"ok": True}
    os.close(descriptor)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "registration of 1195725856 bytes"),
        (message(b"not json"), "registration: "),
        (message(b"[" * 4000), "registration: "),
        (message(b"\xff\xfe"), "registration: "),
        (message(b"{}"), "registration: "),
        (claim(v=2), "version 2"),
        (claim(rank=-1), "rank"),
        (claim(rank="one"), "rank"),
        (claim(gang="x" * 300), "gang"),
        (claim(gang="a\nb"), "gang"),
        (claim(gang="a\n"), "gang"),
        (claim(gang="g"), "without a memory file"),
        (b"\x00\x00", "no complete registration within 0.3 s"),
        (message(b"{")[:4], "no complete registration within 0.3 s"),
    ],
)
def test_garbage_is_rejected_counted_and_the_reason_is_sent(
    sent: bytes, said: str, listening: StepSocket, path: str
) -> None:
    with connect(path) as client:
        client.sendall(sent)
        response = answer(client)
        assert response["ok"] is False and said in str(response["error"])
        assert client.recv(1) == b""
    assert refusals(listening) == 1
    assert said in listening.refusals[0].reason
    assert listening.registered() == []


def test_an_unsealed_file_is_rejected(listening: StepSocket, path: str) -> None:
    descriptor = memory_file(WHOLE, seals=0)
    with connect(path) as client:
        send(client, claim(gang="g"), [descriptor])
        assert "not sealed" in str(answer(client)["error"])
    os.close(descriptor)


def test_clients_that_send_nothing_do_not_delay_others(listening: StepSocket, path: str) -> None:
    silent = [connect(path) for _ in range(20)]
    with register(path) as client:
        assert answer(client) == {"ok": True}
    for each in silent:
        assert "no complete registration" in str(answer(each)["error"])
        each.close()


def test_no_descriptor_stays_open(path: str) -> None:
    before = open_descriptors()
    listening = StepSocket(path, admit_all)
    descriptors = [memory_file(WHOLE) for _ in range(10)]
    listens = open_descriptors()
    with connect(path) as client:
        send(client, claim(gang="g")[:3], descriptors[:1])
        send(client, claim(gang="g")[3:], [])
        assert answer(client) == {"ok": True}
        # Both ends of the connection, and the ring.
        wait_until(lambda: open_descriptors() == listens + 3, "extra descriptors stay open")
        send(client, b"\0", descriptors)
        assert "too many descriptors" in str(answer(client)["error"])
    for first, second in ((descriptors, []), (descriptors[:1], descriptors[:1]), (descriptors[:1], descriptors)):
        with connect(path) as client:
            send(client, claim(gang="h")[:3], first)
            if second:
                send(client, claim(gang="h")[3:], second)
            assert "too many descriptors" in str(answer(client)["error"])
    with connect(path) as client:
        send(client, b"garbage!", descriptors[:1])
        answer(client)
    for found in listening.registered():
        wait_until(lambda found=found: found.closed, "the end of the connection is not detected")
        listening.forget(found)
    wait_until(lambda: open_descriptors() == listens, "descriptors of refused clients stay open")
    for descriptor in descriptors:
        os.close(descriptor)
    listening.close()
    assert open_descriptors() == before


def test_one_rank_has_one_reporter(listening: StepSocket, path: str) -> None:
    with register(path) as first:
        assert answer(first) == {"ok": True}
        with register(path) as second:
            assert "reported by process" in str(answer(second)["error"])
        with register(path, rank=1) as other:
            assert answer(other) == {"ok": True}
    (found, *_) = listening.registered()
    wait_until(lambda: found.closed, "the end of the connection is not detected")
    with register(path) as again:
        assert answer(again) == {"ok": True}


def test_admission_is_retried_if_it_cannot_be_decided_yet(path: str) -> None:
    asked: list[float] = []

    def admit(peer: Peer, claim: Claim, waited: float) -> Admission | None:
        asked.append(waited)
        return Admission(Member("g", 0, 0), TENANT) if len(asked) == 3 else None

    listening = StepSocket(path, admit)
    try:
        with register(path) as client:
            assert answer(client) == {"ok": True}
        assert asked == sorted(asked) and len(asked) == 3
    finally:
        listening.close()


def test_a_rejected_reporter_receives_the_reason(path: str) -> None:
    def refuse(peer: Peer, claim: Claim, waited: float) -> Admission | None:
        raise ReporterError("not of this node")

    listening = StepSocket(path, refuse)
    try:
        with register(path) as client:
            assert answer(client) == {"ok": False, "error": "not of this node"}
        assert [refusal.reason for refusal in listening.refusals] == ["not of this node"]
    finally:
        listening.close()


def test_reporters_above_the_limit_are_rejected(path: str) -> None:
    listening = StepSocket(path, admit_all, quotas=Quotas(reporters=2))
    try:
        clients = [register(path, rank) for rank in range(2)]
        for client in clients:
            assert answer(client) == {"ok": True}
        with register(path, 2) as client:
            assert "2 processes report on this node, the maximum" in str(answer(client)["error"])
        for client in clients:
            client.close()
    finally:
        listening.close()


def test_a_second_agent_fails_and_the_socket_of_a_dead_one_is_replaced(path: str) -> None:
    Path(path).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(path)
    listening = StepSocket(path, admit_all)
    try:
        with pytest.raises(SourceError, match="another agent is listening"):
            StepSocket(path, admit_all)
        with register(path) as client:
            assert answer(client) == {"ok": True}
    finally:
        listening.close()
    StepSocket(path, admit_all).close()
    assert not Path(path).exists()


def test_the_error_names_an_unusable_path(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="too long"):
        StepSocket(str(tmp_path / ("x" * 120) / "n.sock"), admit_all)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="file"):
        StepSocket(str(tmp_path / "file" / "n.sock"), admit_all)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    open_to_all.chmod(0o755)
    with pytest.raises(SourceError, match="mode 0700"):
        StepSocket(str(open_to_all / "n.sock"), admit_all)
    open_to_all.chmod(0o711)  # other users may enter it, but not list or change it
    listening = StepSocket(str(open_to_all / "n.sock"), admit_all)
    assert stat.S_IMODE((open_to_all / "n.sock").stat().st_mode) == 0o666
    listening.close()
    occupied = tmp_path / "occupied"
    occupied.mkdir(mode=0o700)
    (occupied / "n.sock").write_text("a file of another program")
    with pytest.raises(SourceError, match=r"n\.sock"):
        StepSocket(str(occupied / "n.sock"), admit_all)
    assert (occupied / "n.sock").read_text() == "a file of another program"


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)
    ).map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {
            "v": st.just(1),
            "gang": st.text() | st.integers() | st.none(),
            "rank": st.integers() | st.none() | st.floats(),
            "attempt": st.integers() | st.text(),
        }
    ).map(lambda value: json.dumps(value).encode())
)
def test_arbitrary_bytes_never_give_an_impossible_claim(body: bytes) -> None:
    try:
        said = parse_claim(body)
    except ReporterError:
        return
    assert said.v == 1
    for count in (said.rank, said.attempt, said.world_size, said.pid):
        assert count is None or 0 <= count < 2**31
    if said.gang is not None:
        assert 1 <= len(said.gang) <= 253
        said.gang.encode()
        assert not any(ord(character) < 32 for character in said.gang)
