"""Access to /proc: parsers of its files, control groups, NFS mounts, and readers of single processes.

Start at ``proc.py``.
"""
