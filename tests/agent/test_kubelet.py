"""The kubelet's socket: our client against gRPC's server, our reading against Google's writing and against anything."""

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


def test_what_the_kubelet_lists_is_what_we_read(client: Kubelet) -> None:
    assert client.list() == PODS
    assert client.list() is client.list(), "an answer that is the same is not read again"


def test_allocatable_devices_and_one_pod(client: Kubelet, fake: FakeKubelet) -> None:
    fake.allocatable = [("nvidia.com/gpu", f"{GPU}::{replica}") for replica in range(3)]
    assert client.allocatable() == tuple(fake.allocatable)
    assert client.get("inference", "slice") == PODS[1]
    assert client.get("inference", "x" * 200) is None
    with pytest.raises(ValueError, match="not a valid pod name"):
        client.get("inference", "x" * 254)


def test_the_list_grows_to_megabytes_and_is_read_and_no_further(client: Kubelet, fake: FakeKubelet) -> None:
    long = "x" * 10_000
    fake.pods = [Pod("n", f"p{number}", (Container(long, (("nvidia.com/gpu", GPU),)),)) for number in range(1000)]
    assert client.list() == tuple(fake.pods)
    fake.pods *= 2
    assert len(encode_list(fake.pods)) > MAX_ANSWER_BYTES
    with pytest.raises(SourceError, match="over 16777216 bytes"):
        client.list()
    fake.pods = []
    assert client.list() == ()


def test_a_kubelet_that_hangs_costs_the_deadline(fake: FakeKubelet) -> None:
    client = Kubelet(fake.path, 0.2)
    fake.hanging.set()
    # Who notices first, it or we, differs from run to run.
    with pytest.raises(SourceError, match=r"no response within 0.2 s|deadline exceeded"):
        client.list()
    fake.hanging.clear()
    assert Kubelet(fake.path, 10.0).list() == PODS


def test_a_kubelet_that_restarts_is_asked_again(client: Kubelet, fake: FakeKubelet) -> None:
    assert client.list() == PODS
    fake.stop()
    with pytest.raises(SourceError, match=r"kubelet.sock: List: "):
        client.list()
    fake.start()
    assert client.list() == PODS


def test_no_socket_and_one_that_nobody_listens_on(tmp_path: Path) -> None:
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
def test_a_refusal_says_why(client: Kubelet, fake: FakeKubelet, code: grpc.StatusCode, text: str) -> None:
    fake.failure = (code, "we said: 50 % no")
    with pytest.raises(SourceError, match=f"{text}.*we said: 50 % no"):
        client.list()


def test_a_method_that_the_kubelet_does_not_have_is_unsupported(client: Kubelet, fake: FakeKubelet) -> None:
    fake.failure = (grpc.StatusCode.UNIMPLEMENTED, "PodResources API Get method disabled")
    with pytest.raises(UnsupportedError, match="disabled"):
        client.get("a", "b")
    fake.failure = None
    with pytest.raises(UnsupportedError, match="unimplemented"):
        client._call("ListEverything")


def test_rubbish_is_refused_and_the_next_answer_read(client: Kubelet, fake: FakeKubelet) -> None:
    for rubbish in (b"\xff" * 50, b"\x0a\xff", b"\x0b\x0c", b"\x08"):
        fake.rubbish = rubbish
        with pytest.raises(SourceError, match="protocol buffer"):
            client.list()
    fake.rubbish = None
    assert client.list() == PODS


def test_what_speaks_no_http2_is_an_error_and_no_more(tmp_path: Path) -> None:
    path = f"{tmp_path}/odd.sock"
    random.seed(3)
    answers = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), *(random.randbytes(200) for _ in range(20))]
    # A settings frame, and then anything.
    answers += [b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + random.randbytes(60) for _ in range(20)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            for answer in answers:
                # What can't be read any further is left unread: then the other end is closed before this one.
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
def test_what_google_writes_we_read(written: tuple[Pod, ...]) -> None:
    assert parse_list(encode_list(written)) == written


@given(st.binary(max_size=300))
@example(b"\x0a" * 300)
@example(b"\x80" * 300)
def test_no_octets_crash_or_hang_the_reading(data: bytes) -> None:
    for parse in (parse_list, parse_allocatable):
        try:
            parse(data)
        except SourceError:
            pass


@given(pods, st.data())
def test_a_damaged_answer_is_refused_or_read_as_far_as_it_says(written: tuple[Pod, ...], data: st.DataObject) -> None:
    """Cut short inside a field it is refused; with a changed octet it is some answer, and never an accident."""
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
def test_what_does_not_add_up_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        parse_list(data)


def test_fields_of_later_kubelets_are_skipped() -> None:
    known = encode_list(PODS[:1])
    later = b"\x98\x06\x07" + known + b"\xa2\x06\x03new" + b"\x1d\x00\x00\x00\x00" + b"\x19" + bytes(8)
    assert parse_list(later) == PODS[:1]


def test_more_devices_than_any_node_has_are_refused() -> None:
    with pytest.raises(SourceError, match="devices"):
        parse_list(b"\x0a\x00" * (MAX_DEVICES + 1))
