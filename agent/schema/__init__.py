"""Data types shared by all packages: metrics, frames, records, errors, clocks. They need only numpy and msgspec.

Start at ``frame.py``, the data that an agent sends. ``wire.py`` encodes it, and ``catalog/`` lists every metric.
"""
