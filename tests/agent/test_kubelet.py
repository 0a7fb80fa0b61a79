"""Client of the kubelet's socket, against gRPC's server; parser of its messages, against Google's encoder."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.kubelet.kubelet import MAX_ANSWER_BYTES, Kubelet
from agent.sources.kubelet.pod_resources import (
    MAX_DEVICES,
    ClaimedDevice,
    Container,
    Pod,
    parse_allocatable,
    parse_list,
)
from agent.sources.kubelet.protobuf_reader import fields
from tests.fakes.kubelet import FakeKubelet, encode_list

GPU = "GPU-11111111-2222-3333-4444-555555555555"
PODS = (
    Pod("training", "llama-worker-0", (Container("pytorch", (("nvidia.com/gpu", GPU), ("rdma/hca", "0"))),)),
    Pod(
        "inference",
        "slice",
        (
            Container("side"),
            Container("server", (("nvidia.com/mig-1g.10gb", "MIG-99999999-2222-3333-4444-555555555555"),)),
        ),
    ),
    Pod(
        "research",
        "claimed-ü",
        (
            Container(
                "main",
                (),
                (
                    ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-3", "one", ("k8s.gpu.nvidia.com/claim=a-gpu-3",)),
                    ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-4", "one"),
                ),
            ),
        ),
    ),
    Pod("kube-system", "empty"),
)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet.sock", PODS) as running:
        yield running


@pytest.fixture
def client(fake: FakeKubelet) -> Kubelet:
    return Kubelet(fake.path, 10.0)


def test_the_client_reads_what_the_kubelet_lists(client: Kubelet) -> None:
    assert client.list() == PODS
    assert client.list() is client.list(), "an identical response is not parsed again"


def test_allocatable_devices_and_one_pod_are_read(client: Kubelet, fake: FakeKubelet) -> None:
    fake.allocatable = [("nvidia.com/gpu", f"{GPU}::{replica}") for replica in range(3)]
    assert client.allocatable() == tuple(fake.allocatable)
    assert client.get("inference", "slice") == PODS[1]
    assert client.get("inference", "x" * 200) is None
    with pytest.raises(ValueError, match="not a valid pod name"):
        client.get("inference", "x" * 254)


def test_a_list_of_megabytes_is_read_up_to_the_limit(client: Kubelet, fake: FakeKubelet) -> None:
    long = "x" * 10_000
    fake.pods = [Pod("n", f"p{number}", (Container(long, (("nvidia.com/gpu", GPU),)),)) for number in range(1000)]
    assert client.list() == tuple(fake.pods)
    fake.pods *= 2
    assert len(encode_list(fake.pods)) > MAX_ANSWER_BYTES
    with pytest.raises(SourceError, match="over 16777216 bytes"):
        client.list()
    fake.pods = []
    assert client.list() == ()


def test_a_hung_kubelet_ends_in_a_deadline_error(fake: FakeKubelet) -> None:
    client = Kubelet(fake.path, 0.2)
    fake.hanging.set()
    # Either the server or the client may notice the deadline first.
    with pytest.raises(SourceError, match=r"no response within 0.2 s|deadline exceeded"):
        client.list()
    fake.hanging.clear()
    assert Kubelet(fake.path, 10.0).list() == PODS


def test_the_client_reconnects_to_a_restarted_kubelet(client: Kubelet, fake: FakeKubelet) -> None:
    assert client.list() == PODS
    fake.stop()
    with pytest.raises(SourceError, match=r"kubelet.sock: List: "):
        client.list()
    fake.start()
    assert client.list() == PODS


def test_a_missing_socket_and_a_too_long_path_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        Kubelet(f"{tmp_path}/none.sock").list()
    with pytest.raises(SourceError, match="path too long"):
        Kubelet(f"{tmp_path}/{'x' * 200}").list()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit"),
        (grpc.StatusCode.FAILED_PRECONDITION, "is starting"),
        (grpc.StatusCode.UNAUTHENTICATED, "status 16"),
    ],
)
def test_the_error_contains_the_status_of_the_kubelet(
    client: Kubelet, fake: FakeKubelet, code: grpc.StatusCode, text: str
) -> None:
    fake.failure = (code, "we said: 50 % no")
    with pytest.raises(SourceError, match=f"{text}.*we said: 50 % no"):
        client.list()


def test_a_method_missing_in_the_kubelet_is_unsupported(client: Kubelet, fake: FakeKubelet) -> None:
    fake.failure = (grpc.StatusCode.UNIMPLEMENTED, "PodResources API Get method disabled")
    with pytest.raises(UnsupportedError, match="disabled"):
        client.get("a", "b")
    fake.failure = None
    with pytest.raises(UnsupportedError, match="unimplemented"):
        client._call("ListEverything")


def test_an_invalid_response_is_rejected_and_the_next_is_read(client: Kubelet, fake: FakeKubelet) -> None:
    for rubbish in (b"\xff" * 50, b"\x0a\xff", b"\x0b\x0c", b"\x08"):
        fake.rubbish = rubbish
        with pytest.raises(SourceError, match="protocol buffer"):
            client.list()
    fake.rubbish = None
    assert client.list() == PODS


def test_a_server_without_http2_is_an_error(tmp_path: Path) -> None:
    path = f"{tmp_path}/odd.sock"
    random.seed(3)
    answers = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), *(random.randbytes(200) for _ in range(20))]
    # A settings frame, then arbitrary bytes.
    answers += [b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + random.randbytes(60) for _ in range(20)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            for answer in answers:
                # The client does not read further after an error and closes its end first.
                with listener.accept()[0] as connection, contextlib.suppress(ConnectionError):
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in answers:
            with pytest.raises(SourceError, match=r"odd.sock: List: "):
                Kubelet(path, 10.0).list()
        thread.join()


# --- reading ---------------------------------------------------------------------------------------------------------

words = st.text(max_size=12)
pods = st.lists(
    st.builds(
        Pod,
        words,
        words,
        st.lists(
            st.builds(
                Container,
                words,
                st.lists(st.tuples(words, words), max_size=3).map(tuple),
                st.lists(
                    st.builds(ClaimedDevice, words, words, words, words, st.lists(words, max_size=2).map(tuple)),
                    max_size=3,
                ).map(tuple),
            ),
            max_size=3,
        ).map(tuple),
    ),
    max_size=4,
).map(tuple)


@given(pods)
def test_messages_of_googles_encoder_are_read(written: tuple[Pod, ...]) -> None:
    assert parse_list(encode_list(written)) == written


@given(st.binary(max_size=300))
@example(b"\x0a" * 300)
@example(b"\x80" * 300)
def test_arbitrary_bytes_cause_no_crash_and_no_hang(data: bytes) -> None:
    for parse in (parse_list, parse_allocatable):
        try:
            parse(data)
        except SourceError:
            pass


@given(pods, st.data())
def test_a_damaged_response_is_rejected_or_parsed(written: tuple[Pod, ...], data: st.DataObject) -> None:
    """A message cut inside a field is rejected. A changed byte gives a valid response or an error."""
    whole = encode_list(written)
    if not whole:
        return
    ends = {0, *(end if end else start for _, _, start, end in fields(whole))}
    at = data.draw(st.integers(0, len(whole) - 1))
    if at not in ends:
        with pytest.raises(SourceError):
            parse_list(whole[:at])
    changed = bytearray(whole)
    changed[at] = data.draw(st.integers(0, 255))
    try:
        parse_list(bytes(changed))
    except SourceError:
        pass


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x05abc", "5 bytes, but only 3 are left"),
        (b"\x0d\x00\x00", "4 bytes, but only 2 are left"),
        (b"\x09\x00", "8 bytes, but only 1 are left"),
        (b"\x02\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x80" * 11, "varint without an end"),
        (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "over 64 bits"),
        (b"\x80\x80\x80\x80\x10\x00", "field number 536870912"),
        (b"\x08\x01", "field 1 of wire type 0"),
        (b"\x0a\x03\x0a\x01\xff", "not UTF-8"),
    ],
)
def test_inconsistent_messages_are_rejected(data: bytes, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        parse_list(data)


def test_fields_of_later_kubelets_are_skipped() -> None:
    known = encode_list(PODS[:1])
    later = b"\x98\x06\x07" + known + b"\xa2\x06\x03new" + b"\x1d\x00\x00\x00\x00" + b"\x19" + bytes(8)
    assert parse_list(later) == PODS[:1]


def test_too_many_devices_are_rejected() -> None:
    with pytest.raises(SourceError, match="devices"):
        parse_list(b"\x0a\x00" * (MAX_DEVICES + 1))
