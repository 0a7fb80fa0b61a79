"""Parsers of the output of Slurm's commands.

Start at ``slurm_objects.py``.
"""
