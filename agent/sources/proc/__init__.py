"""Readers of /proc: its files, control groups, NFS mounts, and single processes.

Start at ``proc.py``.
"""
