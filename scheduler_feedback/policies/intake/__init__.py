"""Application of events to the state: submissions, user requests, observations of the backend, verdicts, timeouts.

Each module applies one kind of event. Start at ``observations.py``.
"""
