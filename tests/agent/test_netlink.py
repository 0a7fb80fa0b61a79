"""RDMA netlink: messages byte by byte, and exchanges over a pair of raw sockets."""

from __future__ import annotations

import errno
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.rdma import ethtool, netlink
from agent.sources.rdma.netlink import RdmaNetlink, Shape, messages, parse_device, parse_statistics, request
from tests import needs
from tests.fakes.netlink import FakeRdma, device, message, statistics
from tests.fakes.sysfs.names import HARDWARE

COUNTERS = [(name, 1000 + number) for number, name in enumerate(HARDWARE["mlx5_core"])]


def answer(counters: list[tuple[str, int]], sequence: int = 1, *, padded: bool = False) -> bytes:
    return message(netlink.STATISTICS_GET, 0, sequence, statistics(counters, padded=padded))


def test_requests_are_encoded() -> None:
    assert request(netlink.STATISTICS_GET, 0, 7, (netlink.DEVICE_INDEX, 3), (netlink.PORT_INDEX, 1)) == struct.pack(
        "=IHHII HHI HHI", 32, 5137, 1, 7, 0, 8, 1, 3, 8, 3, 1
    )
    assert request(netlink.DEVICE_GET, netlink.DUMP, 8) == struct.pack("=IHHII", 16, 5121, 0x301, 8, 0)


@pytest.mark.parametrize("padded", [False, True])
def test_statistics_are_decoded(padded: bool) -> None:
    data = answer(COUNTERS, padded=padded)
    (only,) = messages(data, len(data))
    found = parse_statistics(data, only)
    assert [name for name, _ in found] == [name for name, _ in COUNTERS]
    assert [struct.unpack_from("=Q", data, at)[0] for _, at in found] == [value for _, value in COUNTERS]


def test_a_shape_reads_all_values_at_once() -> None:
    first = answer(COUNTERS)
    shape = Shape(first, len(first))
    assert shape.names == tuple(name for name, _ in COUNTERS)
    again = answer([(name, 2**64 - 1 - value) for name, value in COUNTERS], sequence=99)
    assert shape.values(again, len(again)) == tuple(2**64 - 1 - value for _, value in COUNTERS)


def test_a_shape_rejects_a_message_that_does_not_fit() -> None:
    first = answer(COUNTERS)
    shape = Shape(first, len(first))
    renamed = answer([(name[::-1], value) for name, value in COUNTERS])
    assert len(renamed) == len(first) and shape.values(renamed, len(renamed)) is None
    swapped = answer([*COUNTERS[1:], COUNTERS[0]])
    assert shape.values(swapped, len(swapped)) is None
    shorter = answer(COUNTERS[1:])
    assert shape.values(shorter, len(shorter)) is None
    with pytest.raises(SourceError, match="without counters"):
        Shape(answer([]), len(answer([])))


def test_a_device_is_decoded() -> None:
    data = message(netlink.DEVICE_GET, netlink.MULTI, 1, device("mlx5_0", 4))
    (only,) = messages(data, len(data))
    assert parse_device(data, only) == ("mlx5_0", 4, 1, "")
    nameless = message(netlink.DEVICE_GET, 0, 1, b"")
    (only,) = messages(nameless, len(nameless))
    assert parse_device(nameless, only) is None


@pytest.mark.parametrize("size", [0, 15, 17, 2**31])
def test_an_impossible_length_is_rejected(size: int) -> None:
    with pytest.raises(SourceError, match="bytes"):
        list(messages(struct.pack("=IHHII", size, 5137, 0, 1, 0), 16))


