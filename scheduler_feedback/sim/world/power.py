"""What clock a GPU is left with: the power cap, heat, the brake of the server's supply, and a clock that was locked.

Dynamic power goes with clock times voltage squared, and voltage rises with the clock: with the cube of the clock over
the range in which the governor works (Mei et al., "A measurement study of GPU DVFS", 2013, find exponents of 2.4-3).
The die follows power with a first-order lag through the thermal resistance of its cooler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray
from scheduler_feedback.sim.world.hardware import GpuModel

EXPONENT = 3.0
"""Of dynamic power in the clock."""

LAG_SECONDS = 12.0
"""Time constant of die and cold plate of a 700 W board."""

FULL_WATTS = 680.0
"""Drawn by the mean chip that runs matrix products alone at the boost clock; chips spread around it (SPREAD_WATTS)."""

SPREAD_WATTS = 12.0
INLET_CELSIUS = 30.0
RESISTANCE = 0.052
"""Kelvin a watt from inlet to die, air-cooled SXM board: about 65 degrees at 680 W."""


@dataclass(slots=True)
class Governor:
    """Clocks of n GPUs. full_watts, resistance, inlet, celsius: float64 [n]."""

    model: GpuModel
    full_watts: FloatArray
    resistance: FloatArray
    inlet: FloatArray
    celsius: FloatArray

    @classmethod
    def of(cls, model: GpuModel, count: int, random: np.random.Generator) -> Governor:
        """GPUs as they come: silicon, coolers and places in the rack differ."""
        full = FULL_WATTS + SPREAD_WATTS * np.clip(random.standard_normal(count), -3.0, 3.0)
        resistance = RESISTANCE * np.exp(0.05 * np.clip(random.standard_normal(count), -3.0, 3.0))
        inlet = INLET_CELSIUS + random.uniform(-3.0, 3.0, count)
        return cls(model, full, resistance, inlet, inlet + resistance * 0.85 * full)

    def free_clock(self) -> FloatArray:
        """The clock that the power cap leaves in busy stretches, share of boost [n]."""
        at_boost = np.maximum(self.full_watts - self.model.idle_watts, 1.0)
        found: FloatArray = np.minimum(
            1.0, ((self.model.limit_watts - self.model.idle_watts) / at_boost) ** (1.0 / EXPONENT)
        )
        return found

    def hindrance_for(self, clock: float, ranks: IndexArray, compute: FloatArray, spin: FloatArray) -> FloatArray:
        """By how much the cooler of these GPUs must be worse for them to settle at this clock: [n], 1 elsewhere."""
        model, found = self.model, np.ones(len(self.resistance))
        dynamic = (self.full_watts - model.idle_watts)[ranks] * np.maximum(compute[ranks], 0.05) * clock**EXPONENT
        drawn = dynamic + model.idle_watts + model.spin_watts * spin[ranks]
        found[ranks] = (model.limit_celsius - self.inlet[ranks]) / drawn / self.resistance[ranks]
        return np.maximum(found, 1.0)

    def watts(self, clock: FloatArray, compute: FloatArray, spin: FloatArray) -> FloatArray:
        """Mean power [...n] at a clock (share of boost), with these shares of time computing and polling."""
        model = self.model
        dynamic = (self.full_watts - model.idle_watts) * clock**EXPONENT * compute
        return model.idle_watts + dynamic + model.spin_watts * spin * clock

    def clocks(
        self,
        seconds: float,
        compute: FloatArray,
        spin: FloatArray,
        cap: FloatArray | float = 1.0,
        hindrance: FloatArray | float = 1.0,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Let `seconds` pass: (clock, thermal, power), each [n].

        compute, spin: shares of time. cap: highest clock left by a lock or brake, share of boost. hindrance: factor on
        the thermal resistance. clock: share of boost; thermal, power: the share by which each governor holds it down.
        """
        model = self.model
        at_boost = np.maximum(self.full_watts - model.idle_watts, 1.0)
        # The cap is on what is drawn while kernels run, not on the mean over waiting: it binds in the busy stretches.
        by_power = self.free_clock()
        resistance = self.resistance * hindrance
        allowed = (model.limit_celsius - self.inlet) / resistance - model.idle_watts - model.spin_watts * spin
        at_limit = np.clip(allowed / (at_boost * np.maximum(compute, 0.05)), 0.02, 8.0) ** (1.0 / EXPONENT)
        free = np.minimum(by_power, cap)
        hot = self.inlet + resistance * self.watts(free, compute, spin)
        keep = np.exp(-seconds / LAG_SECONDS)
        self.celsius = np.minimum(hot + (self.celsius - hot) * keep, model.limit_celsius)
        # The governor sets in over the last two degrees, so that the clock settles instead of swinging.
        share = np.clip((self.celsius - (model.limit_celsius - 2.0)) / 2.0, 0.0, 1.0)
        by_heat = np.where(hot > model.limit_celsius - 2.0, 1.0 + share * (np.minimum(at_limit, 1.0) - 1.0), 1.0)
        clock = np.maximum(np.minimum(free, by_heat), model.least_hertz / model.boost_hertz)
        return clock, np.maximum(0.0, 1.0 - by_heat), np.maximum(0.0, 1.0 - by_power)
