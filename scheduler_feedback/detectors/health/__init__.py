"""The health detector: devices with faults, and agents that stopped reporting.

Start at ``health.py``.
"""
