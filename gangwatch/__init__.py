"""gangwatch: telemetry and gang scheduling for GPU training clusters.

Start at ``cli.py``, the commands; ``daemons.py`` assembles an agent and a controller, ``supervisor/`` keeps them
running. Training jobs import ``steps.py`` and ``torch.py``. The ``gangwatch-steps`` wheel consists of those two and
this file, so this file imports nothing.
"""
