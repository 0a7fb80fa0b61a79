"""The workload detector: finds slowdowns that a job causes itself.

Start at ``workload.py``. ``workload_rules.py`` and ``change_rules.py`` contain its rules.
"""
