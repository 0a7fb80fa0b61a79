"""The straggler detector: which rank slows its gang down.

Start at ``straggler.py``.
"""
