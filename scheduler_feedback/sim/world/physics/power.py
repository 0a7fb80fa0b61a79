"""Clock of a GPU under the power cap, temperature, a power brake and a clock lock.

Dynamic power is proportional to clock times voltage squared, and the voltage rises with the clock. In the governor's
range, power is therefore proportional to the cube of the clock (Mei et al., "A measurement study of GPU DVFS", 2013,
find exponents of 2.4-3). The die temperature follows power with a first-order lag through the cooler's thermal
resistance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray, IndexArray
from scheduler_feedback.sim.world.physics.hardware import GpuModel

EXPONENT = 3.0
"""Exponent of the clock in dynamic power."""

LAG_SECONDS = 12.0
"""Time constant, in seconds, with which the temperature of a 700 W GPU follows its power."""

FULL_WATTS = 680.0
"""Mean power of a chip that only runs matrix products at the boost clock. Chips vary by SPREAD_WATTS."""

SPREAD_WATTS = 12.0
INLET_CELSIUS = 30.0
RESISTANCE = 0.052
"""Thermal resistance from inlet air to die, in kelvin per watt. The die reaches about 65 degrees at 680 W."""


@dataclass(slots=True)
class Governor:
    """Clocks and temperatures of some GPUs. Every array is float64 with one value per GPU: full power in watts, thermal
    resistance, inlet and die temperature."""

    model: GpuModel
    full_watts: FloatArray
    resistance: FloatArray
    inlet: FloatArray
    celsius: FloatArray

    @classmethod
    def of(cls, model: GpuModel, count: int, random: np.random.Generator) -> Governor:
        """Draw random GPUs that differ in silicon, cooler and place in the rack."""
        full = FULL_WATTS + SPREAD_WATTS * np.clip(random.standard_normal(count), -3.0, 3.0)
        resistance = RESISTANCE * np.exp(0.05 * np.clip(random.standard_normal(count), -3.0, 3.0))
        inlet = INLET_CELSIUS + random.uniform(-3.0, 3.0, count)
        return cls(model, full, resistance, inlet, inlet + resistance * 0.85 * full)

    def free_clock(self) -> FloatArray:
        """Return each GPU's clock under the power cap while kernels run, as a share of the boost clock: [gpus]."""
        at_boost = np.maximum(self.full_watts - self.model.idle_watts, 1.0)
        found: FloatArray = np.minimum(
            1.0, ((self.model.limit_watts - self.model.idle_watts) / at_boost) ** (1.0 / EXPONENT)
        )
        return found

    def hindrance_for(self, clock: float, ranks: IndexArray, compute: FloatArray, spin: FloatArray) -> FloatArray:
        """Return a factor on each GPU's thermal resistance: float64 [gpus].

        With this factor, the GPUs in `ranks` settle at the given clock. It is 1 for all other GPUs.
        """
        model, found = self.model, np.ones(len(self.resistance))
        dynamic = (self.full_watts - model.idle_watts)[ranks] * np.maximum(compute[ranks], 0.05) * clock**EXPONENT
        drawn = dynamic + model.idle_watts + model.spin_watts * spin[ranks]
        found[ranks] = (model.limit_celsius - self.inlet[ranks]) / drawn / self.resistance[ranks]
        return np.maximum(found, 1.0)

    def watts(self, clock: FloatArray, compute: FloatArray, spin: FloatArray) -> FloatArray:
        """Return each GPU's mean power in watts at the given clock: [..., gpus].

        clock: share of the boost clock. compute, spin: shares of time in which the GPU computes and polls.
        """
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
        """Advance the GPUs' temperatures by `seconds`, and return (clock, thermal, power): float64 [gpus] each.

        compute, spin: shares of time in which the GPU computes and polls. cap: highest clock under a lock or brake, as
        a share of boost. hindrance: factor on the thermal resistance. clock: share of boost. thermal, power: reduction
        of the clock by temperature and by the power cap.
        """
        model = self.model
        at_boost = np.maximum(self.full_watts - model.idle_watts, 1.0)
        # The cap limits the power while kernels run, not the mean that includes waiting.
        by_power = self.free_clock()
        resistance = self.resistance * hindrance
        allowed = (model.limit_celsius - self.inlet) / resistance - model.idle_watts - model.spin_watts * spin
        at_limit = np.clip(allowed / (at_boost * np.maximum(compute, 0.05)), 0.02, 8.0) ** (1.0 / EXPONENT)
        free = np.minimum(by_power, cap)
        hot = self.inlet + resistance * self.watts(free, compute, spin)
        keep = np.exp(-seconds / LAG_SECONDS)
        self.celsius = np.minimum(hot + (self.celsius - hot) * keep, model.limit_celsius)
        # The governor acts gradually over the last two degrees, so that the clock does not oscillate.
        share = np.clip((self.celsius - (model.limit_celsius - 2.0)) / 2.0, 0.0, 1.0)
        by_heat = np.where(hot > model.limit_celsius - 2.0, 1.0 + share * (np.minimum(at_limit, 1.0) - 1.0), 1.0)
        clock = np.maximum(np.minimum(free, by_heat), model.least_hertz / model.boost_hertz)
        return clock, np.maximum(0.0, 1.0 - by_heat), np.maximum(0.0, 1.0 - by_power)
