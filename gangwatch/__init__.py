"""gangwatch: telemetry and gang scheduling for GPU training clusters.

Start at ``cli.py``, the commands; ``agent_daemon.py`` and ``controller_daemon.py`` assemble the daemons,
``supervisor/`` keeps them running. Training jobs import ``steps.py`` and ``torch.py``. The ``gangwatch-steps``
wheel consists of those two and this file, so this file imports nothing.
"""
