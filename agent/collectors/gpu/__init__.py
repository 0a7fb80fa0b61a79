"""Collectors of GPUs, through NVML.

Start at ``nvml_collector.py``, which finds the GPUs and creates the collectors of each GPU.
"""
