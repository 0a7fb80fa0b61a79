"""Checks that ``gangwatch check`` runs.

Start at ``machine.py``, which has the type of a check result and the checks of this machine. The other modules check
one part each: the collectors, the certificates, the running controller, Slurm, and a Kubernetes cluster.
"""
