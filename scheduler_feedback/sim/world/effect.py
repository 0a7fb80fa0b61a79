"""What each fault does to the devices of a job, and which of their counters tell of it.

An effect takes the conditions of some steps, how much of the fault is there in each, and its magnitude; it changes the
conditions and adds signals: what counters show that no step time explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.sim.world import hardware
from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray
from scheduler_feedback.sim.world.condition import Conditions
from scheduler_feedback.sim.world.fabric import marks_a_second, pauses_a_second
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.plan import Plan


@dataclass(frozen=True, slots=True)
class Signal:
    """A counter's own word: feature, the ranks whose counter it is, and its value in each step, [steps].

    adds: whether it comes on top of what there is, or stands in its place; NaN leaves a step as it is.
    """

    feature: str
    ranks: IndexArray
    values: FloatArray
    adds: bool = True


@dataclass(slots=True)
class Scene:
    """Where effects happen: the job's plan, its conditions now, and what is known besides.

    ranks: of the fault. node_mates: other ranks of this job on its nodes. leaf_mates: other ranks on its leaves.
    usual: seconds of a step in health. random: the fault's own generator. overlap: [steps], share of each step's
    collective in which the aggressor sends, too (1 where magnitudes are solved for). first: number of the first step.
    signals: filled in.
    """

    plan: Plan
    conditions: Conditions
    ranks: IndexArray
    node_mates: IndexArray
    leaf_mates: IndexArray
    usual: float
    random: np.random.Generator
    overlap: FloatArray
    first: int = 0
    signals: list[Signal] = field(default_factory=list)

    def change(self, name: str, ranks: IndexArray, factor: FloatArray) -> None:
        """Multiply a condition of some ranks by a factor in each step, [steps]."""
        values = self._widened(name, len(factor))
        values.reshape(len(factor), -1)[:, ranks] *= factor[:, None].astype(values.dtype)

    def lower(self, name: str, ranks: IndexArray, bound: FloatArray) -> None:
        """Hold a condition of some ranks under a bound in each step, [steps]."""
        values = self._widened(name, len(bound)).reshape(len(bound), -1)
        values[:, ranks] = np.minimum(values[:, ranks], bound[:, None])

    def keep(self, ranks: IndexArray, seconds: FloatArray) -> None:
        """Keep the processes of some ranks at the beginning of each step: seconds [steps] or [steps, ranks]."""
        values = self._widened("stall", len(seconds))
        flat = values.reshape(len(seconds), -1)
        flat[:, ranks] += seconds if seconds.ndim == 2 else seconds[:, None]

    def tell(self, feature: str, ranks: IndexArray, values: FloatArray, adds: bool = True) -> None:
        """Add a signal."""
        self.signals.append(Signal(feature, ranks, values, adds))

    def _widened(self, name: str, steps: int) -> FloatArray:
        values: FloatArray = getattr(self.conditions, name)
        if len(values) != steps or not values.flags.writeable:
            values = np.repeat(values, steps, axis=0) if len(values) == 1 else values.copy()
        else:
            values = values.copy()
        setattr(self.conditions, name, values)
        return values


Effect = Callable[[Scene, Fault, FloatArray, float], None]
"""(scene, fault, intensity [steps], magnitude)."""


def _divided(intensity: FloatArray, magnitude: float) -> FloatArray:
    """Share that is left when the time for a unit of work grows by magnitude x intensity."""
    return 1.0 / (1.0 + magnitude * intensity)


def thermal(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """A cooler that fails; the course asks the governor for the clock, this is what it settles at."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))


