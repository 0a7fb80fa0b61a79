"""The health detector: finds faulty devices, and agents that stopped reporting.

Start at ``health.py``.
"""
