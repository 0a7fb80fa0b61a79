"""The process that ``gangwatch up`` starts. It runs the controller and the agents, and restarts them.

Start at ``supervisor.py``. ``launcher.py`` starts or finds this process, ``readiness.py`` asks the daemons,
``heartbeats.py`` detects stuck ones, ``daemon_ends.py`` records how they ended, ``teardown.py`` stops everything.
"""
