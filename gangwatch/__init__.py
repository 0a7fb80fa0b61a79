"""gangwatch: telemetry and gang scheduling for GPU training clusters.

Start at ``cli.py``, the commands; ``daemons/`` assembles the agent and the controller, ``supervisor/`` keeps them
running. Training jobs import ``steps.py`` and ``torch.py``. The ``gangwatch-steps`` wheel consists of those two,
``reporting/`` and this file, so this file imports nothing.
"""
