"""Parts of the reporter in a training job: waits in collectives, ends of steps, and where a rank is blocked.

Start at ``gangwatch/steps.py`` and ``gangwatch/torch.py``, which use them. All of it is in the ``gangwatch-steps``
wheel, so it imports only the standard library, and PyTorch where a job uses it.
"""
