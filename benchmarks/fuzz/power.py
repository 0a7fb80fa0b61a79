"""Fuzz targets of power limits: curves of simulations, and the orders and files of agents."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping

from agent.power_leases import Allowed, PowerLeases
from agent.schema.clock import ManualClock
from benchmarks.fuzz.files import written
from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.openb import _parser, _table
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from exporter.server import FrameStream
from scheduler_feedback.sim.speeds import gpu_power

CURVES = """workload,limit_watts,speed,watts
bert,100,0.57,100.5
bert,250,1.0,220
"gpt, small",150,8e-1,144.6
,100,1,1
"""
ORDERS = (
    b"power-limits GPU-1=300 GPU-2=700\n",
    b"power-limits\n",
    b"every 2\n",
    b"every 8 samples 4\n",
    b"every 8 samples 9\n",
    b"power-limits MIG-a=1\nevery 99\n",
    b"every 999\n",
    b"time-shifts j-1=1000000000/5 a%2Fb=20/0\n",
    b"time-shifts\n",
)
LEASES = tuple(
    {"boot_id": "b", "restore": {"GPU-1": own}, "leases": {"GPU-1": [300.0, 5]}} for own in (700000, 300000, 0)
)


def _make_curves(chance: random.Random) -> bytes:
    return _table(chance, CURVES)


def _make_orders(chance: random.Random) -> bytes:
    data = b"".join(chance.choice(ORDERS) for _ in range(chance.randint(1, 3)))
    return data if chance.random() < 0.2 else octets(chance, data)


def _parse_orders(data: bytes) -> str:
    def limit(limits: Mapping[str, float]) -> bool:
        assert all(0 <= watts < 1e5 for watts in limits.values())
        assert len(limits) <= 64
        return len(limits) < 2

    def shift(shifts: Mapping[str, tuple[int, int]]) -> bool:
        assert all(period > 0 <= offset for period, offset in shifts.values())
        assert len(shifts) <= 64
        return len(shifts) < 2

    stream = FrameStream((), lambda _: None, limit=limit, with_samples=len(data) % 2 == 0, shift=shift)
    middle = len(data) // 2
    if not stream.take_request(data[:middle]):
        return REFUSED_FIRST
    return ACCEPTED if stream.take_request(data[middle:]) else REFUSED


def _make_leases(chance: random.Random) -> bytes:
    data = json.dumps(chance.choice(LEASES)).encode()
    return data if chance.random() < 0.1 else octets(chance, data)


def _parse_leases(data: bytes) -> str:
    logging.getLogger("agent.power_leases").disabled = True
    file = written(data, ".leases.json")
    leases = PowerLeases(Allowed(200.0, 700.0), file, "b", ManualClock())
    restore = leases.to_restore("GPU-1")
    assert restore is None or restore > 0
    return ACCEPTED if restore is not None else REFUSED


_CURVES = "scheduler_feedback.sim.speeds.gpu_power"

TARGETS = (
    Target(
        "power-curves", _make_curves, _parser(gpu_power.read_curves, b"workload,limit"), (f"{_CURVES}:read_curves",)
    ),
    Target("power-orders", _make_orders, _parse_orders, ("exporter.server:FrameStream.take_request",)),
    Target("power-leases", _make_leases, _parse_leases, ("agent.power_leases:PowerLeases._read",)),
)
