"""Data types shared by all packages: metrics, frames, records, errors, clocks. Needs only numpy and msgspec.

Start at ``frame.py``, what an agent sends; ``wire.py`` encodes it, and ``catalog/`` lists every metric.
"""
