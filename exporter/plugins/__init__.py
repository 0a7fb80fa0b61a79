"""Metrics of other people's code and files, served by /metrics of the agent and of the controller.

Start at ``plugins.py``. ``collector_thread.py`` runs the collectors of installed packages, ``textfiles.py`` reads a
folder of *.prom files, and ``metric_check.py`` checks what both return.
"""
