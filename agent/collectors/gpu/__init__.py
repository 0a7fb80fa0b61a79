"""Collectors of GPUs, through NVML.

Start at ``nvml_collector.py``, which finds the GPUs and makes the collectors of each.
"""
