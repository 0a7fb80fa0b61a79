"""Execution backends, which carry out the actions of the cycle: local processes, Kubernetes and Slurm.

Start at ``backend.py``, the interface; ``registry.py`` lists the backends.
"""
