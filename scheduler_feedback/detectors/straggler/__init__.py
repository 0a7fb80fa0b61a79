"""The straggler detector: finds the rank that slows its gang down.

Start at ``straggler.py``.
"""
