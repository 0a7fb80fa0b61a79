"""Access to the machine: files under /proc and /sys, the driver's library, step rings. Root paths are parameters.

Start at ``files.py``, which reads files that change. Each folder reads one source. ``collectors/`` uses them all.
"""
