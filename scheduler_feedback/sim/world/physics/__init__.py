"""Physics of the world: how long compute, transfers and collectives take on given devices.

Start at ``step_timing.py``, which combines the others for one step: ``hardware.py`` (capabilities of a GPU, a node and
a NIC), ``power.py`` (clock under power and temperature limits), ``collective.py`` and ``pipeline.py``.
"""
