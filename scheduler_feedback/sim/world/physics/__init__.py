"""Physics of the simulated world: how long compute, transfers and collectives take on given devices.

Start at ``step_timing.py``, which computes one step from the other modules: ``hardware.py`` (capabilities of a GPU, a
node and a NIC), ``power.py`` (clock under power and temperature limits), ``collective.py`` and ``pipeline.py``.
"""