def power_brake(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The server's supply asserts the brake: the clock falls at once, whatever the heat."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))
    scene.tell("power_throttle", scene.ranks, np.where(intensity > 0, 0.97, np.nan), adds=False)


def clock_lock(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Somebody left the clock locked low: nothing throttles, it is just slow."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))


def memory_errors(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Rows that are corrected, retried and remapped: bandwidth is lost, and now and then everything waits."""
    scene.change("memory", scene.ranks, _divided(intensity, 3.0 * magnitude))
    bursts = 0.5 * magnitude * scene.usual * intensity * scene.random.exponential(1.0, len(intensity))
    scene.keep(scene.ranks, bursts)
    scene.tell("memory_errors", scene.ranks, intensity * (0.2 + 20.0 * scene.random.exponential(1.0, len(intensity))))


def nvlink(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Lanes that retrain and replay: the whole tensor group moves at the pace of the sick link."""
    scene.change("nvlink", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * (2.0 + 30.0 * scene.random.exponential(1.0, len(intensity)))
    scene.tell("nvlink_errors", scene.ranks, rate)


def pcie(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """A link trained down: the NIC can't hand on what it receives, fills up, and pauses the leaf that sends to it."""
    left = _divided(intensity, magnitude)
    scene.change("nic", scene.ranks, left)
    full = hardware.PCIE_BYTES_PER_SECOND[(5, 16)] / hardware.NIC_BYTES_PER_SECOND
    lanes = np.clip(2.0 ** np.round(np.log2(np.maximum(left / full, 1e-3))), 1 / 64, 0.5)
    scene.tell("pcie_link", scene.ranks, np.where(intensity > 0, lanes, np.nan), adds=False)
    scene.tell("pcie_errors", scene.ranks, intensity * scene.random.exponential(0.5, len(intensity)))
    scene.tell("nic_pause_sent", scene.ranks, _duty(scene) * np.asarray(pauses_a_second(left)) * intensity)
    scene.tell("nic_pause_received", scene.leaf_mates, 0.02 * np.asarray(pauses_a_second(left)) * intensity)


def nic_flap(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """A port that goes down and up again: what was under way is sent anew."""
    scene.change("nic", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * scene.random.exponential(1.0, len(intensity))
    scene.tell("nic_physical_errors", scene.ranks, 5.0 * rate)
    scene.tell("nic_sequence_errors", scene.ranks, 20.0 * rate)


def nic_errors(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """A dirty connector or a bad cable: symbols are lost and packets sent again."""
    scene.change("nic", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * (0.5 + scene.random.exponential(1.0, len(intensity)))
    scene.tell("nic_physical_errors", scene.ranks, 200.0 * rate)
    scene.tell("nic_sequence_errors", scene.ranks, 40.0 * rate)


def pfc_storm(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """A NIC that pauses its leaf without end; the leaf's buffers fill and it pauses all of its ports."""
    left = _divided(intensity, magnitude)
    touched = np.concatenate([scene.ranks, scene.leaf_mates])
    scene.change("nic", touched, left)
    scene.tell("nic_pause_sent", scene.ranks, intensity * (5e3 + np.asarray(pauses_a_second(left))))
    scene.tell("nic_pause_received", scene.leaf_mates, 0.5 * np.asarray(pauses_a_second(left)) * intensity)


def cpu_contention(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Something outside of all jobs eats the node's processors: launches queue, and so do the input threads."""
    _crowded(scene, intensity, magnitude)


def host_interference(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Another job on the same node eats its processors."""
    _crowded(scene, intensity, magnitude)


def _crowded(scene: Scene, intensity: FloatArray, magnitude: float) -> None:
    crowd = magnitude * intensity
    scene.change("host", scene.ranks, 1.0 + 2.0 * crowd)
    queued = 0.6 * scene.usual * crowd[:, None] * scene.random.gamma(16.0, 1 / 16.0, (len(crowd), len(scene.ranks)))
    scene.keep(scene.ranks, queued)
    share = 0.6 * crowd / (1.0 + 0.6 * crowd)
    scene.tell("runqueue_wait", scene.ranks, 0.1 * (crowd > 0) + 2.0 * share)
    scene.tell("cpu_waiting", np.concatenate([scene.ranks, scene.node_mates]), _cpu_pressure(crowd))


def _cpu_pressure(crowd: FloatArray) -> FloatArray:
    """Share of time in which some task of the host waits for a processor."""
    return np.where(crowd > 0, np.minimum(0.9, 0.15 + 0.72 * crowd / (1.0 + 0.6 * crowd)), 0.0)


def crowding(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The other side of host interference: what the aggressor's own ranks use and wait for."""
    scene.tell("processor", scene.ranks, 12.0 * (intensity > 0) * min(1.0, 0.3 + magnitude))
    scene.tell("runqueue_wait", scene.ranks, 0.5 * intensity * min(1.0, magnitude))
    scene.tell("cpu_waiting", scene.ranks, _cpu_pressure(magnitude * intensity))


def storage(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The node's mount answers slowly: its ranks wait for their input at the beginning of a step."""
    size = (len(intensity), len(scene.ranks))
    waited = scene.usual * magnitude * intensity[:, None] * scene.random.gamma(4.0, 0.25, size)
    scene.keep(scene.ranks, waited)
    share = waited.mean(axis=1) / scene.usual
    everyone = np.concatenate([scene.ranks, scene.node_mates])
    scene.tell("io_waiting", everyone, np.minimum(0.95, 0.05 * (intensity > 0) + share / (1.0 + share)))


def uplink_congestion(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Another job's flows on the same links into the spines, while both send."""
    _crossed(scene, intensity, magnitude)


def nic_interference(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Another job's flows through the same NIC."""
    _crossed(scene, intensity, magnitude)


def _crossed(scene: Scene, intensity: FloatArray, magnitude: float) -> None:
    left = 1.0 / (1.0 + magnitude * intensity * scene.overlap)
    scene.change("nic", scene.ranks, left)
    scene.tell("nic_congestion", scene.ranks, _duty(scene) * np.asarray(marks_a_second(left)))
    scene.tell("nic_pause_received", scene.ranks, 0.002 * _duty(scene) * np.asarray(pauses_a_second(left)))


def crossing(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The other side of traffic that crosses: the aggressor's own flows are marked and slowed, too, if less.

    What it sends besides its gradients (a shuffle, an upload, another phase) is what presses on the victim.
    """
    left = 1.0 / (1.0 + 0.3 * magnitude * intensity * _duty(scene))
    scene.change("nic", scene.ranks, left)
    pressure = magnitude * intensity / (1.0 + magnitude * intensity)
    scene.tell("nic_congestion", scene.ranks, 0.5 * np.asarray(marks_a_second(1.0 / (1.0 + magnitude * intensity))))
    for feature in ("nic_transmit_bytes", "nic_receive_bytes"):
        scene.tell(feature, scene.ranks, 0.7 * pressure * hardware.NIC_BYTES_PER_SECOND)


def _duty(scene: Scene) -> float:
    """Share of the step in which a NIC of this job sends."""
    moved = 2.0 * scene.plan.data_bytes / (hardware.NIC_BYTES_PER_SECOND * max(scene.usual, 1e-3))
    return float(np.clip(moved, 0.02, 1.0))


def garbage_collection(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Unplanned collections: in every step some other rank of the job stops."""
    size = len(intensity), scene.plan.gpus
    chosen = scene.random.random(size) < min(0.5, 1.5 / scene.plan.gpus)
    rows = np.flatnonzero(~chosen.any(axis=1))
    chosen[rows, scene.random.integers(0, scene.plan.gpus, len(rows))] = True
    length = scene.usual * magnitude * intensity[:, None]
    scene.keep(np.arange(scene.plan.gpus), chosen * length * scene.random.uniform(0.7, 1.3, size))


def data_loader(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The job's input comes too slowly for all: every rank that reads waits for its batch."""
    readers = np.arange(scene.plan.data * scene.plan.tensor)
    size = len(intensity), len(readers)
    scene.keep(readers, scene.usual * magnitude * intensity[:, None] * scene.random.uniform(0.85, 1.0, size))


def sequence_imbalance(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Documents of very different lengths come: in every step other replicas have the long ones."""
    weight = (
        np.repeat(scene.conditions.weight, len(intensity), axis=0)
        if len(scene.conditions.weight) == 1
        else (scene.conditions.weight.copy())
    )
    sigma = np.clip(magnitude * intensity, 0.0, 3.0)[:, None, None]
    longer = np.exp(sigma * scene.random.standard_normal(weight.shape) - sigma**2 / 2)
    scene.conditions.weight = weight * np.minimum(longer, 12.0)


def stage_imbalance(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The last stage has more to do from now on: a head was added, layers were moved."""
    scene.change("noise", scene.ranks, 1.0 + magnitude * intensity)


def job_change(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """All ranks have more to do: a longer context, another loss, a debug switch."""
    scene.change("noise", np.arange(scene.plan.gpus), 1.0 + magnitude * intensity)


def checkpoint(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """The job saves after every third step."""
    saves = (scene.first + np.arange(len(intensity))) % 3 == 2
    scene.conditions.pause = scene.conditions.pause + saves * 3.0 * scene.usual * magnitude * intensity


def evaluation(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Each step is followed by a stretch of forwards that the reporter counts to it."""
    scene.conditions.extent = scene.conditions.extent * (1.0 + magnitude * intensity)


EFFECTS: dict[str, Effect] = {
    "thermal": thermal,
    "power-brake": power_brake,
    "clock-lock": clock_lock,
    "memory-errors": memory_errors,
    "nvlink": nvlink,
    "pcie": pcie,
    "nic-flap": nic_flap,
    "nic-errors": nic_errors,
    "pfc-storm": pfc_storm,
    "cpu-contention": cpu_contention,
    "storage": storage,
    "uplink-congestion": uplink_congestion,
    "host-interference": host_interference,
    "nic-interference": nic_interference,
    "garbage-collection": garbage_collection,
    "data-loader": data_loader,
    "sequence-imbalance": sequence_imbalance,
    "stage-imbalance": stage_imbalance,
    "job-change": job_change,
    "checkpoint": checkpoint,
    "evaluation": evaluation,
    "crowding": crowding,
    "crossing": crossing,
}
"""By the disorder's name; the last two are what aggressors themselves see of it. Hangs are the course's own
matter, lost telemetry is the telemetry's."""
