"""The agent's and the controller's processes: their parts put together, with servers, metrics, logs and limits.

Start at ``agent_daemon.py`` and ``controller_daemon.py``. ``controller_access.py`` decides who may do what.
"""
