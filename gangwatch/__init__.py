"""gangwatch: telemetry and gang scheduling for GPU training clusters.

This file is also part of the ``gangwatch-steps`` wheel, with ``steps.py`` and ``torch.py``, so it imports nothing.
"""
