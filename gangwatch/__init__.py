"""gangwatch: telemetry for GPU training clusters that schedules.

This file is also shipped in the ``gangwatch-steps`` wheel, beside ``steps.py`` and ``torch.py``: it imports nothing.
"""
