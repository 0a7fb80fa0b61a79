"""The process that ``gangwatch up`` starts. It runs the controller and the agents, and restarts them.

Start at ``supervisor.py``. ``launcher.py`` starts this process, ``readiness.py`` checks whether the daemons are
ready, ``heartbeats.py`` detects stuck daemons, ``daemon_ends.py`` records how daemons ended, and ``teardown.py`` stops
everything.
"""
