"""Parsers of what Slurm's commands print.

Start at ``slurm_objects.py``.
"""
