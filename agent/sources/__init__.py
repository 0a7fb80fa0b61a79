"""Access to the machine: files under /proc and /sys, the driver's library, rings. Root paths are parameters.

Start at ``files.py``, which reads files that change; each folder is one source. ``collectors/`` uses them.
"""