CONSTANTS = {
    "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)": netlink.DEVICE_GET,
    "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_STAT_GET)": netlink.STATISTICS_GET,
    "RDMA_NLDEV_ATTR_DEV_INDEX": netlink.DEVICE_INDEX,
    "RDMA_NLDEV_ATTR_DEV_NAME": netlink.DEVICE_NAME,
    "RDMA_NLDEV_ATTR_PORT_INDEX": netlink.PORT_INDEX,
    "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS": netlink.COUNTERS,
    "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY": netlink.COUNTER,
    "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME": netlink.COUNTER_NAME,
    "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE": netlink.COUNTER_VALUE,
    "NETLINK_RDMA": netlink.NETLINK_RDMA,
    "NLM_F_REQUEST": netlink.REQUEST,
    "NLM_F_DUMP": netlink.DUMP,
    "NLM_F_MULTI": netlink.MULTI,
    "NLMSG_ERROR": netlink.ERROR,
    "NLMSG_DONE": netlink.DONE,
    "sizeof(struct nlmsghdr)": netlink.HEADER.size,
    "SIOCETHTOOL": ethtool.SIOCETHTOOL,
    "ETHTOOL_GSSET_INFO": ethtool.GET_SET_INFO,
    "ETHTOOL_GSTRINGS": ethtool.GET_STRINGS,
    "ETHTOOL_GSTATS": ethtool.GET_STATISTICS,
    "ETH_SS_STATS": ethtool.STATISTICS_SET,
    "ETH_GSTRING_LEN": ethtool.NAME_BYTES,
    "offsetof(struct ethtool_sset_info, data)": 16,
    "offsetof(struct ethtool_gstrings, data)": 12,
    "offsetof(struct ethtool_stats, data)": 8,
    "offsetof(struct ifreq, ifr_data)": 16,
    "sizeof(struct ifreq)": 40,
}


def test_constants_equal_the_kernel_headers(tmp_path: Path) -> None:
    """Compare also ethtool's constants, and the sizes of structures on a 64-bit machine."""
    compiler = needs.component("gcc", "gcc")
    headers = ("stddef.h", "stdio.h", "linux/ethtool.h", "linux/if.h", "linux/netlink.h", "linux/sockios.h",
               "rdma/rdma_netlink.h")  # fmt: skip
    source = "".join(f"#include <{header}>\n" for header in headers)
    source += "int main(void) {" + "".join(f'printf("%ld\\n", (long)({name}));' for name in CONSTANTS) + "}\n"
    (tmp_path / "constants.c").write_text(source)
    subprocess.run([compiler, str(tmp_path / "constants.c"), "-o", str(tmp_path / "constants")], check=True)
    printed = subprocess.run([str(tmp_path / "constants")], capture_output=True, text=True, check=True).stdout
    assert dict(zip(CONSTANTS, map(int, printed.split()), strict=True)) == CONSTANTS


# --- the exchange ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake() -> FakeRdma:
    return FakeRdma({"mlx5_0": COUNTERS, "mlx5_1": [("np_cnp_sent", 2**40)]})


@pytest.fixture
def socket(fake: FakeRdma) -> Iterator[RdmaNetlink]:
    opened = RdmaNetlink(fake.connect)
    yield opened
    opened.close()


def test_a_request_gets_its_response(socket: RdmaNetlink, fake: FakeRdma) -> None:
    devices = socket.devices()
    assert devices == {"mlx5_0": 0, "mlx5_1": 1}
    length = socket.statistics(devices["mlx5_1"], 1)
    shape = Shape(socket.buffer, length)
    assert shape.names == ("np_cnp_sent",) and shape.values(socket.buffer, length) == (2**40,)
    assert fake.asked == 2


def test_late_responses_to_earlier_requests_are_skipped(socket: RdmaNetlink, fake: FakeRdma) -> None:
    fake.stale = 3
    length = socket.statistics(0, 1)
    assert len(Shape(socket.buffer, length).names) == len(COUNTERS)
    fake.stale = 100
    with pytest.raises(SourceError, match="other requests"):
        socket.statistics(0, 1)


@pytest.mark.parametrize(
    ("number", "unsupported"), [(errno.EINVAL, True), (errno.EOPNOTSUPP, True), (errno.EPERM, True), (errno.EIO, False)]
)
def test_error_numbers_become_exceptions(socket: RdmaNetlink, fake: FakeRdma, number: int, unsupported: bool) -> None:
    fake.refuses = number
    for ask in (socket.devices, lambda: socket.statistics(0, 1)):
        with pytest.raises(SourceError) as raised:
            ask()
        assert isinstance(raised.value, UnsupportedError) is unsupported


def test_a_missing_response_ends_in_a_timeout(
    socket: RdmaNetlink, fake: FakeRdma, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "TIMEOUT_SECONDS", 0.05)
    fake.silent = True
    with pytest.raises(SourceError, match="timed out"):
        socket.statistics(0, 1)
    fake.silent = False
    assert socket.statistics(0, 1) > 0, "the client opens a new socket"


def test_this_kernel_responds() -> None:
    """With RDMA in the kernel, expect the devices of sysfs; without it, an error, which the client caches."""
    opened = RdmaNetlink()
    try:
        assert isinstance(opened.devices(), dict)
    except UnsupportedError as error:
        assert "RDMA netlink" in str(error)
    finally:
        opened.close()
