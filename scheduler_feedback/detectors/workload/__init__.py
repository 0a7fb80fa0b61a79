"""The workload detector: slowdowns that a job causes itself.

Start at ``workload.py``; ``workload_rules.py`` and ``change_rules.py`` hold its rules.
"""
