"""Effects of each fault on a job's devices and their counters.

An effect takes the conditions of some steps, the intensity of the fault in each step, and its magnitude. It changes the
conditions and adds signals: counter values that do not follow from step times.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.sim.world import rank_work
from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.clos_fabric import marks_a_second, pauses_a_second
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.physics import hardware
from scheduler_feedback.sim.world.scene import Effect, Scene


def _divided(intensity: FloatArray, magnitude: float) -> FloatArray:
    """Return the share of the speed that remains: 1 / (1 + magnitude x intensity)."""
    return 1.0 / (1.0 + magnitude * intensity)


def thermal(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a failing cooler by lowering the clock to its final value.

    While a job runs, the class ``Governor`` computes the clock from the temperature instead.
    """
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))


def power_brake(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a power brake by the server's power supply: the clock falls at once, at any temperature."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))
    scene.add_signal("power_throttle", scene.ranks, np.where(intensity > 0, 0.97, np.nan), adds=False)


def rack_power_cap(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a power limit of a rack: a controller lowers the power limits of all of its GPUs together, when the rack's
    power feed is overloaded (Wu et al., "Dynamo: Facebook's data center-wide power management system", ISCA 2016)."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))
    scene.add_signal("power_throttle", scene.ranks, np.where(intensity > 0, 0.9, np.nan), adds=False)


def clock_lock(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a clock that is locked at a low value: the GPU is slow, but no counter reports throttling."""
    scene.lower("clock", scene.ranks, _divided(intensity, magnitude))


def memory_errors(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply memory errors: corrections, retries and remapping reduce the bandwidth and sometimes delay the rank."""
    scene.change("memory", scene.ranks, _divided(intensity, 3.0 * magnitude))
    bursts = 0.5 * magnitude * scene.usual * intensity * scene.random.exponential(1.0, len(intensity))
    scene.delay(scene.ranks, bursts)
    scene.add_signal(
        "memory_errors", scene.ranks, intensity * (0.2 + 20.0 * scene.random.exponential(1.0, len(intensity)))
    )


def nvlink(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply an NVLink fault: lanes retrain and replay, so the whole tensor group is as slow as the faulty link."""
    scene.change("nvlink", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * (2.0 + 30.0 * scene.random.exponential(1.0, len(intensity)))
    scene.add_signal("nvlink_errors", scene.ranks, rate)


def pcie(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a PCIe link at reduced width: the NIC's buffer fills, and the NIC pauses its leaf switch."""
    left = _divided(intensity, magnitude)
    scene.change("nic", scene.ranks, left)
    full = hardware.PCIE_BYTES_PER_SECOND[(5, 16)] / hardware.NIC_BYTES_PER_SECOND
    lanes = np.clip(2.0 ** np.round(np.log2(np.maximum(left / full, 1e-3))), 1 / 64, 0.5)
    scene.add_signal("pcie_link", scene.ranks, np.where(intensity > 0, lanes, np.nan), adds=False)
    scene.add_signal("pcie_errors", scene.ranks, intensity * scene.random.exponential(0.5, len(intensity)))
    scene.add_signal("nic_pause_sent", scene.ranks, _duty(scene) * np.asarray(pauses_a_second(left)) * intensity)
    scene.add_signal("nic_pause_received", scene.leaf_mates, 0.02 * np.asarray(pauses_a_second(left)) * intensity)


def nic_flap(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a NIC port that repeatedly goes down and up: lost packets are sent again."""
    scene.change("nic", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * scene.random.exponential(1.0, len(intensity))
    scene.add_signal("nic_physical_errors", scene.ranks, 5.0 * rate)
    scene.add_signal("nic_sequence_errors", scene.ranks, 20.0 * rate)


def nic_errors(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a dirty connector or a bad cable: symbols are lost and packets are sent again."""
    scene.change("nic", scene.ranks, _divided(intensity, magnitude))
    rate = intensity * (0.5 + scene.random.exponential(1.0, len(intensity)))
    scene.add_signal("nic_physical_errors", scene.ranks, 200.0 * rate)
    scene.add_signal("nic_sequence_errors", scene.ranks, 40.0 * rate)


def pfc_storm(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a NIC that constantly pauses its leaf switch. The switch's buffers fill, and it pauses all of its ports."""
    left = _divided(intensity, magnitude)
    touched = np.concatenate([scene.ranks, scene.leaf_mates])
    scene.change("nic", touched, left)
    scene.add_signal("nic_pause_sent", scene.ranks, intensity * (5e3 + np.asarray(pauses_a_second(left))))
    scene.add_signal("nic_pause_received", scene.leaf_mates, 0.5 * np.asarray(pauses_a_second(left)) * intensity)


def cpu_contention(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply processor contention by a program outside all jobs: kernel launches and input threads wait."""
    _crowded(scene, intensity, magnitude)


def host_interference(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply processor contention by another job on the same node."""
    _crowded(scene, intensity, magnitude)


def _crowded(scene: Scene, intensity: FloatArray, magnitude: float) -> None:
    crowd = magnitude * intensity
    scene.change("host", scene.ranks, 1.0 + 2.0 * crowd)
    queued = 0.6 * scene.usual * crowd[:, None] * scene.random.gamma(16.0, 1 / 16.0, (len(crowd), len(scene.ranks)))
    scene.delay(scene.ranks, queued)
    share = 0.6 * crowd / (1.0 + 0.6 * crowd)
    scene.add_signal("runqueue_wait", scene.ranks, 0.1 * (crowd > 0) + 2.0 * share)
    scene.add_signal("cpu_waiting", np.concatenate([scene.ranks, scene.node_mates]), _cpu_pressure(crowd))


def _cpu_pressure(crowd: FloatArray) -> FloatArray:
    """Return the share of time in which at least one task of the host waits for a processor."""
    return np.where(crowd > 0, np.minimum(0.9, 0.15 + 0.72 * crowd / (1.0 + 0.6 * crowd)), 0.0)


def crowding(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply host interference to the job that causes it: the job's ranks use more CPU and wait for processors."""
    scene.add_signal("processor", scene.ranks, 12.0 * (intensity > 0) * min(1.0, 0.3 + magnitude))
    scene.add_signal("runqueue_wait", scene.ranks, 0.5 * intensity * min(1.0, magnitude))
    scene.add_signal("cpu_waiting", scene.ranks, _cpu_pressure(magnitude * intensity))


def storage(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a slow file system on a node: the node's ranks wait for input at the start of each step."""
    size = (len(intensity), len(scene.ranks))
    waited = scene.usual * magnitude * intensity[:, None] * scene.random.gamma(4.0, 0.25, size)
    scene.delay(scene.ranks, waited)
    share = waited.mean(axis=1) / scene.usual
    everyone = np.concatenate([scene.ranks, scene.node_mates])
    scene.add_signal("io_waiting", everyone, np.minimum(0.95, 0.05 * (intensity > 0) + share / (1.0 + share)))


def uplink_congestion(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply traffic of another job on the same uplinks, while both jobs send."""
    _crossed(scene, intensity, magnitude)


def nic_interference(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply traffic of another job through the same NIC."""
    _crossed(scene, intensity, magnitude)


def _crossed(scene: Scene, intensity: FloatArray, magnitude: float) -> None:
    left = 1.0 / (1.0 + magnitude * intensity * scene.overlap)
    scene.change("nic", scene.ranks, left)
    scene.add_signal("nic_congestion", scene.ranks, _duty(scene) * np.asarray(marks_a_second(left)))
    scene.add_signal("nic_pause_received", scene.ranks, 0.002 * _duty(scene) * np.asarray(pauses_a_second(left)))


def crossing(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply network interference to the job that causes it (the aggressor): its own traffic becomes slower too, but
    less.

    The traffic that disturbs the victim is not the aggressor's gradient exchange, but for example a shuffle or an
    upload.
    """
    left = 1.0 / (1.0 + 0.3 * magnitude * intensity * _duty(scene))
    scene.change("nic", scene.ranks, left)
    pressure = magnitude * intensity / (1.0 + magnitude * intensity)
    scene.add_signal(
        "nic_congestion", scene.ranks, 0.5 * np.asarray(marks_a_second(1.0 / (1.0 + magnitude * intensity)))
    )
    for feature in ("nic_transmit_bytes", "nic_receive_bytes"):
        scene.add_signal(feature, scene.ranks, 0.7 * pressure * hardware.NIC_BYTES_PER_SECOND)


def _duty(scene: Scene) -> float:
    """Return the share of the step in which a NIC of this job sends."""
    gathered = 3.0 * scene.plan.layers * scene.plan.gathered_bytes * scene.plan.microbatches
    moved = (2.0 * scene.plan.data_bytes + gathered) / (hardware.NIC_BYTES_PER_SECOND * max(scene.usual, 1e-3))
    return float(np.clip(moved, 0.02, 1.0))


def garbage_collection(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply unplanned garbage collection: in every step, a different rank of the job pauses."""
    size = len(intensity), scene.plan.gpus
    chosen = scene.random.random(size) < min(0.5, 1.5 / scene.plan.gpus)
    rows = np.flatnonzero(~chosen.any(axis=1))
    chosen[rows, scene.random.integers(0, scene.plan.gpus, len(rows))] = True
    length = scene.usual * magnitude * intensity[:, None]
    scene.delay(np.arange(scene.plan.gpus), chosen * length * scene.random.uniform(0.7, 1.3, size))


def data_loader(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply slow input of the whole job: every rank that reads input waits for its batch."""
    readers = np.arange(scene.plan.data * scene.plan.tensor)
    size = len(intensity), len(readers)
    scene.delay(readers, scene.usual * magnitude * intensity[:, None] * scene.random.uniform(0.85, 1.0, size))


def sequence_imbalance(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply documents of very different lengths: in every step, different replicas process the long documents."""
    weight = (
        np.repeat(scene.conditions.weight, len(intensity), axis=0)
        if len(scene.conditions.weight) == 1
        else (scene.conditions.weight.copy())
    )
    sigma = np.clip(magnitude * intensity, 0.0, 3.0)[:, None, None]
    longer = np.exp(sigma * scene.random.standard_normal(weight.shape) - sigma**2 / 2)
    scene.conditions.weight = weight * np.minimum(longer, 12.0)


def stage_imbalance(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply more work in the last stage, for example after adding a head or moving layers."""
    scene.change("noise", scene.ranks, 1.0 + magnitude * intensity)


def job_change(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply more work on all ranks: a longer context, another loss, a debug switch."""
    scene.change("noise", np.arange(scene.plan.gpus), 1.0 + magnitude * intensity)


def checkpoint(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a checkpoint after every third step."""
    saves = (scene.first + np.arange(len(intensity))) % 3 == 2
    scene.conditions.pause = scene.conditions.pause + saves * 3.0 * scene.usual * magnitude * intensity


def evaluation(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply an evaluation after each step, which the reporter counts as part of the step."""
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
    "rack-power-cap": rack_power_cap,
    **rank_work.EFFECTS,
}
"""Functions that apply the effects, by class of the fault. 'crowding' and 'crossing' are effects on aggressors.
course.py handles hangs, and the outputs handle lost telemetry."""
